#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "kernels/amx/pack-inl.h"
#include "kernels/dispatch.h"

namespace tessera::amx {
namespace {

constexpr int64_t kStride = 37;  // odd: no row is aligned

using Element = std::function<bf16(int64_t row, int64_t column)>;
using Pack = void (*)(const bf16* from, int64_t stride, int64_t rows, int64_t columns, bf16* tile);
using PackWhole = void (*)(const bf16* from, int64_t stride, bf16* tile);

struct Packing {
  const char* name;
  int64_t max_rows, max_columns;
  Pack pack;
  PackWhole pack_whole;
  // Position in the tile of element (row, column) of the matrix.
  int64_t (*position)(int64_t row, int64_t column);
};

// The table in pack-inl.h, as positions.
const Packing kPackings[] = {
    {"copy_tile", 16, 32, copy_tile, copy_tile, [](int64_t i, int64_t k) { return i * 32 + k; }},
    {"transpose_tile", 32, 16, transpose_tile, transpose_tile,
     [](int64_t k, int64_t i) { return i * 32 + k; }},
    {"interleave_tile", 32, 16, interleave_tile, interleave_tile,
     [](int64_t k, int64_t j) { return k / 2 * 32 + 2 * j + k % 2; }},
    {"pair_tile", 16, 32, pair_tile, pair_tile,
     [](int64_t j, int64_t k) { return k / 2 * 32 + 2 * j + k % 2; }},
};

class AmxPack : public testing::Test {
 protected:
  void SetUp() override {
    if (!machine_refusal(Isa::kAmxBf16).empty()) GTEST_SKIP() << machine_refusal(Isa::kAmxBf16);
  }
};

// Part of a matrix that ends where its buffer ends, so that AddressSanitizer sees a single element too many.
std::vector<bf16> matrix(int64_t rows, int64_t columns) {
  std::vector<bf16> elements(static_cast<size_t>((rows - 1) * kStride + columns));
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = {static_cast<uint16_t>(i + 1)};
  return elements;
}

std::vector<uint16_t> expected_tile(const Packing& packing, const std::vector<bf16>& from, int64_t rows,
                                    int64_t columns) {
  std::vector<uint16_t> tile(kTileElements, 0);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      tile[static_cast<size_t>(packing.position(i, j))] = from[static_cast<size_t>(i * kStride + j)].bits;
    }
  }
  return tile;
}

struct alignas(64) Tile {
  bf16 elements[kTileElements];
  Tile() {
    for (bf16& element : elements) element = {0xFFFF};
  }
  std::vector<uint16_t> bits() const {
    std::vector<uint16_t> result;
    for (const bf16 element : elements) result.push_back(element.bits);
    return result;
  }
};

TEST_F(AmxPack, EveryElementHasItsPlaceAndTheRestIsZero) {
  for (const Packing& packing : kPackings) {
    for (int64_t rows = 1; rows <= packing.max_rows; ++rows) {
      for (int64_t columns = 1; columns <= packing.max_columns; ++columns) {
        const std::vector<bf16> from = matrix(rows, columns);
        Tile tile;
        packing.pack(from.data(), kStride, rows, columns, tile.elements);
        ASSERT_EQ(tile.bits(), expected_tile(packing, from, rows, columns))
            << packing.name << " " << rows << " x " << columns;
      }
    }
  }
}

TEST_F(AmxPack, WholeTilesNeedNoCounts) {
  for (const Packing& packing : kPackings) {
    const std::vector<bf16> from = matrix(packing.max_rows, packing.max_columns);
    Tile tile;
    packing.pack_whole(from.data(), kStride, tile.elements);
    EXPECT_EQ(tile.bits(), expected_tile(packing, from, packing.max_rows, packing.max_columns))
        << packing.name;
  }
}

}  // namespace
}  // namespace tessera::amx
