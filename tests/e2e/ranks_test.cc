// Commands other than train on several hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "e2e/host_job.h"
#include "e2e/tiny_model.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

void expect_one_error(const ProcessResult& result, int exit_code,
                      const testing::Matcher<std::string>& message) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  ASSERT_EQ(result.errors().size(), 1u) << result.err;
  EXPECT_THAT(result.errors()[0], message);
}

TEST(Ranks, InitOfSeveralHostsNeedsASharedFolder) {
  const TinyModel tiny;
  const Hosts hosts(2);
  if (!hosts.problem().empty()) GTEST_SKIP() << hosts.problem();
  const auto init = [&](const std::string& output) -> std::vector<std::string> {
    return {"init", "--config", tiny.model, "--tokenizer", tiny.tokenizer, "--output", output, "--seed", "7"};
  };
  run_well(init(tiny.folder / "alone"));
  {
    HostJob job(hosts, {.ranks_per_node = 2, .command = init(tiny.folder / "shared")});
    ASSERT_TRUE(job.wait(30s));
    EXPECT_EQ(job.agent(0).result().exit_code, 0) << job.all_output();
    EXPECT_EQ(files_of(tiny.folder / "shared"), files_of(tiny.folder / "alone"));
  }
  // On the second host, another file system is mounted over the folder.
  fs::create_directory(tiny.folder / "own");
  const auto mount = hosts.start(1, {"mount", "-t", "tmpfs", "tmpfs", tiny.folder / "own"});
  ASSERT_TRUE(mount->wait(10s) && mount->result().exit_code == 0) << mount->err();
  HostJob job(hosts, {.command = init(tiny.folder / "own/model")});
  ASSERT_TRUE(job.wait(60s));
  for (const int node : {0, 1}) {
    expect_one_error(job.agent(node).result(), 78,
                     AllOf(HasSubstr("own/model"), HasSubstr("choose a folder that all machines share")));
  }
  EXPECT_THAT(job.agent(0).result().errors()[0], StartsWith("host host1: "))
      << "an error of another host also names the host";
  EXPECT_TRUE(files_of(tiny.folder / "own/model").empty());
}

}  // namespace
}  // namespace tessera
