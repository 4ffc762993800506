// The order of fetches, in the order in which a model opens groups.
#include "shard/layout/fetch_order.h"

#include <gtest/gtest.h>

#include <map>

namespace tessera {
namespace {

// Groups of 10 elements: embedding, layers, head.
ZeroLayout layout_of(int64_t num_layers) {
  ZeroLayout layout;
  layout.num_nodes = 2;
  for (int64_t g = 0; g < num_layers + 2; ++g) layout.groups.push_back({g * 10, g * 10 + 10});
  return layout;
}

ZeroSettings settings_for(int64_t num_live_layers) {
  ZeroSettings settings;
  settings.schedule = GatherSchedule::kPerLayer;
  settings.persistence_threshold = 0;
  settings.prefetch_elements = 10 * (num_live_layers - 1);
  return settings;
}

// The number of fetches of each group in a step of `num_passes`.
std::map<int64_t, int64_t> fetches_of_step(FetchOrder& order, int64_t num_layers, int64_t num_passes) {
  std::map<int64_t, int64_t> fetches;
  const auto open = [&](int64_t group, bool forward) {
    for (const Fetch& fetch : order.open(group, forward)) ++fetches[fetch.group];
  };
  order.forget();
  for (int64_t pass = 0; pass < num_passes; ++pass) {
    for (int64_t group = 0; group <= num_layers; ++group) {
      open(group, /*forward=*/true);
      order.close(group);
    }
    open(num_layers + 1, /*forward=*/false);
    order.close(num_layers + 1);
    for (int64_t group = num_layers; group > 0; --group) {
      open(group, /*forward=*/false);
      order.close(group);
    }
  }
  return fetches;
}

// Layers in memory at a turn of the pass are not fetched again: S + 2 p (n - S) fetches of layers.
TEST(FetchOrder, FetchesLayersAsOftenAsTheClosedFormSays) {
  for (const int64_t num_layers : {1, 2, 3, 7}) {
    for (const int64_t num_live : {2, 3, 5}) {
      for (const int64_t num_passes : {1, 2, 3}) {
        FetchOrder order(layout_of(num_layers), settings_for(num_live));
        const int64_t S = std::min(num_live, num_layers);
        EXPECT_EQ(order.num_slots(), static_cast<size_t>(S) + 1);
        EXPECT_EQ(order.num_elements(), 10 * (S + 1));
        for (int step = 0; step < 2; ++step) {
          std::map<int64_t, int64_t> fetches = fetches_of_step(order, num_layers, num_passes);
          EXPECT_EQ(fetches[0], num_passes);
          EXPECT_EQ(fetches[num_layers + 1], num_passes);
          int64_t of_layers = 0;
          for (int64_t layer = 1; layer <= num_layers; ++layer) of_layers += fetches[layer];
          EXPECT_EQ(of_layers, S + 2 * num_passes * (num_layers - S))
              << num_layers << " layers, " << num_live << " in memory, " << num_passes << " passes";
        }
      }
    }
  }
}

TEST(FetchOrder, KeepsSmallGroupsAndFetchesNextLayersBeforeTheyAreOpened) {
  ZeroLayout layout = layout_of(4);
  layout.groups.back() = {50, 52};
  ZeroSettings settings = settings_for(3);
  settings.persistence_threshold = 2;
  FetchOrder order(layout, settings);
  EXPECT_TRUE(order.is_resident(5));
  const std::span<const Fetch> first = order.open(1, /*forward=*/true);
  ASSERT_EQ(first.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(first[i].group, static_cast<int64_t>(i) + 1);
  order.close(1);
  const std::span<const Fetch> second = order.open(2, /*forward=*/true);
  ASSERT_EQ(second.size(), 1u) << "3 is there";
  EXPECT_EQ(second[0].group, 4);
  EXPECT_EQ(second[0].slot, 0u) << "in the place of 1, which was used first";
}

}  // namespace
}  // namespace tessera
