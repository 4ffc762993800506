// The catalogue of instance types: what is shipped, and what is wrong with others.
#include "forecast/instances/catalogue.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "expect_error.h"
#include "test_folder.h"
#include "test_paths.h"

namespace tessera {
namespace {

using nlohmann::json;

TEST(ShippedCatalogue, HasTheFamiliesAndSizesItPromises) {
  std::map<std::string, std::set<std::string>> sizes;
  for (const Instance& instance : shipped_catalogue()) {
    sizes[instance.family].insert(instance.name.substr(instance.family.size() + 1));
  }
  for (const char* family : {"c7i", "m7i", "r7i", "c8i", "m8i", "r8i", "r7iz", "i7ie"}) {
    EXPECT_TRUE(sizes[family].contains("xlarge")) << family;
    EXPECT_TRUE(std::ranges::any_of(sizes[family], [](const std::string& size) {
      return size.starts_with("metal-");
    })) << family;
  }
  for (const char* family : {"c8i", "m8i", "r8i"}) EXPECT_TRUE(sizes[family].contains("96xlarge")) << family;
}

TEST(ShippedCatalogue, EveryEntryIsPlausible) {
  for (const Instance& instance : without_cards(shipped_catalogue())) {
    SCOPED_TRACE(instance.name);
    EXPECT_EQ(instance.num_vcpus, 2 * instance.figures.num_cores);
    const double gib_per_vcpu =
        static_cast<double>(instance.memory_bytes >> 30) / static_cast<double>(instance.num_vcpus);
    EXPECT_TRUE(gib_per_vcpu == 2 || gib_per_vcpu == 4 || gib_per_vcpu == 8) << gib_per_vcpu;
    EXPECT_LT(instance.usable_bytes(), instance.memory_bytes);
    EXPECT_GT(instance.usable_bytes(), instance.memory_bytes * 9 / 10);
    EXPECT_GE(instance.burst_gbps, instance.figures.network_gbps);
    EXPECT_TRUE(instance.figures.amx);
    EXPECT_GE(instance.num_numa_nodes, 1);
    EXPECT_LE(instance.num_numa_nodes, 2);
    const double gb_per_s_of_core =
        instance.figures.memory_gb_per_s / static_cast<double>(instance.figures.num_cores);
    EXPECT_GT(gb_per_s_of_core, 4);
    EXPECT_LT(gb_per_s_of_core, 10);
    EXPECT_EQ(instance.date, "2026-07-20");
    EXPECT_THAT(instance.estimates, testing::Contains("product_clock_ghz"));
  }
}

TEST(ShippedCatalogue, EveryEntryWithCardsIsPlausible) {
  std::map<std::string, std::set<std::string>> cards;
  for (const Instance& instance : shipped_catalogue()) {
    if (instance.num_cards == 0) continue;
    SCOPED_TRACE(instance.name);
    cards[instance.family].insert(instance.card.name);
    EXPECT_TRUE(instance.num_cards == 1 || instance.num_cards == 4 || instance.num_cards == 8);
    EXPECT_EQ(instance.num_vcpus, 2 * instance.figures.num_cores);
    EXPECT_LT(instance.card.usable_bytes(), instance.card.memory_bytes);
    EXPECT_GT(instance.card.usable_bytes(), instance.card.memory_bytes * 95 / 100);
    EXPECT_GT(instance.card.figures.bf16_tflops, 100);
    EXPECT_LT(instance.card.figures.bf16_tflops, 1000) << "dense products";
    EXPECT_TRUE(instance.usd_per_hour > 0 || instance.name == "p5e.48xlarge");
  }
  using testing::ElementsAre;
  EXPECT_THAT(cards["g6"], ElementsAre("NVIDIA L4"));
  EXPECT_THAT(cards["g6e"], ElementsAre("NVIDIA L40S"));
  EXPECT_THAT(cards["p4d"], ElementsAre("NVIDIA A100 40GB"));
  EXPECT_THAT(cards["p4de"], ElementsAre("NVIDIA A100 80GB"));
  EXPECT_THAT(cards["p5"], ElementsAre("NVIDIA H100"));
  EXPECT_THAT(cards["p5e"], ElementsAre("NVIDIA H200"));
  EXPECT_THAT(cards["p5en"], ElementsAre("NVIDIA H200"));
  const Instance g6e = select_instances(shipped_catalogue(), {"g6e.48xlarge"}).at(0);
  EXPECT_EQ(g6e.num_cards, 8);
  EXPECT_EQ(g6e.num_efa_cards, 4);
  EXPECT_EQ(g6e.card.memory_bytes, int64_t{45776} << 20);
}

// Metal and the largest i7ie sizes carry a premium of up to a tenth.
TEST(ShippedCatalogue, PriceOfAVcpuIsAConstantOfItsFamily) {
  std::map<std::string, double> least;
  const std::vector<Instance> catalogue = without_cards(shipped_catalogue());
  const auto of_vcpu = [](const Instance& instance) {
    return instance.usd_per_hour / static_cast<double>(instance.num_vcpus);
  };
  for (const Instance& instance : catalogue) {
    const auto [at, is_new] = least.try_emplace(instance.family, of_vcpu(instance));
    at->second = std::min(at->second, of_vcpu(instance));
  }
  for (const Instance& instance : catalogue) {
    const double ratio = of_vcpu(instance) / least.at(instance.family);
    EXPECT_LT(ratio, instance.name.find("metal") == std::string::npos ? 1.001 : 1.101) << instance.name;
  }
}

TEST(ShippedCatalogue, ABareInstanceHasWhatItsSocketHas) {
  const std::vector<Instance> found =
      select_instances(shipped_catalogue(), {"c7i.metal-48xl", "c7i.24xlarge"});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].name, "c7i.metal-48xl");
  EXPECT_EQ(found[1].figures.num_cores, 96);
  EXPECT_EQ(found[1].num_numa_nodes, 2);
  EXPECT_EQ(found[1].num_efa_cards, 1);
  EXPECT_EQ(found[0].num_numa_nodes, 1);
  EXPECT_DOUBLE_EQ(found[1].figures.memory_gb_per_s, 2 * found[0].figures.memory_gb_per_s);
  EXPECT_DOUBLE_EQ(found[0].figures.memory_gb_per_s, 8 * 8 * 4.8 * 0.75);
}

TEST(ShippedCatalogue, IsTheFileThatIsInstalled) {
  EXPECT_EQ(shipped_catalogue_json(), read_source(source_folder() / "src/forecast/instances/instances.json"));
}

TEST(ShippedCatalogue, FollowsItsJsonSchema) {
  const std::string folder = (source_folder() / "src/forecast/instances").string();
  const std::string program =
      "import sys, json, jsonschema; f = sys.argv[1]; "
      "jsonschema.validate(json.load(open(f + '/instances.json')), json.load(open(f + "
      "'/instances.schema.json')))";
  if (std::system("python3 -c 'import jsonschema' 2>/dev/null") != 0) {
    GTEST_SKIP() << "python3-jsonschema is not installed";
  }
  EXPECT_EQ(std::system(fmt::format("python3 -W ignore -c \"{}\" '{}'", program, folder).c_str()), 0);
}

TEST(SelectInstances, TakesNamesAndPatternsInTheOrderOfTheCatalogue) {
  const std::vector<Instance> catalogue = shipped_catalogue();
  const auto names = [&](const std::vector<std::string>& patterns) {
    std::vector<std::string> found;
    for (const Instance& instance : select_instances(catalogue, patterns)) found.push_back(instance.name);
    return found;
  };
  EXPECT_THAT(names({"m7i.2xlarge", "c7i.xlarge", "c7i.x*"}),
              testing::ElementsAre("c7i.xlarge", "m7i.2xlarge"));
  EXPECT_EQ(names({"*"}).size(), catalogue.size());
  expect_error(ExitCode::kUsage, {"--instances", "'c9i.*'", "its families are c7i, c8i, g6, g6e, i7ie"}, [&] {
    select_instances(catalogue, {"c7i.*", "c9i.*"});
  });
}

// A small catalogue as another cloud would have it.
json small_catalogue() {
  return json::parse(R"({
    "processors": {"milan": {"name": "AMD EPYC", "instruction_set": "avx2", "cores_per_socket": 64,
                             "numa_nodes_per_socket": 4, "threads_per_core": 1, "clock_ghz": 3.5,
                             "memory_channels": 8, "memory_mt_per_s": 3200}},
    "families": {"hb": {"provider": "Somewhere", "region": "north", "date": "2026-01-31", "processor": "milan",
                        "sources": ["a page"],
                        "sizes": [{"size": "32", "vcpus": 32, "memory_gib": 120.5, "network_gbps": 40,
                                   "usd_per_hour": 3}]}}})");
}

TEST(Catalogue, FillsInWhatAnotherCloudLeavesOut) {
  const std::vector<Instance> found = parse_catalogue(small_catalogue().dump(), "mine.json");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, "hb.32");
  EXPECT_EQ(found[0].figures.num_cores, 32);
  EXPECT_EQ(found[0].num_numa_nodes, 2);
  EXPECT_FALSE(found[0].figures.avx512);
  EXPECT_EQ(found[0].figures.clock_ghz, 3.5);
  EXPECT_EQ(found[0].burst_gbps, 40);
  EXPECT_EQ(found[0].spot_share, 1);
  EXPECT_EQ(found[0].watts, 0);
  EXPECT_EQ(found[0].memory_bytes, (int64_t{241} << 30) / 2);
}

json catalogue_with_a_card() {
  json document = small_catalogue();
  document["cards"] = json::parse(R"({"a100": {"name": "NVIDIA A100", "memory_mib": 40960, "bf16_tflops": 312,
                                               "memory_gb_per_s": 1555, "sources": ["a page"]}})");
  document["families"]["hb"]["card"] = "a100";
  document["families"]["hb"]["sizes"][0]["cards"] = 2;
  return document;
}

TEST(Catalogue, CardsBelongToTheSizesOfAFamilyThatNamesTheirKind) {
  json document = catalogue_with_a_card();
  document["families"]["hb"]["sizes"][0].erase("usd_per_hour");
  const std::vector<Instance> found = parse_catalogue(document.dump(), "mine.json");
  EXPECT_EQ(found.at(0).num_cards, 2);
  EXPECT_EQ(found.at(0).card.name, "NVIDIA A100");
  EXPECT_EQ(found.at(0).card.memory_bytes, int64_t{40} << 30);
  EXPECT_EQ(found.at(0).card.figures.memory_gb_per_s, 1555);
  EXPECT_EQ(found.at(0).usd_per_hour, 0) << "not known";
  EXPECT_TRUE(without_cards(found).empty());
  EXPECT_EQ(without_cards(parse_catalogue(small_catalogue().dump(), "mine.json")).size(), 1u);
}

TEST(Catalogue, IsReadFromAFile) {
  const TestFolder folder;
  EXPECT_EQ(read_catalogue(folder.write("mine.json", small_catalogue().dump())).size(), 1u);
  expect_error(ExitCode::kNoInput, {"absent.json"}, [&] { read_catalogue(folder / "absent.json"); });
}

struct Fault {
  const char* pointer;  // to the value that is replaced
  json value;           // null: removed
  std::vector<std::string> message;
};

void expect_faults(const json& whole, const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.pointer);
    json document = whole;
    const json::json_pointer pointer(fault.pointer);
    if (fault.value.is_null()) {
      document[pointer.parent_pointer()].erase(pointer.back());
    } else {
      document[pointer] = fault.value;
    }
    std::vector<std::string> parts = fault.message;
    parts.emplace_back("mine.json");
    expect_error(ExitCode::kBadData, parts, [&] { parse_catalogue(document.dump(), "mine.json"); });
  }
}

TEST(Catalogue, EveryFaultIsOneLineWithFileFieldExpectedAndFound) {
  const std::vector<Fault> faults = {
      {"/processors/milan/instruction_set", "sse", {"processors.milan.instruction_set", "amx_bf16", "sse"}},
      {"/processors/milan/cores_per_socket", 0, {"cores_per_socket", "an integer from 1 to 1024", "0"}},
      {"/processors/milan/threads_per_core", 1.5, {"threads_per_core", "an integer from 1 to 2", "1.5"}},
      {"/processors/milan/clock_ghz", -1, {"clock_ghz", "a number from 0.1 to 10", "-1"}},
      {"/processors/milan/clock_ghz", nullptr, {"clock_ghz", "a number from 0.1 to 10", "nothing"}},
      {"/processors/milan/name", "", {"processors.milan.name", "printable"}},
      {"/processors/milan/name", "Bü", {"processors.milan.name", "printable"}},
      {"/processors/milan/unconfirmed",
       {"clock"},
       {"unconfirmed[0]", "the name of a field beside it", "clock"}},
      {"/families/hb/processor", "rome", {"families.hb.processor", "a name of 'processors'", "rome"}},
      {"/families/hb/date", "31.1.2026", {"families.hb.date", "2026-07-20", "31.1.2026"}},
      {"/families/hb/spot_share", 1.5, {"families.hb.spot_share", "a number from 0.01 to 1", "1.5"}},
      {"/families/hb/spot_shar", 0.5, {"families.hb", "spot_share", "'spot_shar'"}},
      {"/families/hb/sources", nullptr, {"families.hb.sources", "found nothing"}},
      {"/families/hb/sizes/0/vcpus", 0, {"families.hb.sizes[0].vcpus", "an integer from 1 to 8192", "0"}},
      {"/families/hb/sizes/0/vcpus", "32", {"families.hb.sizes[0].vcpus", "an integer", "\"32\""}},
      {"/families/hb/sizes/0/memory_gib", 0, {"families.hb.sizes[0].memory_gib", "a number from"}},
      {"/families/hb/sizes/0/network_gbps", nullptr, {"families.hb.sizes[0].network_gbps", "found nothing"}},
      {"/families/hb/sizes/0/burst_gbps", 10, {"families.hb.sizes[0].burst_gbps", "a number from 40", "10"}},
      {"/families/hb/sizes/0/efa_cards", -1, {"families.hb.sizes[0].efa_cards", "an integer from 0 to 64"}},
      {"/families/hb/sizes/0/nvme_gb", 1.5, {"families.hb.sizes[0].nvme_gb", "an integer from 0"}},
      {"/families/hb/sizes/0/usd_per_hour", "3", {"families.hb.sizes[0].usd_per_hour", "a number", "\"3\""}},
      {"/families/hb/sizes/0/size", 32, {"families.hb.sizes[0].size", "a string", "32"}},
      {"/families/hb/sizes/0/price", 3, {"families.hb.sizes[0]", "usd_per_hour", "'price'"}},
      {"/families/hb/sizes", json::array(), {"families", "at least one instance type"}},
      {"/families/hb/sizes", 1, {"families.hb.sizes", "a list", "1"}},
      {"/families", nullptr, {"families", "an object", "nothing"}},
      {"/prices", 1, {"processors", "'prices'"}},
  };
  const std::vector<Fault> of_cards = {
      {"/cards/a100/memory_mib", 40, {"cards.a100.memory_mib", "an integer from 1024", "40"}},
      {"/cards/a100/bf16_tflops", nullptr, {"cards.a100.bf16_tflops", "a number from 1", "nothing"}},
      {"/cards/a100/memory", 40, {"cards.a100", "memory_mib", "'memory'"}},
      {"/cards", nullptr, {"families.hb.card", "a name of 'cards'", "a100"}},
      {"/families/hb/card", "h100", {"families.hb.card", "a name of 'cards'", "h100"}},
      {"/families/hb/card", nullptr, {"families.hb.sizes[0].cards", "whose 'card' is named", "2"}},
      {"/families/hb/sizes/0/cards", nullptr, {"families.hb.sizes[0].cards", "an integer from 1", "nothing"}},
  };
  expect_faults(small_catalogue(), faults);
  expect_faults(catalogue_with_a_card(), of_cards);
  json twice = small_catalogue();
  twice["families"]["hb"]["sizes"].push_back(twice["families"]["hb"]["sizes"][0]);
  expect_error(ExitCode::kBadData, {"mine.json", "sizes[1].size", "listed once"},
               [&] { parse_catalogue(twice.dump(), "mine.json"); });
  json odd = small_catalogue();
  odd["processors"]["milan"]["threads_per_core"] = 2;
  odd["families"]["hb"]["sizes"][0]["vcpus"] = 31;
  expect_error(ExitCode::kBadData, {"sizes[0].vcpus", "a multiple of the 2 threads per core", "31"},
               [&] { parse_catalogue(odd.dump(), "mine.json"); });
  expect_error(ExitCode::kBadData, {"mine.json"}, [] { parse_catalogue("{", "mine.json"); });
  expect_error(ExitCode::kBadData, {"mine.json"}, [] { parse_catalogue("[]", "mine.json"); });
}

TEST(Catalogue, TooManyInstanceTypesAreRefused) {
  json document = small_catalogue();
  json& sizes = document["families"]["hb"]["sizes"];
  for (int i = 0; i <= 10'000; ++i) {
    sizes.push_back(sizes[0]);
    sizes.back()["size"] = std::to_string(100 + i);
  }
  expect_error(ExitCode::kBadData, {"at most 10000 instance types"},
               [&] { parse_catalogue(document.dump(), "mine.json"); });
}

TEST(Catalogue, FindsTheCardThatTheDriverNames) {
  const std::vector<Instance> catalogue = shipped_catalogue();
  const auto found = [&](std::string_view name) {
    const Card* const card = find_card(catalogue, name);
    return card == nullptr ? "" : card->name;
  };
  EXPECT_EQ(found("NVIDIA H200"), "NVIDIA H200");
  EXPECT_EQ(found("NVIDIA H100 80GB HBM3"), "NVIDIA H100");
  EXPECT_EQ(found("NVIDIA A100-SXM4-40GB"), "NVIDIA A100 40GB");
  EXPECT_EQ(found("NVIDIA A100-SXM4-80GB"), "NVIDIA A100 80GB");
  EXPECT_EQ(found("NVIDIA L40S"), "NVIDIA L40S");
  EXPECT_EQ(found("NVIDIA GeForce RTX 4090"), "");
}

}  // namespace
}  // namespace tessera
