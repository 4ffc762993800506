#include "kernels/gemm/onednn_products.h"

#include <algorithm>
#include <array>
#include <dnnl.hpp>
#include <unordered_map>

#include "base/error.h"

// oneDNN plans a primitive for the OpenMP thread count of the thread that creates it.
extern "C" void omp_set_num_threads(int num_threads);

namespace tessera {
namespace {

struct ProductHash {
  size_t operator()(const OneDnnProduct& p) const {
    uint64_t hash = static_cast<uint64_t>(p.layout) | static_cast<uint64_t>(p.dtype) << 8 |
                    static_cast<uint64_t>(p.result_dtype) << 16 | static_cast<uint64_t>(p.has_bias) << 24 |
                    static_cast<uint64_t>(p.add) << 25;
    for (const int64_t size : {p.m, p.n, p.k}) {
      hash = (hash ^ static_cast<uint64_t>(size)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

void check_status(dnnl_status_t status, const char* what) {
  TESSERA_CHECK(status == dnnl_success, "oneDNN {}: status {}", what, static_cast<int>(status));
}

dnnl::memory::data_type data_type(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

using Tag = dnnl::memory::format_tag;

dnnl::memory::desc a_desc(const OneDnnProduct& p) {
  return {{p.m, p.k}, data_type(p.dtype), p.layout == Layout::kWeight ? Tag::ba : Tag::ab};
}
dnnl::memory::desc b_desc(const OneDnnProduct& p) {
  return {{p.k, p.n}, data_type(p.dtype), p.layout == Layout::kForward ? Tag::ba : Tag::ab};
}
dnnl::memory::desc c_desc(const OneDnnProduct& p) { return {{p.m, p.n}, data_type(p.result_dtype), Tag::ab}; }
dnnl::memory::desc bias_desc(const OneDnnProduct& p) { return {{1, p.n}, data_type(p.dtype), Tag::ab}; }

dnnl::matmul::primitive_desc plan(const OneDnnProduct& p, dnnl::scratchpad_mode mode,
                                  const dnnl::engine& engine) {
  const dnnl::matmul::desc desc = p.has_bias
                                      ? dnnl::matmul::desc(a_desc(p), b_desc(p), bias_desc(p), c_desc(p))
                                      : dnnl::matmul::desc(a_desc(p), b_desc(p), c_desc(p));
  dnnl::primitive_attr attributes;
  attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
  attributes.set_scratchpad_mode(mode);
  if (p.add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  return {desc, attributes, engine};
}

int64_t scratchpad_bytes(const dnnl::matmul::primitive_desc& planned) {
  return static_cast<int64_t>(planned.scratchpad_desc().get_size());
}

// A compiled product and its memory objects, which are pointed at new memory for each call.
class Compiled {
 public:
  Compiled(const OneDnnProduct& p, const dnnl::engine& engine) {
    dnnl::matmul::primitive_desc planned = plan(p, dnnl::scratchpad_mode::user, engine);
    if (scratchpad_bytes(planned) > kOneDnnScratchpadBytes) {
      planned = plan(p, dnnl::scratchpad_mode::library, engine);
    }
    primitive_ = dnnl::matmul(planned);
    append(DNNL_ARG_SRC, a_desc(p), engine);
    append(DNNL_ARG_WEIGHTS, b_desc(p), engine);
    append(DNNL_ARG_DST, c_desc(p), engine);
    append(DNNL_ARG_SCRATCHPAD, planned.scratchpad_desc(), engine);
    if (p.has_bias) append(DNNL_ARG_BIAS, bias_desc(p), engine);
  }

  // Uses the C functions, because the C++ ones build a map of arguments on every call.
  void run(const dnnl::stream& stream, const void* a, const void* b, const void* bias, void* c,
           std::byte* scratchpad) const {
    const std::array<void*, kMaxArguments> pointers = {const_cast<void*>(a), const_cast<void*>(b), c,
                                                       scratchpad, const_cast<void*>(bias)};
    for (size_t i = 0; i < num_arguments_; ++i) {
      check_status(dnnl_memory_set_data_handle_v2(arguments_[i].memory, pointers[i], stream.get()),
                   "set_data_handle");
    }
    check_status(dnnl_primitive_execute(primitive_.get(), stream.get(), static_cast<int>(num_arguments_),
                                        arguments_.data()),
                 "execute");
  }

 private:
  static constexpr size_t kMaxArguments = 5;

  void append(int argument, const dnnl::memory::desc& desc, const dnnl::engine& engine) {
    memories_[num_arguments_] = dnnl::memory(desc, engine, DNNL_MEMORY_NONE);
    arguments_[num_arguments_] = {argument, memories_[num_arguments_].get()};
    ++num_arguments_;
  }

  dnnl::primitive primitive_;
  std::array<dnnl::memory, kMaxArguments> memories_;
  std::array<dnnl_exec_arg_t, kMaxArguments> arguments_ = {};
  size_t num_arguments_ = 0;
};

// Per-thread state. oneDNN shares the compiled code of equal primitives between threads.
struct ThreadState {
  ThreadState() : engine(dnnl::engine::kind::cpu, 0), stream(engine) { omp_set_num_threads(1); }

  const Compiled& find(const OneDnnProduct& product) {
    const auto found = products.find(product);
    if (found != products.end()) return found->second;
    try {
      return products.try_emplace(product, product, engine).first->second;
    } catch (const dnnl::error& error) {
      fail(ExitCode::kInternal, "oneDNN offers no {} product of {} x {} x {}: {}", dtype_name(product.dtype),
           product.m, product.n, product.k, error.what());
    }
  }

  dnnl::engine engine;
  dnnl::stream stream;
  std::unordered_map<OneDnnProduct, Compiled, ProductHash> products;
};

ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}

// An instruction set as named by oneDNN and its environment variable.
struct OneDnnIsa {
  dnnl_cpu_isa_t value;
  std::string_view name;
};

OneDnnIsa onednn_name(Isa isa) {
  switch (isa) {
    case Isa::kRef:
    case Isa::kBaseline:
      return {dnnl_cpu_isa_sse41, "SSE41"};
    case Isa::kAvx2:
      return {dnnl_cpu_isa_avx2, "AVX2"};
    case Isa::kAvx512:
      return {dnnl_cpu_isa_avx512_core, "AVX512_CORE"};
    case Isa::kAvx512Bf16:
      return {dnnl_cpu_isa_avx512_core_bf16, "AVX512_CORE_BF16"};
    case Isa::kAmxBf16:
      return {dnnl_cpu_isa_avx512_core_amx, "AVX512_CORE_AMX"};
  }
  TESSERA_CHECK(false, "isa {}", static_cast<int>(isa));
  return {};
}

}  // namespace

void run_onednn(const OneDnnProduct& product, const void* a, const void* b, const void* bias, void* c,
                std::byte* scratchpad) {
  ThreadState& state = thread_state();
  state.find(product).run(state.stream, a, b, bias, c, scratchpad);
}

int64_t onednn_scratchpad_bytes(const OneDnnProduct& product) {
  return scratchpad_bytes(plan(product, dnnl::scratchpad_mode::user, thread_state().engine));
}

int64_t num_onednn_products() { return static_cast<int64_t>(thread_state().products.size()); }

void onednn_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a,
                  int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  thread_state();
  check_status(dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb,
                          beta, c, ldc),
               "sgemm");
}

void onednn_igemm(bool transpose_b, int64_t m, int64_t n, int64_t k, const int8_t* a, int64_t lda,
                  const int8_t* b, int64_t ldb, int32_t* c, int64_t ldc) {
  thread_state();
  const int32_t offset = 0;
  check_status(dnnl_gemm_s8s8s32('N', transpose_b ? 'T' : 'N', 'F', m, n, k, 1.0f, a, lda, 0, b, ldb, 0, 0.0f,
                                 c, ldc, &offset),
               "gemm_s8s8s32");
}

OneDnnLimit onednn_limit(Isa strongest, const TileInformation& tiles, const std::string& fault) {
  if (strongest == Isa::kAmxBf16 && !tiles.has_palette_1()) {
    return {
        Isa::kAvx512Bf16,
        fmt::format("CPUID leaf 1DH (tile information), which oneDNN uses to lay out tiles, is hidden here: "
                    "it reads as palette {}, {} registers of {} x {} bytes",
                    tiles.max_palette, tiles.num_registers, tiles.rows, tiles.row_bytes)};
  }
  return {strongest, fault};
}

const OneDnnLimit& machine_onednn_limit() {
  static const OneDnnLimit limit = onednn_limit(strongest_isa(), cpu_features().tiles, cpu_features().fault);
  return limit;
}

Isa onednn_isa() { return std::min(isa_limit(), machine_onednn_limit().isa); }

std::string onednn_environment(const OneDnnLimit& limit) {
  return limit.reason.empty() ? "" : fmt::format("ONEDNN_MAX_CPU_ISA={}", onednn_name(limit.isa).name);
}

std::string limit_onednn() {
  static const std::string refusal = dnnl_set_max_cpu_isa(onednn_name(onednn_isa()).value) == dnnl_success
                                         ? ""
                                         : "oneDNN was used before its instruction set could be limited";
  return refusal;
}

std::string onednn_amx_refusal() {
  return machine_onednn_limit().isa == Isa::kAmxBf16 ? limit_onednn() : machine_onednn_limit().reason;
}

std::string onednn_version() {
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("{}.{}.{}", version.major, version.minor, version.patch);
}

}  // namespace tessera
