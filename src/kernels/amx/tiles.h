// The tile registers of Intel AMX as used by every AMX kernel here: eight registers of 16 rows of 64 bytes.
// Operands are zero-padded at the edges when packed, so no kernel needs another configuration.
//
//   C (float32)  16 rows x 16 columns
//   A (bf16)     16 rows x 32 columns of the contraction
//   B (bf16)     16 pairs of the contraction x 16 columns: row p holds (b[2p][0], b[2p+1][0], b[2p][1], ...)
//
// TDPBF16PS: C += A B. Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter 20.
//
// Code for AMX is placed between TESSERA_AMX_BEGIN and TESSERA_AMX_END, after every #include, in a .cc file
// that is reached only through a dispatch table row with Isa::kAmxBf16 (and amx_int8_refusal for 8-bit
// products). The two macros switch the compiler's instruction sets for the functions between them, lambdas
// included, so that no file needs its own flags and no inline code from other headers is compiled for these
// sets.
#pragma once

// GCC 12 warns about its own _mm512_undefined_*() wherever an intrinsic that uses it is inlined (GCC bug
// 105593). What matters is where the intrinsics are first included, so AMX files include nothing with
// intrinsics before this header.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstdint>

#include "platform/instruction_trial.h"

#define TESSERA_AMX_TARGET \
  "amx-tile,amx-bf16,amx-int8,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16,avx512vbmi,fma,bmi2"
#define TESSERA_AMX_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TESSERA_AMX_PUSH(target_text) \
  TESSERA_AMX_PRAGMA(clang attribute push(__attribute__((target(target_text))), apply_to = function))
#define TESSERA_AMX_BEGIN TESSERA_AMX_PUSH(TESSERA_AMX_TARGET)
#define TESSERA_AMX_END TESSERA_AMX_PRAGMA(clang attribute pop)
#else
#define TESSERA_AMX_PUSH(target_text) \
  TESSERA_AMX_PRAGMA(GCC push_options) TESSERA_AMX_PRAGMA(GCC target target_text)
#define TESSERA_AMX_BEGIN TESSERA_AMX_PUSH(TESSERA_AMX_TARGET)
#define TESSERA_AMX_END TESSERA_AMX_PRAGMA(GCC pop_options)
#endif

namespace tessera::amx {

inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kTileRowBytes = 64;
inline constexpr int64_t kTileBytes = kTileRows * kTileRowBytes;
inline constexpr int64_t kTileDepth = 32;    // bf16 elements of the contraction per tile
inline constexpr int64_t kTileColumns = 16;  // float32 columns of C
inline constexpr int64_t kTileFloats = kTileRows * kTileColumns;

static_assert(kTileConfig.rows[0] == kTileRows && kTileConfig.row_bytes[0] == kTileRowBytes);

// Configures the calling thread's registers and releases them. One per body of a parallel loop. Code must not
// rely on the registers' contents from one scope to the next.
class TileScope {
 public:
  __attribute__((target("amx-tile"))) TileScope() {
    asm volatile(""
                 :
                 : "m"(kTileConfig));  // as far as the compiler knows, GCC 12's intrinsic reads only 8 bytes
    _tile_loadconfig(&kTileConfig);
  }
  __attribute__((target("amx-tile"))) ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

}  // namespace tessera::amx
