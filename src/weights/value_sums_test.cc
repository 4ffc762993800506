#include "weights/value_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace tessera {
namespace {

Parameter named(const char* name) {
  Parameter parameter;
  parameter.name = name;
  return parameter;
}

const Parameter kOne = named("model.layers.0.mlp.up_proj.weight");

ValueSums sums_of(const std::vector<float>& values, const Parameter& parameter = kOne) {
  ValueSums sums;
  sums.add(parameter, 0, values);
  return sums;
}

std::vector<float> drawn_values() {
  std::vector<float> values;
  const CounterRng rng(7, 1);
  // Values as large as weights are, down to those below what F16 has.
  for (int i = 0; i < 5000; ++i)
    values.push_back(std::ldexp(rng.normal(static_cast<uint64_t>(i)), -(i % 30)));
  return values;
}

TEST(ValueSums, DoNotDependOnPiecesAndOrder) {
  const std::vector<float> values = drawn_values();
  const std::span<const float> all = values;
  ValueSums pieces, later;
  later.add(kOne, 3000, all.subspan(3000));
  pieces.add(kOne, 1700, all.subspan(1700, 1300));
  pieces.add(kOne, 0, all.first(1700));
  pieces += later;
  EXPECT_EQ(pieces, sums_of(values));
}

TEST(ValueSums, ChangeWithEveryElementItsPlaceAndItsTensor) {
  std::vector<float> values = drawn_values();
  const ValueSums sums = sums_of(values);
  EXPECT_FALSE(same_model(sums, sums_of(values, named("model.layers.1.mlp.up_proj.weight"))));
  for (const size_t i : {size_t{0}, size_t{17}, values.size() - 1}) {
    std::vector<float> other = values;
    other[i] += 0.01f * other[i];  // more than BF16 rounds off
    EXPECT_FALSE(same_model(sums, sums_of(other))) << i;
    other = values;
    std::swap(other[i], other[(i + 1) % other.size()]);
    EXPECT_FALSE(same_model(sums, sums_of(other))) << i;
    other = values;
    other[i] = std::nextafter(other[i], 9.0f);
    EXPECT_FALSE(same_model(sums, sums_of(other))) << i;
  }
}

TEST(ValueSums, KnowAModelThatIsSavedAgainAsAnotherType) {
  const std::vector<float> values = drawn_values();
  std::vector<float> as_bf16, as_f16, bf16_as_f16;
  std::vector<bf16> stored;
  for (const float value : values) {
    stored.push_back(to_bf16(value));
    as_bf16.push_back(to_float(stored.back()));
    as_f16.push_back(to_float(to_f16(value)));
    bf16_as_f16.push_back(to_float(to_f16(as_bf16.back())));
  }
  ValueSums of_stored;
  of_stored.add(kOne, 0, stored);
  EXPECT_EQ(of_stored, sums_of(as_bf16));
  EXPECT_TRUE(same_model(of_stored, sums_of(values)));
  EXPECT_TRUE(same_model(sums_of(values), of_stored));
  EXPECT_TRUE(same_model(sums_of(values), sums_of(as_f16)));
  EXPECT_TRUE(same_model(sums_of(bf16_as_f16), of_stored));
  EXPECT_FALSE(same_model(sums_of(as_f16), of_stored));
}

TEST(ValueSums, TakeZerosOfBothSignsForOneValue) {
  EXPECT_EQ(sums_of({0.0f, -0.0f}), sums_of({-0.0f, 0.0f}));
}

}  // namespace
}  // namespace tessera
