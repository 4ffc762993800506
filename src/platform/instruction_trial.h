// Whether instructions that the processor announces also work. A hypervisor or an emulator may announce what
// it does not pass through, and a damaged processor may compute wrong results.
#pragma once

#include <string>

namespace tessera {

// Runs `works` on the calling thread. "" when it returns true, otherwise what happened instead: "SIGILL
// (illegal instruction)", "a wrong result". A fault of another thread meanwhile is handled as ever.
//
// The calling thread catches the signal instead of leaving a child process to die of it: that takes
// microseconds, works where no process may be started and disturbs nobody who waits for children. Nothing has
// to be isolated: a trial changes registers and its own stack, and the kernel resets vector and tile
// registers before it calls the handler.
std::string try_instructions(bool (*works)());

// One of each kind of instruction that code for the set is made of, on values whose results are exact.
bool sse42_works();
bool avx2_works();
bool avx512_works();     // F, BW, CD, DQ, VL
bool avx512_dl_works();  // VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ, VPCLMULQDQ, VAES, GFNI
bool avx512_bf16_works();
bool amx_bf16_works();  // with the kernel's permission for tiles

// What a trial of an instruction set that does not work looks like: executes UD2.
bool illegal_instruction();

}  // namespace tessera
