#include "bench/kernels/elementwise_bench.h"

#include <functional>
#include <memory>

#include "base/error.h"
#include "base/function_ref.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/kernels/verify.h"
#include "bench/surroundings.h"
#include "devices/measure/random_tensor.h"
#include "kernels/cross_entropy/cross_entropy_expected.h"
#include "kernels/registry.h"
#include "kernels/rmsnorm/rmsnorm_expected.h"
#include "kernels/rope/rope_expected.h"
#include "kernels/swiglu/swiglu_expected.h"
#include "model/blocks/attention_block.h"
#include "model/blocks/rope_table.h"

namespace tessera {
namespace {

// Sizes of one case, with the letters of ops.h.
struct Sizes {
  explicit Sizes(const ElementwiseCase& c)
      : T(c.num_tokens),
        D(c.config.hidden_size),
        F(c.config.intermediate_size),
        V(c.config.vocab_size),
        A(dtype_bytes(c.dtype)),
        heads(attention_block_config(c.config, 0).shape) {}

  int64_t T, D, F, V;
  int64_t A;  // bytes of an activation
  AttentionShape heads;
};

// One operation with its own operands, ready to be called repeatedly.
struct Work {
  std::vector<std::pair<std::string, int64_t>> shape;
  std::string kernel;  // its name in kernel_reports(), "" = one implementation only
  int64_t bytes = 0;   // per call
  std::function<void(Ops&)> run;
  // Compares a sample of what the first call computes, which it makes, with float64.
  std::function<void(Verifier& verifier, FunctionRef<void()> call)> verify;
};

constexpr int64_t kSampledRows = 4;
constexpr int64_t kSampledColumns = 32;

std::vector<int64_t> at_indices(std::span<const int32_t> values, std::span<const int64_t> indices) {
  std::vector<int64_t> result;
  for (const int64_t i : indices) result.push_back(values[static_cast<size_t>(i)]);
  return result;
}

std::vector<double> columns_of(ConstTensorView matrix, std::span<const int64_t> columns) {
  return values_at(matrix, range(0, matrix.dim(0)), columns);
}

// x + y, rounded once more than BF16 values need.
std::vector<Expected> expected_add(std::span<const double> x, std::span<const double> y) {
  std::vector<Expected> sum;
  for (size_t i = 0; i < x.size(); ++i) sum.push_back({x[i] + y[i], kFloatEps * std::abs(x[i] + y[i])});
  return sum;
}

// Creates the operands of a case.
class WorkMaker {
 public:
  WorkMaker(const ElementwiseCase& c, int64_t cold_bytes, ThreadPool& pool)
      : case_(c), s_(c), rows_(sample_indices(s_.T, kSampledRows)), cold_bytes_(cold_bytes), pool_(pool) {}

  Work rmsnorm() const {
    const auto x = cold({s_.T, s_.D}), y = cold({s_.T, s_.D});
    const auto w = tensor(case_.dtype, {s_.D}), rstd = tensor(DType::kF32, {s_.T});
    return {row_shape(s_.D), "rmsnorm", 2 * s_.A * s_.T * s_.D,
            [=, this](Ops& ops) { ops.rmsnorm(x->next(), w->view(), eps(), y->next(), rstd->view()); },
            [=, this](Verifier& verifier, FunctionRef<void()> call) {
              call();
              verify_norm(verifier, x->copy(0), w->view(), y->copy(0), rstd->view());
            }};
  }
  Work add_rmsnorm() const {
    const auto x = cold({s_.T, s_.D}), y = cold({s_.T, s_.D}), norm = cold({s_.T, s_.D});
    const auto w = tensor(case_.dtype, {s_.D}), rstd = tensor(DType::kF32, {s_.T});
    return {row_shape(s_.D), "rmsnorm", 4 * s_.A * s_.T * s_.D,
            [=, this](Ops& ops) {
              ops.add_rmsnorm(x->next(), y->next(), w->view(), eps(), norm->next(), rstd->view());
            },
            [=, this](Verifier& verifier, FunctionRef<void()> call) {
              const std::vector<Expected> sum =
                  expected_add(rows_of(x->copy(0), rows_), rows_of(y->copy(0), rows_));
              call();
              verifier.compare_rows("x", x->copy(0), rows_, sum);
              verify_norm(verifier, x->copy(0), w->view(), norm->copy(0), rstd->view());
            }};
  }
  Work rmsnorm_backward() const {
    const auto dy = cold({s_.T, s_.D}), x = cold({s_.T, s_.D}), dx = cold({s_.T, s_.D});
    const auto w = tensor(case_.dtype, {s_.D}), rstd = ones(), dw = tensor(DType::kF32, {s_.D});
    return {row_shape(s_.D), "rmsnorm", 4 * s_.A * s_.T * s_.D,
            [=](Ops& ops) {
              ops.rmsnorm_backward(dy->next(), x->next(), w->view(), rstd->view(), dx->next(), Update::kAdd,
                                   dw->view(), Update::kAdd);
            },
            [=, this](Verifier& verifier, FunctionRef<void()> call) {
              const std::vector<int64_t> columns = sample_indices(s_.D, kSampledColumns);
              const std::vector<Expected> expected_dx = expected_rmsnorm_backward(
                  rows_of(dy->copy(0), rows_), rows_of(x->copy(0), rows_), values_of(w->view()),
                  rows_of(rstd->view(), rows_), rows_of(dx->copy(0), rows_));
              const std::vector<Expected> expected_dw =
                  expected_rmsnorm_dw(columns_of(dy->copy(0), columns), columns_of(x->copy(0), columns),
                                      values_of(rstd->view()), rows_of(dw->view(), columns));
              call();
              verifier.compare_rows("dx", dx->copy(0), rows_, expected_dx);
              verifier.compare_rows("dw", dw->view(), columns, expected_dw);
            }};
  }
  Work add() const {
    const auto x = cold({s_.T, s_.D}), y = cold({s_.T, s_.D});
    return {row_shape(s_.D), "elementwise", 3 * s_.A * s_.T * s_.D,
            [=](Ops& ops) { ops.add(x->next(), y->next()); },
            [=, this](Verifier& verifier, FunctionRef<void()> call) {
              const std::vector<Expected> sum =
                  expected_add(rows_of(x->copy(0), rows_), rows_of(y->copy(0), rows_));
              call();
              verifier.compare_rows("x", x->copy(0), rows_, sum);
            }};
  }
  Work rope() const {
    const auto qkv = cold({s_.T, s_.heads.qkv_width()});
    const auto table = std::make_shared<RopeTableBuffer>(case_.config, s_.T);
    std::vector<int32_t> positions;
    for (int64_t t = 0; t < s_.T; ++t) positions.push_back(static_cast<int32_t>(t));
    const int64_t rotated = (s_.heads.num_heads + s_.heads.num_key_value_heads) * s_.heads.head_dim;
    return {row_shape(rotated), "rope", 2 * s_.A * s_.T * rotated,
            [=, heads = s_.heads](Ops& ops) {
              ops.rope(qkv->next(), heads, positions, table->table(), /*inverse=*/false);
            },
            [=, this](Verifier& verifier, FunctionRef<void()> call) {
              const std::vector<int32_t> sampled(rows_.begin(), rows_.end());  // row t has position t
              const std::vector<Expected> expected = expected_rope(
                  rows_of(qkv->copy(0), rows_), s_.heads, sampled, table->table(), /*inverse=*/false);
              call();
              verifier.compare_rows("qkv", qkv->copy(0), rows_, expected);
            }};
  }
  Work swiglu() const {
    const auto gate_up = cold({s_.T, 2 * s_.F}), h = cold({s_.T, s_.F});
    return {row_shape(s_.F), "swiglu", 3 * s_.A * s_.T * s_.F,
            [=](Ops& ops) { ops.swiglu(gate_up->next(), h->next()); },
            [=, this](Verifier& verifier, FunctionRef<void()> call) {
              call();
              verifier.compare_rows("h", h->copy(0), rows_,
                                    expected_swiglu(rows_of(gate_up->copy(0), rows_), s_.F));
            }};
  }
  Work swiglu_backward() const {
    // Called as a layer does, with h overwriting dh, but with a separate dgate_up, or the gates would change
    // from call to call.
    const auto gate_up = cold({s_.T, 2 * s_.F}), dh = cold({s_.T, s_.F}), dgate_up = cold({s_.T, 2 * s_.F});
    const auto h = cold({s_.T, s_.F});
    return {row_shape(s_.F), "swiglu", 6 * s_.A * s_.T * s_.F,
            [=](Ops& ops) { ops.swiglu_backward(dh->next(), gate_up->next(), dgate_up->next(), h->next()); },
            [=, this](Verifier& verifier, FunctionRef<void()> call) {
              const std::vector<double> gates = rows_of(gate_up->copy(0), rows_);
              call();
              verifier.compare_rows("dgate_up", dgate_up->copy(0), rows_,
                                    expected_swiglu_backward(rows_of(dh->copy(0), rows_), gates, s_.F));
              verifier.compare_rows("h", h->copy(0), rows_, expected_swiglu(gates, s_.F));
            }};
  }
  // Takes as many rows as one chunk of the loss has.
  Work cross_entropy() const {
    constexpr int64_t kMaxRows = 256;
    const int64_t rows = std::min(s_.T, kMaxRows);
    const auto logits = cold({rows, s_.V}, DType::kF32);
    const auto dlogits = cold({rows, s_.V});
    const auto sums = std::make_shared<LossSums>();
    const std::vector<int32_t> ids = random_ids(rows);
    return {{{"T", rows}, {"V", s_.V}},
            "cross_entropy",
            (4 + s_.A) * rows * s_.V,
            [=](Ops& ops) {
              *sums = ops.cross_entropy(logits->next(), ids, /*label_smoothing=*/0, /*grad_scale=*/1,
                                        dlogits->next());
            },
            [=, this](Verifier& verifier, FunctionRef<void()> call) {
              call();
              const std::vector<int64_t> sampled = sample_indices(rows, kSampledRows);
              Expected loss;
              for (int64_t r = 0; r < rows; ++r) {
                const std::vector<double> row = rows_of(logits->copy(0), {&r, 1});
                const int32_t target = ids[static_cast<size_t>(r)];
                const Expected of_row = expected_loss(row, target, /*label_smoothing=*/0);
                loss = {loss.value + of_row.value, loss.bound + of_row.bound};
                if (!std::ranges::binary_search(sampled, r)) continue;
                verifier.compare_rows("dlogits", dlogits->copy(0), {&r, 1},
                                      expected_logits_gradient(row, 0, s_.V, expected_softmax(row), target,
                                                               /*label_smoothing=*/0, /*grad_scale=*/1));
              }
              verifier.compare("loss_sum", 0, 0, sums->loss_sum, loss.value, loss.bound);
            }};
  }
  Work embedding() const {
    const auto table = tensor(case_.dtype, {s_.V, s_.D});
    const auto x = cold({s_.T, s_.D});
    const std::vector<int32_t> ids = random_ids(s_.T);
    return {row_shape(s_.D), "", 2 * s_.A * s_.T * s_.D,
            [=](Ops& ops) { ops.embedding(ids, table->view(), x->next()); },
            [=, this](Verifier& verifier, FunctionRef<void()> call) {
              call();
              std::vector<Expected> copied;
              for (const double value : rows_of(table->view(), at_indices(ids, rows_)))
                copied.push_back({value, 0});
              verifier.compare_rows("x", x->copy(0), rows_, copied);
            }};
  }
  Work embedding_backward() const {
    const auto dtable = tensor(DType::kF32, {s_.V, s_.D});
    const auto dx = cold({s_.T, s_.D});
    const std::vector<int32_t> ids = random_ids(s_.T);
    return {row_shape(s_.D), "", (s_.A + 8) * s_.T * s_.D,
            [=](Ops& ops) { ops.embedding_backward(ids, dx->next(), kNoPaddingId, dtable->view()); },
            [=, this](Verifier& verifier, FunctionRef<void()> call) {
              std::vector<int64_t> rows = at_indices(ids, rows_);
              rows.insert(rows.end(), {0, s_.V - 1});  // possibly without a token
              const std::vector<int64_t> columns = sample_indices(s_.D, kSampledColumns);
              std::vector<Expected> expected;
              for (const int64_t row : rows) {
                for (const int64_t column : columns) {
                  expected.push_back(
                      expected_sum(s_.T, element(dtable->view(), row * s_.D + column), [&](int64_t t) {
                        const bool is_row = ids[static_cast<size_t>(t)] == row;
                        return is_row ? element(dx->copy(0), t * s_.D + column) : 0.0;
                      }));
                }
              }
              call();
              verifier.compare_values("dtable", dtable->view(), rows, columns, expected);
            }};
  }

 private:
  void verify_norm(Verifier& verifier, ConstTensorView x, ConstTensorView w, ConstTensorView y,
                   ConstTensorView rstd) const {
    const ExpectedNorm expected = expected_rmsnorm(rows_of(x, rows_), values_of(w), eps());
    verifier.compare_rows("y", y, rows_, expected.y_RD);
    verifier.compare_rows("rstd", rstd, rows_, expected.rstd_R);
  }
  std::shared_ptr<ColdCopies> cold(const Shape& shape) const { return cold(shape, case_.dtype); }
  std::shared_ptr<ColdCopies> cold(const Shape& shape, DType dtype) const {
    return std::make_shared<ColdCopies>(dtype, shape, cold_bytes_, 1.0f, pool_);
  }
  std::shared_ptr<RandomTensor> tensor(DType dtype, const Shape& shape) const {
    return std::make_shared<RandomTensor>(dtype, shape, 1, 1.0f, pool_);
  }
  // rstd as rmsnorm computes it for values of standard deviation 1.
  std::shared_ptr<RandomTensor> ones() const {
    const auto rstd = tensor(DType::kF32, {s_.T});
    std::fill_n(rstd->view().as<float>(), s_.T, 1.0f);
    return rstd;
  }
  std::vector<std::pair<std::string, int64_t>> row_shape(int64_t width) const {
    return {{"T", s_.T}, {"width", width}};
  }
  std::vector<int32_t> random_ids(int64_t count) const {
    const CounterRng rng(3, 0);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i) {
      const double fraction = rng.uniform(static_cast<uint64_t>(i));
      ids.push_back(static_cast<int32_t>(fraction * static_cast<double>(s_.V)));
    }
    return ids;
  }
  float eps() const { return static_cast<float>(case_.config.rms_norm_eps); }

  const ElementwiseCase& case_;
  Sizes s_;
  std::vector<int64_t> rows_;  // the results of these rows are compared
  int64_t cold_bytes_;
  ThreadPool& pool_;
};

struct Operation {
  const char* name;
  Work (WorkMaker::*make)() const;
};
constexpr Operation kOperations[] = {
    {"embedding", &WorkMaker::embedding},
    {"rmsnorm", &WorkMaker::rmsnorm},
    {"add_rmsnorm", &WorkMaker::add_rmsnorm},
    {"rope", &WorkMaker::rope},
    {"swiglu", &WorkMaker::swiglu},
    {"add", &WorkMaker::add},
    {"cross_entropy", &WorkMaker::cross_entropy},
    {"swiglu_backward", &WorkMaker::swiglu_backward},
    {"rmsnorm_backward", &WorkMaker::rmsnorm_backward},
    {"embedding_backward", &WorkMaker::embedding_backward},
};

// An upper bound: three rotating arrays, each at least one copy, and a table.
int64_t most_bytes(const ElementwiseCase& c, int64_t cold_bytes) {
  const Sizes s(c);
  const int64_t widest = s.T * std::max({2 * s.F, s.heads.qkv_width(), s.D}) * s.A;
  const int64_t logits = std::min<int64_t>(s.T, 256) * s.V * 4;
  return 3 * (cold_bytes + std::max(widest, logits)) + 4 * s.V * s.D;
}

std::string chosen_implementation(const std::string& kernel) {
  for (const KernelReport& report : kernel_reports()) {
    if (report.kernel != kernel) continue;
    const ImplementationReport& chosen = report.implementations[report.chosen];
    return fmt::format("{} ({})", chosen.name, isa_name(chosen.isa));
  }
  return "portable (baseline)";
}

}  // namespace

std::vector<std::string> elementwise_operations() {
  std::vector<std::string> names;
  for (const Operation& operation : kOperations) names.emplace_back(operation.name);
  return names;
}

BenchLine run_elementwise_case(const ElementwiseCase& c, Ops& ops, const MeasureOptions& options,
                               BandwidthMeter& bandwidth, ThreadPool& pool) {
  const Operation* operation = nullptr;
  for (const Operation& candidate : kOperations) {
    if (candidate.name == c.operation) operation = &candidate;
  }
  TESSERA_CHECK(operation != nullptr, "{}", c.operation);
  const std::string what =
      fmt::format("{} {}, {}", c.operation, dtype_name(c.dtype), count_of(c.num_tokens, "token"));
  check_bench_memory("elementwise " + what, most_bytes(c, options.cold_bytes));
  const WorkMaker maker(c, options.cold_bytes, pool);
  const Work work = (maker.*operation->make)();

  const OpsLimits limits = {.max_tokens = c.num_tokens,
                            .max_sequence_length = c.num_tokens,
                            .hidden_size = c.config.hidden_size,
                            .max_logits_rows = c.num_tokens,
                            .max_sum_elements = 0,
                            .attention = attention_block_config(c.config, 0).shape,
                            .dtype = c.dtype,
                            .training = true,
                            .linears = {}};
  const PageBuffer workspace(std::max<int64_t>(64, ops.workspace_bytes(limits)));
  ops.bind_workspace(workspace.as<std::byte>());

  BenchLine line;
  line.benchmark = "elementwise";
  line.operation = c.operation;
  line.shape = work.shape;
  line.dtype = dtype_name(c.dtype);
  line.implementation = chosen_implementation(work.kernel);
  line.unit = "GB/s";
  line.peak_name = "memory";
  line.amount = static_cast<double>(work.bytes) * 1e-9;
  Verifier verifier(what, line.verification);
  work.verify(verifier, [&] { work.run(ops); });
  const Participant participants[] = {
      [&] { return speed_of([&] { work.run(ops); }, line.amount, options.turn_seconds); },
      [&] { return bandwidth.measure_best(options.turn_seconds); }};
  fill_statistics(measure_in_turn(participants, options), &line);
  return line;
}

}  // namespace tessera
