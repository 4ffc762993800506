#include <gtest/gtest.h>

#include <vector>

#include "tensor/arena.h"

namespace tessera {
namespace {

TEST(TensorView, RowsAndReshapeShareMemory) {
  std::vector<float> data = {0, 1, 2, 3, 4, 5};
  const TensorView view(data.data(), DType::kF32, {3, 2});
  const TensorView row = view.rows(1, 2);
  EXPECT_EQ(row.shape(), (Shape{1, 2}));
  EXPECT_EQ(row.as<float>()[0], 2);
  EXPECT_EQ(view.reshaped({6}).dim(0), 6);
  EXPECT_THROW(view.reshaped({5}), Error);
  EXPECT_THROW(view.rows(2, 4), Error);
  EXPECT_THROW(view.as<bf16>(), Error);
}

TEST(Arena, MeasuresWhatItLaterHandsOut) {
  const auto build = [](Arena& arena) {
    arena.allocate_bytes(12);
    const Arena::Mark mark = arena.mark();
    arena.allocate_bytes(1000);
    arena.release(mark);
    arena.allocate_bytes(1);
  };
  Arena measuring = Arena::measuring();
  build(measuring);
  const DeviceBuffer block = host_device().allocate(measuring.high_water_bytes());
  Arena arena(block);
  build(arena);
  EXPECT_EQ(arena.high_water_bytes(), measuring.high_water_bytes());
  EXPECT_EQ(measuring.high_water_bytes(), 64 + 1024);
  EXPECT_THROW(arena.allocate_bytes(2000), Error);
}

TEST(DType, NamesRoundTrip) {
  for (const char* name : {"BF16", "F16", "F32", "F64", "I64", "I32", "U8", "BOOL", "F8_E5M2"}) {
    ASSERT_TRUE(parse_dtype(name).has_value()) << name;
    EXPECT_EQ(dtype_name(*parse_dtype(name)), name);
  }
  EXPECT_FALSE(parse_dtype("bf16").has_value());
}

}  // namespace
}  // namespace tessera
