#include "cluster/node/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "fake_machine.h"
#include "io/file.h"
#include "test_folder.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::string report(const std::string& instance, double compute, double bandwidth) {
  return fmt::format(
      R"({{"healthy":true,"checks":[{{"name":"clock","value":1}},{{"name":"compute","value":{}}},)"
      R"({{"name":"memory_bandwidth","value":{}}}],"instance":"{}"}})",
      compute, bandwidth, instance);
}

TEST(FleetFile, MediansAreByInstanceTypeAndSurviveTheirFile) {
  FleetBuilder builder;
  builder.add(report("a", 1.0, 100) + "\n" + report("a", 1.2, 110) + report("b", 3, 50), "first");
  builder.add(report("a", 0.1, 120) + "\n", "second");
  builder.add("", "nothing");
  const Fleet fleet = parse_fleet(fleet_json(builder.build()), "fleet.json");
  ASSERT_EQ(fleet.size(), 2u);
  EXPECT_EQ(fleet.at("a").num_nodes, 3);
  EXPECT_EQ(fleet.at("a").medians.at("compute"), 1.0);
  EXPECT_EQ(fleet.at("a").medians.at("memory_bandwidth"), 110);
  EXPECT_EQ(fleet.at("b").num_nodes, 1);
}

TEST(FleetFile, OtherReportsAreRefusedWithTheirNumber) {
  for (const char* text : {"{", "[1]", "7", R"({"instance":"a"})", R"({"instance":1,"checks":[]})",
                           R"({"instance":"a","checks":{}})"}) {
    FleetBuilder builder;
    expect_error(ExitCode::kBadData, {"x.json: report 2: expected the JSON of doctor --node-check"},
                 [&] { builder.add(report("a", 1, 1) + text, "x.json"); });
  }
}

TEST(FleetFile, MistakesAreNamed) {
  const auto with = [](const std::string& instances) {
    return R"({"format":"tessera fleet","version":1,"instances":)" + instances + "}";
  };
  EXPECT_EQ(parse_fleet(with("{}"), "f").size(), 0u);
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "f: expected a JSON object with \"format\": \"tessera fleet\""},
           {"[]", "f: expected a JSON object"},
           {R"({"format":"other"})", "f: expected a JSON object"},
           {R"({"format":"tessera fleet","version":2})", "f: version: expected 1, found 2"},
           {R"({"format":"tessera fleet","version":1})", "f: instances: expected an object, found null"},
           {with("[]"), "f: instances: expected an object"},
           {with(R"({"a":1})"), "f: instances.a: expected an object"},
           {with(R"({"a":{"compute":"fast"}})"),
            "f: instances.a.compute: expected a number above 0, found \"fast\""},
           {with(R"({"a":{"compute":-1}})"), "f: instances.a.compute: expected a number above 0, found -1"},
           {with(R"({"a":{"nodes":0}})"), "f: instances.a.nodes: expected a number above 0"},
           {with(R"({"a":{"compute":1}})"), "f: instances.a: expected nodes, the number of machines"},
           {with(R"({"a":{"speed":1}})"), "f: instances.a.speed: unknown; there are nodes, compute"}}) {
    expect_error(ExitCode::kBadData, {message}, [&, json = text] { parse_fleet(json, "f"); });
  }
}

TEST(FleetComparison, BelowTheShareOfTheMedianFails) {
  const FleetFigures figures = {.num_nodes = 12, .medians = {{"compute", 2.0}}};
  EXPECT_EQ(compare_with_fleet("compute", 1.6, "TFLOPS", figures, 0.8).outcome, CheckOutcome::kOk);
  const Check check = compare_with_fleet("compute", 1.5, "TFLOPS", figures, 0.8);
  EXPECT_EQ(check.outcome, CheckOutcome::kFailed);
  EXPECT_EQ(check.limit, 1.6);
  EXPECT_THAT(check.message, HasSubstr("1.5 TFLOPS, 0.75 of the median of 12 nodes (2)"));
}

TEST(FleetComparison, WithoutFiguresNothingFails) {
  for (const auto& figures : {std::optional<FleetFigures>(), std::optional<FleetFigures>(FleetFigures{})}) {
    const Check check = compare_with_fleet("compute", 0.1, "TFLOPS", figures, 0.8);
    EXPECT_EQ(check.outcome, CheckOutcome::kOk);
    EXPECT_EQ(check.value, 0.1);
    EXPECT_FALSE(check.limit);
  }
}

TEST(FleetComparison, TheCatalogueIsAnEstimateAndCountsHalf) {
  const FleetFigures figures = {.num_nodes = 0, .medians = {{"compute", 2.0}}};
  EXPECT_EQ(compare_with_fleet("compute", 1.1, "TFLOPS", figures, 0.8).outcome, CheckOutcome::kOk);
  EXPECT_EQ(compare_with_fleet("compute", 0.9, "TFLOPS", figures, 0.8).outcome, CheckOutcome::kFailed);
}

TEST(FleetFigures, ComeFromTheFileOrFromTheCatalogue) {
  const TestFolder folder;
  const std::optional<FleetFigures> expected = figures_for("", "r7i.16xlarge", 32);
  ASSERT_TRUE(expected);
  EXPECT_EQ(expected->num_nodes, 0);
  EXPECT_GT(expected->medians.at("compute"), 0);
  EXPECT_GT(expected->medians.at("memory_bandwidth"), 0);
  EXPECT_EQ(figures_for("", "r7i.16xlarge", 16)->medians.count("memory_bandwidth"), 0u)
      << "half of the cores";
  EXPECT_FALSE(figures_for("", "Xeon, 8 cores", 8));
  EXPECT_EQ(figures_for(folder.path(), "r7i.16xlarge", 32)->num_nodes, 0) << "a folder without fleet.json";

  FleetBuilder builder;
  builder.add(report("r7i.16xlarge", 1.5, 100), "report");
  write_text_file(folder / "fleet.json", fleet_json(builder.build()));
  for (const std::filesystem::path& fleet : {folder.path(), folder / "fleet.json"}) {
    EXPECT_EQ(figures_for(fleet, "r7i.16xlarge", 32)->medians.at("compute"), 1.5);
    EXPECT_EQ(figures_for(fleet, "r7i.8xlarge", 16)->num_nodes, 0) << "not in the file";
  }
  expect_error(ExitCode::kUsage, {"--fleet: expected a file, found the address 'http://host/fleet.json'"},
               [] { figures_for("http://host/fleet.json", "r7i.16xlarge", 32); });
}

TEST(InstanceType, ComesFromEc2OrIsTheProcessor) {
  FakeMachine machine;
  EXPECT_EQ(instance_type("Xeon", 8, machine.root()), "Xeon, 8 cores");
  machine.write("sys/class/dmi/id/sys_vendor", "Amazon EC2\n");
  machine.write("sys/class/dmi/id/product_name", "r7i.16xlarge\n");
  EXPECT_EQ(instance_type("Xeon", 8, machine.root()), "r7i.16xlarge");
  machine.write("sys/class/dmi/id/sys_vendor", "QEMU\n");
  EXPECT_EQ(instance_type("Xeon", 8, machine.root()), "Xeon, 8 cores");
}

}  // namespace
}  // namespace tessera
