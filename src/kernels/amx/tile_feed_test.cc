#include "kernels/amx/tile_feed.h"

#include <gtest/gtest.h>

#include <cmath>

#include "platform/cpu.h"

namespace tessera {
namespace {

class TileFeedTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!request_amx_permission().granted) GTEST_SKIP() << request_amx_permission().reason;
    meter_.emplace(pool_);
  }

  ThreadPool pool_{1};
  std::optional<TileFeedMeter> meter_;
};

TEST_F(TileFeedTest, TheLoopMultiplies) {
  const TileFeedMeter::Sample sample = meter_->sample();
  for (size_t i = 0; i < 32; ++i) {
    for (size_t j = 0; j < 32; ++j) {
      double expected = 0, magnitude = 0;
      for (size_t k = 0; k < 512; ++k) {
        const double term = static_cast<double>(sample.a[i * 512 + k]) * sample.b[k * 32 + j];
        expected += term;
        magnitude += std::abs(term);
      }
      EXPECT_NEAR(sample.sums[i * 32 + j], expected, 514 * 0x1p-24 * magnitude) << i << ", " << j;
      EXPECT_GT(magnitude, 0) << i << ", " << j;
    }
  }
}

TEST_F(TileFeedTest, EveryFeedHasASpeed) {
  for (const TileFeed feed : kTileFeeds) EXPECT_GT(meter_->measure(feed, 1e-3), 0) << tile_feed_text(feed);
}

}  // namespace
}  // namespace tessera
