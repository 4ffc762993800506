// oneDNN matrix products, with everything expensive cached between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/dispatch.h"
#include "platform/cpu.h"
#include "tensor/dtype.h"

namespace tessera {

// c_mn = or += a b + bias_n with row-major matrices without gaps:
enum class Layout : uint8_t {
  kForward,  // a [m, k], b stored [n, k]
  kInput,    // a [m, k], b stored [k, n]
  kWeight,   // a stored [k, m], b stored [k, n]
};

struct OneDnnProduct {
  Layout layout;
  DType dtype;         // of a, b and bias
  DType result_dtype;  // of c
  bool has_bias;
  bool add;  // c += rather than c =
  int64_t m, n, k;

  bool operator==(const OneDnnProduct&) const = default;
};

// Per thread of the pool. The largest scratchpad seen for slices of up to 256 rows and 512 tokens is 0.9 MiB
// (float32 backward_weight); a product that needs more keeps its own buffer inside oneDNN.
inline constexpr int64_t kOneDnnScratchpadBytes = 2 << 20;

// Runs the product on the calling thread alone. The first call of a shape on a thread compiles it (about 1
// ms); later calls take it from that thread's cache. `scratchpad` holds kOneDnnScratchpadBytes; `bias` may be
// null. Float32 stays float32 regardless of DNNL_DEFAULT_FPMATH_MODE.
void run_onednn(const OneDnnProduct& product, const void* a, const void* b, const void* bias, void* c,
                std::byte* scratchpad);

// The scratchpad size oneDNN requests, for the test that kOneDnnScratchpadBytes is enough.
int64_t onednn_scratchpad_bytes(const OneDnnProduct& product);

// Number of products compiled by the calling thread, for tests of the bound.
int64_t num_onednn_products();

// Row-major c_mn = beta c + op(a) op(b) in float32 with leading dimensions, as in BLAS.
void onednn_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a,
                  int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

// Row-major c_mn = a_mk op(b_kn), exact sums of products of 8-bit numbers; c without gaps. Needs onednn_isa()
// of kAvx512Bf16 or more: below, oneDNN saturates.
void onednn_igemm(bool transpose_b, int64_t m, int64_t n, int64_t k, const int8_t* a, int64_t lda,
                  const int8_t* b, int64_t ldb, int32_t* c, int64_t ldc);

std::string onednn_version();  // of the library in use: "2.7.2"

// The instruction sets oneDNN may use.
struct OneDnnLimit {
  Isa isa = Isa::kRef;
  std::string reason;  // why it may not use all that the processor reports; "" = it may
};

// The rule, for a machine whose strongest working instruction set is `strongest` and whose faults are
// CpuFeatures::fault. oneDNN queries CPUID itself. It lays out tile registers as leaf 1DH describes them:
// where a hypervisor hides that leaf it configures none, and its first tile instruction faults. Our own AMX
// kernels know the layout.
OneDnnLimit onednn_limit(Isa strongest, const TileInformation& tiles, const std::string& fault);
// The limit on this machine, regardless of TESSERA_ISA.
const OneDnnLimit& machine_onednn_limit();
// The strongest instruction set that oneDNN uses in this process: the machine's limit, capped by isa_limit().
Isa onednn_isa();
// For programs that ship their own oneDNN, as PyTorch does: "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" if the
// limit has a reason, otherwise "".
std::string onednn_environment(const OneDnnLimit& limit);

// Restricts oneDNN to onednn_isa(); must run before the first product. The refusal function of oneDNN's rows
// in gemm_table(): "", or why oneDNN cannot be restricted.
std::string limit_onednn();
// The refusal function of the AMX row: also gives the reason why oneDNN does not use AMX.
std::string onednn_amx_refusal();

}  // namespace tessera
