// Tests whether instructions that the processor reports actually work. A hypervisor or an emulator may report
// what it does not pass through, and a damaged processor may compute wrong results.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace tessera {

// Runs `works` on the calling thread. Returns "" if it returns true, otherwise what happened instead: "SIGILL
// (illegal instruction)", "a wrong result". A fault in another thread at that time is handled as usual.
//
// The calling thread catches the signal rather than let a child process die of it: that takes microseconds,
// works where no process may be started and does not disturb waits for children. Nothing needs isolating: a
// trial changes only registers and its own stack, and the kernel resets vector and tile registers before it
// calls the handler.
std::string try_instructions(bool (*works)());

// One instruction of each kind used by code for the set, on values whose results are exact.
bool avx2_works();
bool avx512_works();     // F, BW, CD, DQ, VL
bool avx512_dl_works();  // VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ, VPCLMULQDQ, VAES, GFNI
bool avx512_bf16_works();
bool amx_bf16_works();  // requires the kernel's permission for tiles
bool amx_int8_works();  // likewise

// Stands in for a trial of a broken instruction set: executes UD2.
bool illegal_instruction();

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
