// Where the time of a training step goes: a forward and backward pass on one thread, timed by operation.
//
//   build/release/src/model/tessera_step_bench            (built with -DTESSERA_BENCHMARKS=ON)
//
// One thread, and its processor time instead of the clock, so that a busy machine disturbs little. Counters
// are shares of the step in percent; "gflops" counts the matrix products (2 M N K) of the layers and LM head.
#include <benchmark/benchmark.h>

#include <ctime>

#include <map>

#include "base/rng.h"
#include "model/model.h"
#include "ops/cpu_ops.h"
#include "platform/thread_pool.h"

namespace tessera {
namespace {

double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Hands every call on and adds up its time.
class TimedOps final : public Ops {
 public:
  explicit TimedOps(Ops& ops) : ops_(ops) {}

  std::map<std::string, double> seconds;
  double product_flop = 0;

  std::string description() const override { return ops_.description(); }
  int64_t workspace_bytes(const OpsLimits& limits) const override { return ops_.workspace_bytes(limits); }
  void bind_workspace(std::span<std::byte> workspace) override { ops_.bind_workspace(workspace); }

  void linear(ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) override {
    count_product(x, w);
    timed("linear", [&] { ops_.linear(x, w, bias, y); });
  }
  void linear_backward_input(ConstTensorView dy, ConstTensorView w, TensorView dx, Update update) override {
    count_product(dx, w);
    timed("linear_backward_input", [&] { ops_.linear_backward_input(dy, w, dx, update); });
  }
  void linear_backward_weight(ConstTensorView dy, ConstTensorView x, TensorView dw, Update update) override {
    count_product(x, dw);
    timed("linear_backward_weight", [&] { ops_.linear_backward_weight(dy, x, dw, update); });
  }
  void linear_backward_bias(ConstTensorView dy, TensorView db, Update update) override {
    timed("linear_backward_bias", [&] { ops_.linear_backward_bias(dy, db, update); });
  }
  void embedding(std::span<const int32_t> ids, ConstTensorView table, TensorView x) override {
    timed("embedding", [&] { ops_.embedding(ids, table, x); });
  }
  void embedding_backward(std::span<const int32_t> ids, ConstTensorView dx, int32_t padding_id,
                          TensorView dtable) override {
    timed("embedding_backward", [&] { ops_.embedding_backward(ids, dx, padding_id, dtable); });
  }
  void rmsnorm(ConstTensorView x, ConstTensorView w, float eps, TensorView y, TensorView rstd) override {
    timed("rmsnorm", [&] { ops_.rmsnorm(x, w, eps, y, rstd); });
  }
  void rmsnorm_backward(ConstTensorView dy, ConstTensorView x, ConstTensorView w, ConstTensorView rstd,
                        TensorView dx, Update dx_update, TensorView dw, Update dw_update) override {
    timed("rmsnorm_backward", [&] { ops_.rmsnorm_backward(dy, x, w, rstd, dx, dx_update, dw, dw_update); });
  }
  void add_rmsnorm(TensorView x, ConstTensorView y, ConstTensorView w, float eps, TensorView norm,
                   TensorView rstd) override {
    timed("add_rmsnorm", [&] { ops_.add_rmsnorm(x, y, w, eps, norm, rstd); });
  }
  void add(TensorView x, ConstTensorView y) override {
    timed("add", [&] { ops_.add(x, y); });
  }
  void round_to(ConstTensorView from, TensorView to) override {
    timed("round_to", [&] { ops_.round_to(from, to); });
  }
  void zero(TensorView x) override {
    timed("zero", [&] { ops_.zero(x); });
  }
  void head_rmsnorm(ConstTensorView qkv, const AttentionShape& shape, int64_t begin, int64_t end,
                    ConstTensorView w, float eps, TensorView y, TensorView rstd) override {
    timed("head_rmsnorm", [&] { ops_.head_rmsnorm(qkv, shape, begin, end, w, eps, y, rstd); });
  }
  void head_rmsnorm_backward(TensorView dqkv, ConstTensorView qkv, const AttentionShape& shape, int64_t begin,
                             int64_t end, ConstTensorView w, ConstTensorView rstd, TensorView dw,
                             Update dw_update) override {
    timed("head_rmsnorm_backward",
          [&] { ops_.head_rmsnorm_backward(dqkv, qkv, shape, begin, end, w, rstd, dw, dw_update); });
  }
  void rope(TensorView qkv, const AttentionShape& shape, std::span<const int32_t> positions,
            const RopeTable& table, bool inverse) override {
    timed("rope", [&] { ops_.rope(qkv, shape, positions, table, inverse); });
  }
  void attention(ConstTensorView qkv, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o, TensorView lse) override {
    timed("attention", [&] { ops_.attention(qkv, shape, cu_seqlens, o, lse); });
  }
  void attention_backward(ConstTensorView d_o, ConstTensorView qkv, ConstTensorView o, ConstTensorView lse,
                          const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                          TensorView dqkv) override {
    timed("attention_backward", [&] { ops_.attention_backward(d_o, qkv, o, lse, shape, cu_seqlens, dqkv); });
  }
  void attention_cached(ConstTensorView qkv, const AttentionShape& shape, TensorView k_cache,
                        TensorView v_cache, int64_t cache_length, TensorView o) override {
    timed("attention_cached", [&] { ops_.attention_cached(qkv, shape, k_cache, v_cache, cache_length, o); });
  }
  void swiglu(ConstTensorView gate_up, TensorView h) override {
    timed("swiglu", [&] { ops_.swiglu(gate_up, h); });
  }
  void swiglu_backward(ConstTensorView dh, ConstTensorView gate_up, TensorView dgate_up) override {
    timed("swiglu_backward", [&] { ops_.swiglu_backward(dh, gate_up, dgate_up); });
  }
  LossSums cross_entropy(ConstTensorView logits, std::span<const int32_t> targets, float label_smoothing,
                         float grad_scale, TensorView dlogits) override {
    LossSums sums;
    timed("cross_entropy",
          [&] { sums = ops_.cross_entropy(logits, targets, label_smoothing, grad_scale, dlogits); });
    return sums;
  }
  void cross_entropy_add_chunk(ConstTensorView logits, int64_t first_column, std::span<const int32_t> targets,
                               float label_smoothing, std::span<SoftmaxRow> rows) override {
    timed("cross_entropy",
          [&] { ops_.cross_entropy_add_chunk(logits, first_column, targets, label_smoothing, rows); });
  }
  LossSums cross_entropy_loss(std::span<const SoftmaxRow> rows, std::span<const int32_t> targets,
                              int64_t vocab_size, float label_smoothing) override {
    return ops_.cross_entropy_loss(rows, targets, vocab_size, label_smoothing);
  }
  void cross_entropy_chunk_gradient(ConstTensorView logits, int64_t first_column, int64_t vocab_size,
                                    std::span<const int32_t> targets, std::span<const SoftmaxRow> rows,
                                    float label_smoothing, float grad_scale, TensorView dlogits) override {
    timed("cross_entropy", [&] {
      ops_.cross_entropy_chunk_gradient(logits, first_column, vocab_size, targets, rows, label_smoothing,
                                        grad_scale, dlogits);
    });
  }

 private:
  template <typename Call>
  void timed(const char* name, const Call& call) {
    const double start = thread_seconds();
    call();
    seconds[name] += thread_seconds() - start;
  }
  void count_product(ConstTensorView rows, ConstTensorView matrix) {
    product_flop += 2.0 * static_cast<double>(rows.dim(0)) * static_cast<double>(matrix.num_elements());
  }

  Ops& ops_;
};

// `num_rows` rows of `length` random tokens, every token but the first of a row a target.
PackedBatch make_batch(int64_t num_rows, int64_t length, int64_t vocab_size) {
  const CounterRng rng(1, 1);
  PackedBatch batch;
  batch.cu_seqlens.push_back(0);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t t = 0; t < length; ++t) {
      const auto index = static_cast<uint64_t>(row * length + t);
      const auto token = [&](uint64_t i) {
        return static_cast<int32_t>(rng.uniform(i) * static_cast<float>(vocab_size));
      };
      batch.input_ids.push_back(token(index));
      batch.positions.push_back(static_cast<int32_t>(t));
      batch.targets.push_back(t + 1 < length ? token(index + 1) : kIgnoredLabel);
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>((row + 1) * length));
  }
  batch.num_targets = num_rows * (length - 1);
  return batch;
}

void training_step(benchmark::State& state, const std::string& preset, bool gradient_checkpointing) {
  constexpr int64_t kRows = 8;
  constexpr int64_t kLength = 512;
  ModelConfig config = preset_config(preset);
  if (config.vocab_size == 0) config.vocab_size = 8192;
  ThreadPool pool(1);
  const auto cpu_ops = make_cpu_ops(pool);
  TimedOps ops(*cpu_ops);
  Model model(config, DType::kBF16, ops);
  const int64_t size = model.layout().num_elements();
  PageBuffer weights(size * 2);
  PageBuffer gradients(size * 4);
  for (const Parameter& parameter : model.layout().parameters()) {
    initialize_parameter(
        parameter, config.initializer_range, 1, 0,
        TensorView(weights.as<bf16>().data() + parameter.offset, DType::kBF16, {parameter.num_elements}));
  }
  model.bind_parameters(TensorView(weights.data(), DType::kBF16, {size}),
                        TensorView(gradients.data(), DType::kF32, {size}));
  ActivationLimits limits = {kRows * kLength, kLength};
  limits.gradient_checkpointing = gradient_checkpointing;
  model.reserve(limits);
  const PackedBatch batch = make_batch(kRows, kLength, config.vocab_size);
  model.forward_backward(batch, 1.0f / static_cast<float>(batch.num_targets));  // kernels are made once
  ops.seconds.clear();
  ops.product_flop = 0;

  const double start = thread_seconds();
  for (auto _ : state) {
    model.forward_backward(batch, 1.0f / static_cast<float>(batch.num_targets));
  }
  const double total = thread_seconds() - start;
  for (const auto& [name, seconds] : ops.seconds) state.counters[name + "_%"] = 100 * seconds / total;
  const double steps = static_cast<double>(state.iterations());
  state.counters["tokens_per_cpu_s"] = static_cast<double>(batch.num_tokens()) * steps / total;
  state.counters["gflops"] = 1e-9 * ops.product_flop / total;
  state.SetLabel(ops.description());
}

BENCHMARK_CAPTURE(training_step, 15m_bf16, "15m", false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(training_step, 15m_bf16_checkpointing, "15m", true)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera

BENCHMARK_MAIN();
