// oneDNN matrix products with everything that is slow kept from one call to the next.
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
  bool add;  // c += instead of c =
  int64_t m, n, k;

  bool operator==(const OneDnnProduct&) const = default;
};

// Per thread of the pool. The largest scratchpad seen for slices of up to 256 rows and 512 tokens is 0.9 MiB
// (float32 backward_weight); a product that wants more keeps a buffer of its own inside oneDNN.
inline constexpr int64_t kOneDnnScratchpadBytes = 2 << 20;

// Runs the product on the calling thread alone. The first call of a shape on a thread compiles it (about 1
// ms); later ones take it from a table of that thread. `scratchpad` holds kOneDnnScratchpadBytes; `bias` may
// be null. Float32 stays float32 whatever DNNL_DEFAULT_FPMATH_MODE says.
void run_onednn(const OneDnnProduct& product, const void* a, const void* b, const void* bias, void* c,
                std::byte* scratchpad);

// What the product asks for: for the test that kOneDnnScratchpadBytes is enough.
int64_t onednn_scratchpad_bytes(const OneDnnProduct& product);

// Number of products compiled by the calling thread: for tests of the bound.
int64_t num_onednn_products();

// Row-major c_mn = beta c + op(a) op(b) in float32 with leading dimensions, as in BLAS.
void onednn_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a,
                  int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

// What oneDNN may use.
struct OneDnnLimit {
  Isa isa = Isa::kRef;
  std::string reason;  // why not all that the processor announces; "" = it may
};

// The rule, on a machine whose strongest instruction set that works is `strongest` and whose faults are
// CpuFeatures::fault. oneDNN asks CPUID by itself. It lays out tile registers as leaf 1DH describes them:
// where a hypervisor hides that leaf it configures none, and its first tile instruction is an illegal one.
// Our own kernels for AMX know the layout.
OneDnnLimit onednn_limit(Isa strongest, const TileInformation& tiles, const std::string& fault);
// Of this machine, whatever TESSERA_ISA says.
const OneDnnLimit& machine_onednn_limit();
// The strongest instruction set that oneDNN uses in this process: the machine's limit, cut to isa_limit().
Isa onednn_isa();
// For programs that bring a oneDNN of their own, as PyTorch does: "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" where
// the limit has a reason, otherwise "".
std::string onednn_environment(const OneDnnLimit& limit);

// Keeps oneDNN from instruction sets above onednn_isa(); before the first product, or it is too late. The
// refusal function of its rows in gemm_table(): "" or why oneDNN cannot be limited.
std::string limit_onednn();
// Of the row for AMX: also the reason why oneDNN does not use it.
std::string onednn_amx_refusal();

}  // namespace tessera
