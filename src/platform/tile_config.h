// The configuration of the AMX tile registers that all code here uses.
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

// For LDTILECFG: all eight registers have 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  std::array<uint8_t, 14> reserved = {};
  std::array<uint16_t, 16> row_bytes = {64, 64, 64, 64, 64, 64, 64, 64};
  std::array<uint8_t, 16> rows = {16, 16, 16, 16, 16, 16, 16, 16};
};
inline constexpr TileConfig kTileConfig;

}  // namespace tessera
