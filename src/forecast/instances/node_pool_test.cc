#include "forecast/instances/node_pool.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Names = std::vector<std::string>;

Instance pool_type(const char* family, const char* size, int64_t num_vcpus, int64_t num_efa_cards,
                   int64_t num_cards = 0) {
  Instance instance;
  instance.family = family;
  instance.name = std::string(family) + "." + size;
  instance.num_vcpus = num_vcpus;
  instance.num_efa_cards = num_efa_cards;
  instance.num_cards = num_cards;
  instance.figures.amx = true;
  return instance;
}

const std::vector<Instance> kCatalogue = {
    pool_type("c7i", "4xlarge", 16, 0),   pool_type("c7i", "16xlarge", 64, 0),
    pool_type("c7i", "48xlarge", 192, 1), pool_type("r7i", "16xlarge", 64, 1),
    pool_type("r7i", "48xlarge", 192, 1), pool_type("r7i", "metal-24xl", 96, 0),
    pool_type("g6e", "xlarge", 4, 0, 1),  pool_type("g6e", "48xlarge", 192, 4, 8)};

TEST(NodePool, HasEachFamilyAndSizeOnce) {
  const PoolTypes types = types_of_node_pool(kCatalogue, /*on_card=*/false, /*efa=*/false);
  EXPECT_EQ(types.families, (Names{"c7i", "r7i"}));
  EXPECT_EQ(types.sizes, (Names{"16xlarge", "48xlarge"})) << "4xlarge is too small, metal is hard to get";
}

TEST(NodePool, WithEfaHasOnlySizesThatHaveItInEveryFamily) {
  const PoolTypes types = types_of_node_pool(kCatalogue, /*on_card=*/false, /*efa=*/true);
  EXPECT_EQ(types.sizes, (Names{"48xlarge"})) << "c7i.16xlarge has no EFA card";
  EXPECT_EQ(types.families, (Names{"c7i", "r7i"}));
}

TEST(NodePool, OfCardsHasAllTypesWithCardsAndNoOthers) {
  const PoolTypes types = types_of_node_pool(kCatalogue, /*on_card=*/true, /*efa=*/false);
  EXPECT_EQ(types.families, (Names{"g6e"}));
  EXPECT_EQ(types.sizes, (Names{"xlarge", "48xlarge"}));
  EXPECT_EQ(types_of_node_pool(kCatalogue, true, /*efa=*/true).sizes, (Names{"48xlarge"}));
}

TEST(NodePool, LeavesMachinesWithCardsToTheirOwnPool) {
  for (const Instance& each : shipped_catalogue()) {
    if (each.num_cards == 0) {
      EXPECT_FALSE(in_node_pool(each, /*on_card=*/true)) << each.name;
    } else {
      EXPECT_FALSE(in_node_pool(each)) << each.name << ", even with AMX";
      EXPECT_TRUE(in_node_pool(each, /*on_card=*/true)) << each.name;
    }
  }
  EXPECT_TRUE(in_node_pool(select_instances(shipped_catalogue(), {"r7i.16xlarge"}).at(0)));
}

}  // namespace
}  // namespace tessera
