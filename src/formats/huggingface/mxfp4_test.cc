#include "formats/huggingface/mxfp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace tessera {
namespace {

// Codes and scales of a matrix [2, 64], and what convert_moe_packed_tensors() of Transformers 5.24 makes of
// them in float32, [64, 2].
constexpr uint8_t kMxfp4Blocks[64] = {172, 47,  117, 192, 67,  251, 195, 103, 9,   211, 21,  242, 36,
                                      87,  70,  216, 88,  140, 58,  193, 230, 39,  87,  174, 88,  81,
                                      165, 25,  77,  72,  9,   148, 115, 208, 243, 197, 254, 79,  175,
                                      192, 82,  99,  216, 177, 243, 29,  147, 147, 142, 167, 32,  193,
                                      9,   185, 127, 32,  31,  202, 244, 151, 163, 254, 203, 114};
constexpr uint8_t kMxfp4Scales[4] = {120, 127, 1, 140};
constexpr float kMxfp4Values[128] = {
    -0x1p-6f,  0x1.8p-126f,  -0x1p-7f,  0x1.8p-124f,  -0x1.8p-5f, 0.0f,         0x1p-7f,    -0x1.8p-125f,
    0x1.8p-6f, 0x1.8p-126f,  0x1.8p-5f, -0x1.8p-124f, 0.0f,       0x1.8p-125f,  -0x1p-6f,   -0x1p-125f,
    0x1.8p-7f, -0x1p-124f,   0x1p-6f,   -0x1.8p-124f, -0x1.8p-7f, -0x1.8p-124f, -0x1.8p-5f, 0x1p-125f,
    0x1.8p-7f, -0x1.8p-124f, -0x1p-6f,  -0x1p-126f,   0x1.8p-5f,  0.0f,         0x1p-5f,    -0x1p-125f,
    -0x1p-8f,  0x1p-126f,    0.0f,      0x1.8p-125f,  0x1.8p-7f,  0x1.8p-126f,  -0x1.8p-6f, 0x1p-124f,
    0x1.8p-6f, -0.0f,        0x1p-8f,   -0x1.8p-125f, 0x1p-7f,    0x1p-127f,    -0x1.8p-5f, -0x1.8p-126f,
    0x1p-6f,   0x1.8p-126f,  0x1p-7f,   -0x1.8p-124f, 0x1.8p-5f,  -0x1.8p-125f, 0x1.8p-6f,  0x1p-127f,
    0x1p-5f,   0x1.8p-126f,  0x1p-6f,   -0x1p-127f,   -0.0f,      0x1.8p-126f,  -0x1.8p-6f, -0x1p-127f,
    -0.0f,     -0x1p15f,     0x1.8p1f,  -0.0f,        -0x1p1f,    0x1.8p15f,    -0.0f,      -0x1p13f,
    -0x1p0f,   0.0f,         0x1.8p0f,  0x1p13f,      0x1p-1f,    0x1p12f,      -0x1p1f,    -0x1p14f,
    0x1p2f,    -0x1p12f,     -0x1p2f,   0.0f,         0x1.8p2f,   -0x1p12f,     0x1p0f,     -0x1.8p13f,
    0x1.8p2f,  -0x1.8p15f,   0x1.8p1f,  0x1.8p15f,    -0x1p2f,    0.0f,         -0x1p0f,    0x1p13f,
    -0.0f,     -0x1.8p15f,   0x1.8p1f,  0x1p12f,      0x1p-1f,    -0x1p13f,     0x1.8p1f,   -0x1p14f,
    0x1.8p1f,  0x1p14f,      -0x1p0f,   -0x1.8p15f,   -0x1p-1f,   0x1.8p15f,    0x1p-1f,    -0x1p12f,
    -0x1.8p1f, 0x1.8p13f,    0x1p1f,    -0x1p13f,     -0.0f,      -0x1p15f,     0x1p1f,     -0x1.8p15f,
    -0x1p-1f,  -0x1.8p13f,   0.0f,      -0x1p14f,     0x1p1f,     0x1p13f,      -0x1p-1f,   0x1.8p15f};

TEST(Mxfp4, ValuesAreThoseOfTransformers) {
  const Mxfp4Matrix matrix = {kMxfp4Blocks, kMxfp4Scales, 2, 64};
  std::vector<float> values(128);
  decode_mxfp4_transposed(matrix, 0, values);
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(kMxfp4Values[i])) << i;
  for (const int64_t begin : {1, 2, 63, 64, 127}) {
    std::vector<float> part(static_cast<size_t>(std::min<int64_t>(5, 128 - begin)));
    decode_mxfp4_transposed(matrix, begin, part);
    for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], kMxfp4Values[static_cast<size_t>(begin) + i]);
  }
}

// The scale 255 stands for NaN; weights that are not finite are refused when they are loaded.
TEST(Mxfp4, TheLastScaleGivesNoNumbers) {
  const std::vector<uint8_t> blocks(16, 0x10), scales = {255};
  std::vector<float> values(2);
  decode_mxfp4_transposed({blocks, scales, 1, 32}, 0, values);
  EXPECT_TRUE(std::isnan(values[0]) && std::isinf(values[1]));
}

TEST(Mxfp4, RefusesSizesThatDoNotFit) {
  std::vector<float> values(3);
  EXPECT_THROW(decode_mxfp4_transposed({kMxfp4Blocks, kMxfp4Scales, 2, 32}, 0, values), Error);
  EXPECT_THROW(decode_mxfp4_transposed({kMxfp4Blocks, kMxfp4Scales, 2, 64}, 126, values), Error);
}

}  // namespace
}  // namespace tessera
