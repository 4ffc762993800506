#include "kernels/quantized_weight/nf4_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace tessera {
namespace {

using testing::ElementsAre;

// Matrices of K columns, laid one after another.
class Nf4Matrix {
 public:
  Nf4Matrix(Quantization kind, int64_t K, const std::vector<std::vector<float>>& parts) {
    int64_t rows = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) matrix_.later_parts[i - 1] = rows;
      rows += std::ssize(parts[i]) / K;
    }
    matrix_.kind = kind;
    matrix_.N = rows;
    matrix_.K = K;
    memory_.resize(static_cast<size_t>(matrix_.size_bytes()));
    matrix_.data = memory_.data();
    ThreadPool pool(2);
    int64_t first_row = 0;
    for (const std::vector<float>& part : parts) {
      Nf4Quantizer(matrix_, first_row).add(part, pool);
      first_row += std::ssize(part) / K;
    }
  }

  ConstQuantizedMatrix view() const {
    return {matrix_.kind, matrix_.data, matrix_.N, matrix_.K, matrix_.later_parts};
  }
  const uint8_t* scale_codes() const { return reinterpret_cast<const uint8_t*>(matrix_.scales()); }
  const float* steps() const { return reinterpret_cast<const float*>(matrix_.steps()); }
  int code(int64_t element) const {
    const int64_t row = element / matrix_.K, k = element % matrix_.K;
    return static_cast<int>(matrix_.codes(row)[k / 2] >> (k % 2 == 0 ? 4 : 0)) & 15;
  }
  std::vector<int> codes(int64_t begin, int64_t end) const {
    std::vector<int> result;
    for (int64_t i = begin; i < end; ++i) result.push_back(code(i));
    return result;
  }
  float scale(int64_t element) const {
    float scales[2];
    nf4_scales(view(), element / matrix_.K, element % matrix_.K, 1, scales);
    return scales[0];
  }
  float value(int64_t element) const { return kNf4Values[code(element)] * scale(element); }

 private:
  QuantizedMatrix<std::byte> matrix_;
  std::vector<std::byte> memory_;
};

double hashed(uint64_t i) { return static_cast<double>(i * 2654435761 % (uint64_t{1} << 32)) / 0x1p32 - 0.5; }

// bitsandbytes 0.50.2 on the CPU: quantize_4bit(blocksize=64, quant_type="nf4", compress_statistics=True).
TEST(Nf4Blocks, RunAcrossRowsAsInBitsandbytes) {
  std::vector<float> w;
  for (uint64_t i = 0; i < 9 * 112; ++i) {
    const double x = hashed(i);
    w.push_back(static_cast<float>(x * x * x * static_cast<double>(1 + i / 64 % 5) * 0.25));
  }
  const Nf4Matrix matrix(Quantization::kNf4Double, 112, {w});
  EXPECT_FLOAT_EQ(matrix.steps()[0], 0.0876349583f);
  EXPECT_FLOAT_EQ(matrix.steps()[1], 0.0679298565f);
  EXPECT_THAT(std::vector<int>(matrix.scale_codes(), matrix.scale_codes() + 16),
              ElementsAre(12, 42, 178, 221, 249, 11, 41, 176, 219, 255, 10, 43, 149, 220, 250, 11));
  EXPECT_THAT(matrix.codes(60, 76), ElementsAre(2, 8, 6, 14, 7, 4, 9, 7, 0, 7, 6, 12, 7, 2, 8, 7));
  EXPECT_THAT(matrix.codes(100, 124),
              ElementsAre(10, 7, 1, 7, 6, 13, 7, 3, 9, 7, 15, 7, 5, 11, 7, 1, 8, 6, 14, 7, 4, 9, 7, 0));
}

TEST(Nf4Blocks, ScalesAreCodedInGroupsOf256AsInBitsandbytes) {
  std::vector<float> w;
  for (uint64_t i = 0; i < 300 * 64; ++i)
    w.push_back(static_cast<float>(hashed(i) * static_cast<double>(1 + i / 64 % 7) * 0.25));
  const Nf4Matrix matrix(Quantization::kNf4Double, 64, {w});
  EXPECT_FLOAT_EQ(matrix.steps()[0], 0.494471222f);
  EXPECT_FLOAT_EQ(matrix.steps()[1], 0.380077869f);
  EXPECT_FLOAT_EQ(matrix.steps()[2], 0.379353434f);
  const uint8_t* codes = matrix.scale_codes();
  EXPECT_THAT(std::vector<int>(codes, codes + 8), ElementsAre(1, 24, 48, 158, 206, 231, 252, 1));
  EXPECT_THAT(std::vector<int>(codes + 254, codes + 262), ElementsAre(48, 158, 206, 231, 252, 1, 24, 48));
  EXPECT_EQ(std::accumulate(codes, codes + 300, 0), 38424);
  // torch takes the mean in float32.
  EXPECT_NEAR(matrix.value(5), -0.0852213949f, 2e-7f);
  EXPECT_NEAR(matrix.value(299 * 64 + 63), 0.182892337f, 2e-7f);
}

TEST(DynamicMap, HasTheValuesOfBitsandbytes) {
  const auto& map = dynamic_map();
  EXPECT_TRUE(std::ranges::is_sorted(map));
  EXPECT_EQ(map[0], -0.992968738079071f);
  EXPECT_EQ(map[1], -0.9789062738418579f);
  EXPECT_EQ(map[127], 0);
  EXPECT_EQ(map[128], 5.50000038e-07f);
  EXPECT_EQ(map[143], 0.00128124992f);
  EXPECT_EQ(map[234], 0.711718798f);
  EXPECT_EQ(map[255], 1);
  EXPECT_NEAR(std::accumulate(map.begin(), map.end(), 0.0), 1, 1e-6);
}

// Every weight becomes the nearest of the 16 values of its block, whatever the width.
TEST(Nf4Blocks, TakeTheNearestOfTheirValues) {
  for (const int64_t K : {1, 63, 64, 129, 112, 1000}) {
    std::vector<float> w;
    for (int64_t i = 0; i < 7 * K; ++i) w.push_back(static_cast<float>(hashed(static_cast<uint64_t>(i))));
    const Nf4Matrix matrix(Quantization::kNf4, K, {w});
    for (int64_t i = 0; i < std::ssize(w); ++i) {
      const int64_t begin = i / 64 * 64, end = std::min(begin + 64, std::ssize(w));
      float largest = 0;
      for (int64_t j = begin; j < end; ++j) largest = std::max(largest, std::abs(w[static_cast<size_t>(j)]));
      ASSERT_EQ(matrix.scale(i), largest) << K << ' ' << i;
      const double wanted = w[static_cast<size_t>(i)];
      double nearest = HUGE_VAL;
      for (const float value : kNf4Values) nearest = std::min(nearest, std::abs(value * largest - wanted));
      ASSERT_NEAR(std::abs(matrix.value(i) - wanted), nearest, 1e-6 * largest) << K << ' ' << i;
    }
  }
}

// q, k and v are one matrix here and three there.
TEST(Nf4Blocks, BeginAnewInEveryMatrixThatIsLaidInOne) {
  for (const Quantization kind : {Quantization::kNf4, Quantization::kNf4Double}) {
    std::vector<std::vector<float>> parts(3);
    for (size_t part = 0; part < 3; ++part) {
      for (uint64_t i = 0; i < (part + 2) * 100; ++i)
        parts[part].push_back(static_cast<float>(hashed(i + 1000 * part) * static_cast<double>(part + 1)));
    }
    const Nf4Matrix joined(kind, 100, parts);
    int64_t before = 0;
    for (const std::vector<float>& part : parts) {
      const Nf4Matrix alone(kind, 100, {part});
      for (int64_t i = 0; i < std::ssize(part); ++i) ASSERT_EQ(joined.value(before + i), alone.value(i)) << i;
      before += std::ssize(part);
    }
  }
}

}  // namespace
}  // namespace tessera
