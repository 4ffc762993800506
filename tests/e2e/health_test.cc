// `tessera doctor --node_check` and `--storage`: exit codes, JSON and messages, as a node problem detector
// sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/text_fields.h"
#include "e2e/process.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// What depends on the machine that runs the test, and its neighbours.
const std::vector<std::string> kOfTheMachine = split(
    "clock clock_source huge_pages memory_pressure io_pressure cpu_pressure kernel_log slow_cores cpu_quota "
    "network_errors network_retransmits disk disk_space memory_errors free_memory slow_numa_nodes "
    "thermal_throttling machine_checks gpu gpu_throttling gpu_memory_errors",
    ' ');

std::vector<std::string> node_check(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"doctor", "--node-check", "--seconds", "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.emplace_back("--ignore");
  arguments.insert(arguments.end(), kOfTheMachine.begin(), kOfTheMachine.end());
  return arguments;
}

std::string fleet_of(const nlohmann::json& report, double factor) {
  nlohmann::json figures = {{"nodes", 8}};
  for (const nlohmann::json& check : report["checks"]) {
    if (check["name"] == "compute") figures["compute"] = check["value"].get<double>() * factor;
  }
  return nlohmann::json{{"format", "tessera fleet"},
                        {"version", 1},
                        {"instances", {{report["instance"].get<std::string>(), figures}}}}
      .dump();
}

TEST(NodeHealth, SoundMachineIsHealthyAndASlowOneIsNot) {
  const TemporaryFolder folder;
  const ProcessResult sound = run_tessera(node_check({"--json", "--folder", folder.path()}));
  EXPECT_EQ(sound.exit_code, 0) << sound.out << sound.err;
  EXPECT_THAT(sound.errors(), IsEmpty());
  const nlohmann::json report = nlohmann::json::parse(sound.out);
  EXPECT_EQ(report["healthy"], true);
  EXPECT_EQ(lines_of(sound.out).size(), 1u) << "reports of many machines can be written one after another";

  const std::string fleet = folder.write("fleet.json", fleet_of(report, 100));
  const ProcessResult slow = run_tessera(node_check({"--fleet", fleet, "--folder", folder.path()}));
  EXPECT_EQ(slow.exit_code, 1) << slow.out << slow.err;
  EXPECT_THAT(slow.errors(), ElementsAre(HasSubstr("compute: ")));
  EXPECT_THAT(slow.out, HasSubstr("FAILED   compute"));
}

TEST(NodeHealth, FleetFileComesFromReports) {
  const TemporaryFolder folder;
  const std::string line = R"({"checks":[{"name":"compute","value":2}],"instance":"r7i.16xlarge"})";
  const ProcessResult result = run_tessera(
      {"doctor", "--fleet_from", folder.write("a.json", line + "\n" + line), folder.write("b.json", line)});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["instances"]["r7i.16xlarge"],
            nlohmann::json({{"nodes", 3}, {"compute", 2.0}}));
  EXPECT_EQ(run_tessera({"doctor", "--fleet_from", folder.write("c.json", "")}).exit_code, 65);
}

TEST(NodeHealth, PassiveCheckOfAPeerThatIsNotThere) {
  const ProcessResult result =
      run_tessera(node_check({"--passive", "--json", "--peers", "no-such-host.invalid:1"}));
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.errors(), ElementsAre(HasSubstr("peer: no-such-host.invalid:1: ")));
  EXPECT_EQ(nlohmann::json::parse(result.out)["healthy"], false);
}

TEST(NodeHealth, MissingInstructionSetFails) {
  const TemporaryFolder folder;
  std::vector<std::string> arguments = node_check({"--passive", "--instruction_set", "amx_bf16"});
  const ProcessResult result = run_tessera(arguments, {.environment = {"TESSERA_CPU_FAULTS=amx_bf16"}});
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.errors(), ElementsAre(HasSubstr("amx_bf16")));
}

TEST(NodeHealth, CommandLineMistakesAreUsageErrors) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--passive"},
                                             {"--seconds", "3"},
                                             {"--node-check", "--storage", "/tmp"},
                                             {"--node-check", "--peers", "host"},
                                             {"--node-check", "--instruction_set", "amx512"},
                                             {"--node-check", "--fleet", "https://x/fleet.json"},
                                             {"--node-check", "--seconds", "0"}}) {
    std::vector<std::string> all = {"doctor"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const ProcessResult result = run_tessera(all);
    EXPECT_EQ(result.exit_code, 64) << result.out;
    EXPECT_EQ(result.errors().size(), 1u) << result.err;
  }
}

TEST(StorageHealth, GoodAndMissingFolder) {
  const TemporaryFolder folder;
  const ProcessResult good = run_tessera({"doctor", "--storage", folder.path(), "--json", "--seconds", "3"});
  const nlohmann::json report = nlohmann::json::parse(good.out);
  for (const nlohmann::json& check : report["checks"]) {
    if (check["name"] == "rename" || check["name"] == "responds") {
      EXPECT_EQ(check["ok"], true) << check;
    }
  }
  const ProcessResult offload =
      run_tessera({"doctor", "--offload_dir", folder.path(), "--json", "--seconds", "30"});
  EXPECT_THAT(offload.out, HasSubstr("\"name\":\"transfers\""));
  const ProcessResult missing = run_tessera({"doctor", "--storage", folder / "none"});
  EXPECT_EQ(missing.exit_code, 1) << missing.out;
  EXPECT_THAT(missing.errors(), ElementsAre(HasSubstr("stage resolve: No such file or directory")));
}

}  // namespace
}  // namespace tessera
