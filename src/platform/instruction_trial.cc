#include "platform/instruction_trial.h"

#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace tessera {
namespace {

constexpr std::array<int, 4> kFaults = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};

// Where this thread's trial resumes after a fault; null: no trial is running.
thread_local sigjmp_buf* way_out = nullptr;
std::array<struct sigaction, kFaults.size()> former_actions;

// If the faulting thread is not in a trial, restores the previous handler, which gets the fault when the
// instruction runs again.
void leave_trial(int number) {
  if (way_out != nullptr) siglongjmp(*way_out, number);
  const auto place = std::find(kFaults.begin(), kFaults.end(), number) - kFaults.begin();
  sigaction(number, &former_actions[static_cast<size_t>(place)], nullptr);
}

// Installs handlers for the faults, and unblocks them on this thread, until the scope ends.
class FaultScope {
 public:
  explicit FaultScope(sigjmp_buf* place) {
    way_out = place;
    struct sigaction action = {};
    action.sa_handler = leave_trial;
    action.sa_flags = SA_ONSTACK;
    sigset_t faults;
    sigemptyset(&faults);
    for (size_t i = 0; i < kFaults.size(); ++i) {
      sigaddset(&faults, kFaults[i]);
      sigaction(kFaults[i], &action, &former_actions[i]);
    }
    pthread_sigmask(SIG_UNBLOCK, &faults, &former_mask_);
  }
  ~FaultScope() {
    pthread_sigmask(SIG_SETMASK, &former_mask_, nullptr);
    for (size_t i = 0; i < kFaults.size(); ++i) sigaction(kFaults[i], &former_actions[i], nullptr);
    way_out = nullptr;
  }
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;

 private:
  sigset_t former_mask_;
};

// Hides the value from the compiler, so that it cannot compute the result itself.
template <typename Scalar>
Scalar opaque(Scalar value) {
  asm volatile("" : "+m"(value));
  return value;
}

// Not _mm512_permutexvar_epi8(), because GCC 12 warns about its own _mm512_undefined_epi32() in it (GCC bug
// 105593).
__attribute__((target("avx512f,avx512vbmi"))) __m512i permute_bytes(__m512i places, __m512i bytes) {
  return _mm512_maskz_permutexvar_epi8(~uint64_t{0}, places, bytes);
}

template <typename Element, size_t kCount>
bool all_equal(const std::array<Element, kCount>& values, Element expected) {
  return std::all_of(values.begin(), values.end(), [&](Element value) { return value == expected; });
}

}  // namespace

std::string try_instructions(bool (*works)()) {
  sigjmp_buf place;
  const FaultScope scope(&place);
  if (const int number = sigsetjmp(place, /*savemask=*/1); number != 0) {
    std::string text = sigdescr_np(number);
    text[0] = static_cast<char>(text[0] | 0x20);
    return fmt::format("SIG{} ({})", sigabbrev_np(number), text);
  }
  return works() ? "" : "a wrong result";
}

__attribute__((target("avx2,fma,f16c,bmi,bmi2,lzcnt"))) bool avx2_works() {
  std::array<float, 8> floats = {};
  const __m256 three = _mm256_set1_ps(opaque(3));
  const __m256 product = _mm256_fmadd_ps(three, _mm256_set1_ps(opaque(5)), _mm256_set1_ps(opaque(7)));
  _mm256_storeu_ps(floats.data(), _mm256_cvtph_ps(_mm256_cvtps_ph(product, 0)));
  std::array<int32_t, 8> integers = {};
  const __m256i ascending = _mm256_set_epi32(opaque(7), 6, 5, 4, 3, 2, 1, 0);
  const __m256i descending =
      _mm256_permutevar8x32_epi32(ascending, _mm256_set_epi32(opaque(0), 1, 2, 3, 4, 5, 6, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(integers.data()), _mm256_add_epi32(ascending, descending));
  return all_equal(floats, 22.0f) && all_equal(integers, 7) && _lzcnt_u64(opaque(uint64_t{256})) == 55 &&
         _pext_u64(opaque(uint64_t{0xF0F0}), opaque(uint64_t{0xFF00})) == 0xF0 &&
         _andn_u64(opaque(uint64_t{3}), opaque(uint64_t{6})) == 4;
}

__attribute__((target("avx2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"))) bool avx512_works() {
  std::array<float, 16> floats = {};
  const __m512 three = _mm512_set1_ps(opaque(3));
  _mm512_storeu_ps(floats.data(),
                   _mm512_fmadd_ps(three, _mm512_set1_ps(opaque(5)), _mm512_set1_ps(opaque(7))));
  const __m512i zero = _mm512_set1_epi32(opaque(0));
  const __mmask16 conflicts =
      _mm512_cmpeq_epi32_mask(_mm512_conflict_epi32(zero), zero);  // all but the first
  const __m512i twelve = _mm512_mullo_epi64(_mm512_set1_epi64(opaque(3)), _mm512_set1_epi64(opaque(4)));
  const __m512i halves = _mm512_add_epi16(zero, _mm512_set1_epi16(opaque(9)));
  const __m256i ones = _mm256_set1_epi32(opaque(-1));
  const __m256i exclusive_or = _mm256_ternarylogic_epi32(ones, ones, ones, 0x96);
  return all_equal(floats, 22.0f) && conflicts == 1 &&
         _mm512_cmpeq_epi64_mask(twelve, _mm512_set1_epi64(opaque(12))) == 0xFF &&
         _mm512_cmpeq_epi16_mask(halves, _mm512_set1_epi16(opaque(9))) == 0xFFFFFFFFu &&
         _mm256_cmpeq_epi32_mask(exclusive_or, ones) == 0xFF;
}

__attribute__((
    target("avx2,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni,avx512bitalg,"
           "avx512vpopcntdq,vpclmulqdq,vaes,gfni"))) bool
avx512_dl_works() {
  const __m512i three = _mm512_set1_epi8(opaque(3));
  const __m512i zero = _mm512_set1_epi32(opaque(0));
  const auto bytes_equal = [](__m512i a, char b) __attribute__((target("avx512f,avx512bw"))) {
    return _mm512_cmpeq_epi8_mask(a, _mm512_set1_epi8(b)) == ~uint64_t{0};
  };
  const __m512i permuted = permute_bytes(three, three);
  const __m512i shifted = _mm512_shldi_epi16(three, zero, 2);      // 0x0303 << 2
  const __m512i counted = _mm512_popcnt_epi8(three);               // BITALG
  const __m512i counted_wide = _mm512_popcnt_epi64(three);         // 8 bytes with 2 bits each
  const __m512i summed = _mm512_dpbusd_epi32(zero, three, three);  // 4 x 9
  const __m512i carry_less = _mm512_clmulepi64_epi128(_mm512_set1_epi64(3), _mm512_set1_epi64(opaque(3)), 0);
  const __m512i encrypted = _mm512_aesenc_epi128(zero, zero);  // the S-box of 0 is 0x63 everywhere
  const __m512i product = _mm512_gf2p8mul_epi8(three, three);  // (x + 1)^2 = x^2 + 1
  return bytes_equal(permuted, 3) && bytes_equal(counted, 2) && bytes_equal(encrypted, 0x63) &&
         bytes_equal(product, 5) &&
         _mm512_cmpeq_epi16_mask(shifted, _mm512_set1_epi16(0x0C0C)) == 0xFFFFFFFFu &&
         _mm512_cmpeq_epi64_mask(counted_wide, _mm512_set1_epi64(16)) == 0xFF &&
         _mm512_cmpeq_epi32_mask(summed, _mm512_set1_epi32(36)) == 0xFFFF &&
         _mm512_cmpeq_epi64_mask(carry_less, _mm512_set_epi64(0, 5, 0, 5, 0, 5, 0, 5)) == 0xFF;
}

__attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512bf16"))) bool avx512_bf16_works() {
  const __m512 three = _mm512_set1_ps(opaque(3)), five = _mm512_set1_ps(opaque(5));
  std::array<float, 16> sums = {};
  _mm512_storeu_ps(sums.data(), _mm512_dpbf16_ps(three, _mm512_cvtne2ps_pbh(three, five),
                                                 _mm512_cvtne2ps_pbh(five, three)));
  return all_equal(sums, 33.0f);
}

__attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512vbmi,avx512bf16,amx-tile,amx-bf16"))) bool
amx_bf16_works() {
  alignas(64) std::array<uint16_t, 512> threes = {}, fives = {};
  threes.fill(0x4040);  // bf16
  fives.fill(0x40A0);
  alignas(64) std::array<float, 256> sums = {};
  asm volatile("" : : "m"(kTileConfig), "m"(threes), "m"(fives));
  _tile_loadconfig(&kTileConfig);
  _tile_zero(7);
  _tile_loadd(5, threes.data(), 64);
  _tile_stream_loadd(6, fives.data(), 64);
  _tile_dpbf16ps(7, 5, 6);
  _tile_stored(7, sums.data(), 64);
  _tile_release();
  asm volatile("" : "+m"(sums));
  const __m512i three = _mm512_set1_epi8(opaque(3));
  const __m512i permuted = permute_bytes(three, three);
  return all_equal(sums, 32 * 15.0f) && _mm512_cmpeq_epi8_mask(permuted, three) == ~uint64_t{0};
}

__attribute__((target("avx512f,amx-tile,amx-int8"))) bool amx_int8_works() {
  alignas(64) std::array<int8_t, 1024> threes = {}, fives = {};
  threes.fill(3);
  fives.fill(-5);
  alignas(64) std::array<int32_t, 256> sums = {};
  asm volatile("" : : "m"(kTileConfig), "m"(threes), "m"(fives));
  _tile_loadconfig(&kTileConfig);
  _tile_zero(7);
  _tile_loadd(5, threes.data(), 64);
  _tile_stream_loadd(6, fives.data(), 64);
  _tile_dpbssd(7, 5, 6);
  _tile_stored(7, sums.data(), 64);
  _tile_release();
  asm volatile("" : "+m"(sums));
  return all_equal(sums, 64 * -15);
}

bool illegal_instruction() {
  asm volatile("ud2");
  return true;
}

}  // namespace tessera
