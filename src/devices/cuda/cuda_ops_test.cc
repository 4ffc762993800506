// Every operation on a card against the processor's, for random sizes and both dtypes.
#include "devices/cuda/cuda_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/rng.h"
#include "ops/cpu_ops.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

constexpr int64_t kMaxTokens = 1400;
constexpr DType F32 = DType::kF32;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A tensor of the host, and its copy on the card.
class Twin {
 public:
  Twin(DType dtype, Shape shape, double scale = 1, double mean = 0)
      : memory_(host_device().allocate(std::max<int64_t>(shape.num_elements(), 1) * dtype_bytes(dtype))),
        view_(memory_.view(dtype, shape)) {
    static uint64_t seed = 0;
    const CounterRng rng(++seed, 0);
    for (int64_t i = 0; i < shape.num_elements(); ++i) {
      set(i, static_cast<float>(mean + scale * rng.normal(static_cast<uint64_t>(i))));
    }
  }

  void set(int64_t i, float value) {
    if (view_.dtype() == DType::kBF16) {
      view_.as<bf16>()[i] = to_bf16(value);
    } else if (view_.dtype() == F32) {
      view_.as<float>()[i] = value;
    }
  }
  static float at(ConstTensorView view, int64_t i) {
    return view.dtype() == DType::kBF16 ? to_float(view.as<bf16>()[i]) : view.as<float>()[i];
  }
  TensorView host() const { return view_; }
  TensorView upload(Device& device) {
    on_device_ = device.allocate(view_.size_bytes());
    const TensorView there = on_device_.view(view_.dtype(), view_.shape());
    if (!view_.shape().num_elements()) return there;
    copy(view_, there);
    return there;
  }
  std::vector<float> downloaded() const {
    const DeviceBuffer bytes = host_device().allocate(view_.size_bytes());
    const TensorView here = bytes.view(view_.dtype(), view_.shape());
    copy(on_device_.view(view_.dtype(), view_.shape()), here);
    std::vector<float> values(static_cast<size_t>(view_.num_elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = at(here, static_cast<int64_t>(i));
    return values;
  }
  std::vector<std::byte> bytes_on_device() const {
    std::vector<std::byte> bytes(static_cast<size_t>(view_.size_bytes()));
    on_device_.device().copy_to_host(on_device_.address(), bytes);
    return bytes;
  }

 private:
  DeviceBuffer memory_;
  TensorView view_;
  DeviceBuffer on_device_;
};

using Views = std::span<const TensorView>;

class CudaOpsTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    try {
      cuda_ops_ = make_cuda_ops();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  DType dtype() const { return GetParam(); }
  int64_t draw(int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random_); }
  std::vector<int32_t> draw_all(int64_t count, int32_t from, int32_t to) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (int32_t& value : values) value = static_cast<int32_t>(draw(from, to));
    return values;
  }

  // The largest shapes of what follows.
  void reserve(const AttentionShape& heads, int64_t width, int64_t vocab_size) {
    OpsLimits limits = {
        .max_tokens = kMaxTokens,
        .max_sequence_length = kMaxTokens,
        .hidden_size = width,
        .max_logits_rows = kMaxTokens,
        .max_sum_elements = 1 << 24,
        .attention = heads,
        .dtype = dtype(),
        .training = true,
        .linears = {{kMaxTokens, {std::max(width, vocab_size), std::max(width, vocab_size)}}}};
    cpu_memory_ = host_device().allocate(cpu_ops_->workspace_bytes(limits));
    cpu_ops_->bind_workspace(cpu_memory_.span());
    cuda_memory_ = cuda_ops_->device().allocate(cuda_ops_->workspace_bytes(limits));
    cuda_ops_->bind_workspace(cuda_memory_.span());
  }

  // Carries out `op` here and on the card, there twice, and compares all tensors afterwards: within
  // `tolerance` of the root of the mean square of the tensor, or bit by bit with 0; the two runs on the card
  // are equal in any case.
  void expect_same(const char* name, std::vector<Twin*> tensors, const std::function<void(Ops&, Views)>& op,
                   double tolerance) {
    std::vector<std::vector<std::byte>> first;
    for (const bool is_first : {true, false}) {
      std::vector<TensorView> views;
      for (Twin* tensor : tensors) views.push_back(tensor->upload(cuda_ops_->device()));
      op(*cuda_ops_, views);
      cuda_ops_->device().synchronize();
      for (size_t i = 0; i < tensors.size(); ++i) {
        std::vector<std::byte> bytes = tensors[i]->bytes_on_device();
        if (is_first) {
          first.push_back(std::move(bytes));
        } else {
          EXPECT_TRUE(bytes == first[i]) << name << ": tensor " << i << " differs in a second run";
        }
      }
    }
    std::vector<TensorView> views;
    for (Twin* tensor : tensors) views.push_back(tensor->host());
    op(*cpu_ops_, views);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (views[i].dtype() != F32 && views[i].dtype() != DType::kBF16) {
        EXPECT_TRUE(std::equal(first[i].begin(), first[i].end(), views[i].bytes()))
            << name << ": tensor " << i;
        continue;
      }
      compare(name, i, tensors[i]->downloaded(), views[i], tolerance);
    }
  }

  std::unique_ptr<Ops> cuda_ops_;

 private:
  static void compare(const char* name, size_t index, const std::vector<float>& found,
                      ConstTensorView expected, double tolerance) {
    double squares = 0, differences = 0, largest = 0;
    int64_t where = -1, not_finite = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      const double e = Twin::at(expected, static_cast<int64_t>(i)), f = found[i];
      if (std::isfinite(e) != std::isfinite(f)) ++not_finite, where = static_cast<int64_t>(i);
      if (!std::isfinite(e) || !std::isfinite(f)) continue;
      squares += e * e;
      differences += (e - f) * (e - f);
      if (std::abs(e - f) > largest) largest = std::abs(e - f), where = static_cast<int64_t>(i);
    }
    const double norm = std::sqrt(squares),
                 error = norm == 0 ? std::sqrt(differences) : std::sqrt(differences) / norm;
    // A single element may be further off than all together, but not by much more than its rounding.
    const double root_mean_square = norm / std::sqrt(std::max<double>(1, static_cast<double>(found.size())));
    EXPECT_EQ(not_finite, 0) << name << ": tensor " << index << " element " << where;
    EXPECT_LE(error, tolerance) << name << ": tensor " << index << ", largest difference " << largest
                                << " at " << where;
    EXPECT_LE(largest, 40 * tolerance * root_mean_square + 1e-30)
        << name << ": tensor " << index << " at " << where;
  }

  std::mt19937_64 random_{7};
  ThreadPool pool_{4};
  std::unique_ptr<Ops> cpu_ops_ = make_cpu_ops(pool_);
  DeviceBuffer cpu_memory_, cuda_memory_;
};

// Relative Frobenius: float32 sums in another order, or results rounded to 8 bits once.
double rounding(DType dtype) { return dtype == F32 ? 2e-6 : 3e-3; }

constexpr AttentionShape kSmallHeads = {
    .num_heads = 4, .num_key_value_heads = 2, .head_dim = 16, .sliding_window = 0, .scale = 0.25f};

TEST_P(CudaOpsTest, Products) {
  reserve(kSmallHeads, 600, 600);
  for (int round = 0; round < 12; ++round) {
    // Multiples of 8, as in every model, and none.
    const int64_t unit = round % 3 == 0 ? 1 : 8;
    const int64_t T = draw(1, 500), N = unit * draw(1, 500 / unit), K = unit * draw(1, 500 / unit);
    SCOPED_TRACE(fmt::format("T {} N {} K {}", T, N, K));
    Twin x(dtype(), {T, K}), w(dtype(), {N, K}, 0.1), bias(dtype(), {N}), y(dtype(), {T, N}),
        y32(F32, {T, N});
    expect_same(
        "linear", {&x, &w, &y}, [](Ops& ops, Views v) { ops.linear(v[0], v[1], {}, v[2]); },
        2 * rounding(dtype()));
    expect_same(
        "linear with bias", {&x, &w, &bias, &y},
        [](Ops& ops, Views v) { ops.linear(v[0], v[1], v[2], v[3]); }, 2 * rounding(dtype()));
    expect_same(
        "linear to float32", {&x, &w, &bias, &y32},
        [](Ops& ops, Views v) { ops.linear(v[0], v[1], v[2], v[3]); }, 3e-6);
    Twin dy(dtype(), {T, N}), dx(dtype(), {T, K}), dx32(F32, {T, K}), dw(F32, {N, K}), db(F32, {N});
    for (const Update update : {Update::kOverwrite, Update::kAdd}) {
      expect_same(
          "backward input", {&dy, &w, &dx},
          [&](Ops& ops, Views v) { ops.linear_backward_input(v[0], v[1], v[2], update); },
          2 * rounding(dtype()));
      expect_same(
          "backward input, float32", {&dy, &w, &dx32},
          [&](Ops& ops, Views v) { ops.linear_backward_input(v[0], v[1], v[2], update); }, 3e-6);
      std::vector<double> squares;
      expect_same(
          "backward weight", {&dy, &x, &dw},
          [&](Ops& ops, Views v) {
            squares.push_back(1);
            ops.linear_backward_weight(v[0], v[1], v[2], {update, &squares.back()});
          },
          3e-6);
      EXPECT_NEAR(squares[1], squares[2], 1e-5 * squares[2]);
      expect_same(
          "backward bias", {&dy, &db},
          [&](Ops& ops, Views v) { ops.linear_backward_bias(v[0], v[1], update); }, 3e-6);
    }
  }
}

TEST_P(CudaOpsTest, NormsAndElementwise) {
  for (int round = 0; round < 8; ++round) {
    const int64_t T = draw(1, kMaxTokens), D = round % 2 == 0 ? 8 * draw(1, 600) : draw(1, 3000);
    SCOPED_TRACE(fmt::format("T {} D {}", T, D));
    reserve(kSmallHeads, D, D);
    Twin x(dtype(), {T, D}), y(dtype(), {T, D}), w(dtype(), {D}, 0.2, 1), norm(dtype(), {T, D}),
        rstd(F32, {T});
    expect_same(
        "rmsnorm", {&x, &w, &norm, &rstd},
        [](Ops& ops, Views v) { ops.rmsnorm(v[0], v[1], 1e-5f, v[2], v[3]); }, rounding(dtype()));
    expect_same(
        "add_rmsnorm", {&x, &y, &w, &norm, &rstd},
        [](Ops& ops, Views v) { ops.add_rmsnorm(v[0], v[1], v[2], 1e-5f, v[3], v[4]); }, rounding(dtype()));
    Twin dx(dtype(), {T, D}), dw(F32, {D}), sum(F32, {T, D});
    for (const Update update : {Update::kOverwrite, Update::kAdd}) {
      expect_same(
          "rmsnorm_backward", {&y, &x, &w, &rstd, &dx, &dw},
          [&](Ops& ops, Views v) {
            ops.rmsnorm_backward(v[0], v[1], v[2], v[3], v[4], update, v[5], update);
          },
          2 * rounding(dtype()));
      expect_same(
          "rmsnorm_backward in place", {&y, &x, &w, &rstd},
          [&](Ops& ops, Views v) { ops.rmsnorm_backward(v[0], v[1], v[2], v[3], v[0], update, {}, update); },
          2 * rounding(dtype()));
    }
    expect_same(
        "add", {&x, &y}, [](Ops& ops, Views v) { ops.add(v[0], v[1]); }, 0);
    expect_same(
        "round_to", {&sum, &x}, [](Ops& ops, Views v) { ops.round_to(v[0], v[1]); }, 0);
    expect_same(
        "zero", {&x}, [](Ops& ops, Views v) { ops.zero(v[0]); }, 0);
    std::vector<double> squares;
    expect_same(
        "sum_of_squares", {&sum}, [&](Ops& ops, Views v) { squares.push_back(ops.sum_of_squares(v[0])); }, 0);
    EXPECT_NEAR(squares[0], squares[2], 1e-12 * squares[2]);
    if (D % 2 != 0) continue;
    Twin gate_up(dtype(), {T, D}, 2), h(dtype(), {T, D / 2}), dgate_up(dtype(), {T, D});
    expect_same(
        "swiglu", {&gate_up, &h}, [](Ops& ops, Views v) { ops.swiglu(v[0], v[1]); }, rounding(dtype()));
    expect_same(
        "swiglu_backward", {&h, &gate_up, &dgate_up},
        [](Ops& ops, Views v) { ops.swiglu_backward(v[0], v[1], v[2], v[0]); }, rounding(dtype()));
    expect_same(
        "swiglu_backward in place", {&h, &gate_up},
        [](Ops& ops, Views v) { ops.swiglu_backward(v[0], v[1], v[1], v[0]); }, rounding(dtype()));
  }
}

TEST_P(CudaOpsTest, HeadsAndRotation) {
  for (const int64_t head_dim : {6, 16, 64, 128}) {
    const AttentionShape heads = {
        .num_heads = 6, .num_key_value_heads = 2, .head_dim = head_dim, .sliding_window = 0, .scale = 0.2f};
    const int64_t T = draw(1, 300), Q = heads.qkv_width();
    SCOPED_TRACE(fmt::format("T {} E {}", T, head_dim));
    reserve(heads, Q, Q);
    Twin qkv(dtype(), {T, Q}), dqkv(dtype(), {T, Q}), w(dtype(), {head_dim}, 0.2, 1), y(dtype(), {T, Q});
    Twin rstd(F32, {T, 2}), dw(F32, {head_dim}), cos(F32, {40, head_dim / 2}), sin(F32, {40, head_dim / 2});
    expect_same(
        "head_rmsnorm", {&qkv, &w, &y, &rstd},
        [&](Ops& ops, Views v) { ops.head_rmsnorm(v[0], heads, 6, 8, v[1], 1e-6f, v[2], v[3]); },
        rounding(dtype()));
    expect_same(
        "head_rmsnorm_backward", {&dqkv, &qkv, &w, &rstd, &dw},
        [&](Ops& ops, Views v) {
          ops.head_rmsnorm_backward(v[0], v[1], heads, 6, 8, v[2], v[3], v[4], Update::kAdd);
        },
        2 * rounding(dtype()));
    const std::vector<int32_t> positions = draw_all(T, 0, 39);
    for (const bool inverse : {false, true}) {
      expect_same(
          "rope", {&qkv, &cos, &sin},
          [&](Ops& ops, Views v) {
            ops.rope(v[0], heads, positions, {v[1], v[2]}, inverse);
          },
          rounding(dtype()));
    }
  }
}

TEST_P(CudaOpsTest, Attention) {
  for (AttentionShape heads :
       {AttentionShape{4, 2, 6, 0, 0}, AttentionShape{4, 4, 16, 5, 0}, AttentionShape{8, 2, 64, 0, 0},
        AttentionShape{4, 1, 64, 70, 0}, AttentionShape{8, 2, 128, 0, 0}, AttentionShape{4, 4, 128, 100, 0},
        AttentionShape{4, 1, 128, 300, 0}, AttentionShape{4, 2, 96, 0, 0}, AttentionShape{2, 1, 256, 0, 0},
        AttentionShape{4, 2, 80, 33, 0}}) {
    heads.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(heads.head_dim)));
    std::vector<int32_t> starts = {0, 0};
    for (const int64_t length :
         {draw(1, 300), int64_t{1}, draw(300, 700), draw(1, 200), int64_t{64}, int64_t{128}}) {
      starts.push_back(starts.back() + static_cast<int32_t>(length));
    }
    const int64_t T = starts.back(), Q = heads.qkv_width(), O = heads.num_heads * heads.head_dim;
    SCOPED_TRACE(fmt::format("H {} G {} E {} window {} T {}", heads.num_heads, heads.num_key_value_heads,
                             heads.head_dim, heads.sliding_window, T));
    reserve(heads, Q, Q);
    Twin qkv(dtype(), {T, Q}), o(dtype(), {T, O}, kNan), d_o(dtype(), {T, O}), dqkv(dtype(), {T, Q}, kNan),
        lse(F32, {heads.num_heads, T});
    const double tolerance = dtype() == F32 ? 1e-5 : 1e-2;
    expect_same(
        "attention", {&qkv, &o, &lse},
        [&](Ops& ops, Views v) { ops.attention(v[0], heads, starts, v[1], v[2]); }, tolerance);
    // o and lse are now the processor's, on both sides.
    expect_same(
        "attention_backward", {&d_o, &qkv, &o, &lse, &dqkv},
        [&](Ops& ops, Views v) { ops.attention_backward(v[0], v[1], v[2], v[3], heads, starts, v[4]); },
        tolerance);
    const int64_t new_tokens = draw(1, 9), before = draw(0, 50),
                  key_width = heads.num_key_value_heads * heads.head_dim;
    Twin fresh(dtype(), {new_tokens, Q}), k(dtype(), {64, key_width}), v_cache(dtype(), {64, key_width}),
        out(dtype(), {new_tokens, O});
    auto run = [&](Ops& ops, Views v) { ops.attention_cached(v[0], heads, v[1], v[2], before, {}, v[3]); };
    expect_same("attention_cached", {&fresh, &k, &v_cache, &out}, run, tolerance);
  }
}

TEST_P(CudaOpsTest, Embedding) {
  for (int round = 0; round < 4; ++round) {
    const int64_t T = draw(1, kMaxTokens), D = round % 2 == 0 ? 8 * draw(1, 200) : draw(1, 900),
                  V = draw(2, 300);
    SCOPED_TRACE(fmt::format("T {} D {} V {}", T, D, V));
    reserve(kSmallHeads, D, V);
    std::vector<int32_t> ids = draw_all(T, 0, static_cast<int32_t>(V - 1));
    std::fill(ids.begin(), ids.begin() + T / 3, 1);  // one that is frequent
    Twin table(dtype(), {V, D}), x(dtype(), {T, D}), dtable(F32, {V, D});
    expect_same(
        "embedding", {&table, &x}, [&](Ops& ops, Views v) { ops.embedding(ids, v[0], v[1]); }, 0);
    for (const int32_t padding : {kNoPaddingId, 1}) {
      expect_same(
          "embedding_backward", {&x, &dtable},
          [&](Ops& ops, Views v) { ops.embedding_backward(ids, v[0], padding, v[1]); }, 0);
    }
    std::vector<int32_t> rows;
    for (int32_t t = 0; t < T; ++t) {
      if (draw(0, 2) != 0) rows.push_back(t);
    }
    // Rows after the gathered ones keep what they had.
    expect_same(
        "gather_rows", {&x}, [&](Ops& ops, Views v) { ops.gather_rows(rows, v[0]); }, 0);
    expect_same(
        "scatter_rows", {&x}, [&](Ops& ops, Views v) { ops.scatter_rows(rows, v[0]); }, 0);
  }
}

TEST_P(CudaOpsTest, CrossEntropy) {
  for (int round = 0; round < 6; ++round) {
    const int64_t R = draw(1, 200), V = round % 2 == 0 ? 8 * draw(1, 700) : draw(2, 5000);
    const float smoothing = round % 3 == 0 ? 0.1f : 0.0f;
    SCOPED_TRACE(fmt::format("R {} V {} smoothing {}", R, V, smoothing));
    reserve(kSmallHeads, 16, V);
    Twin logits(F32, {R, V}, 3), dlogits(dtype(), {R, V});
    std::vector<int32_t> targets = draw_all(R, 0, static_cast<int32_t>(V - 1));
    for (int32_t& target : targets) {
      if (draw(0, 5) == 0) target = kIgnoredLabel;
    }
    std::vector<LossSums> sums;
    expect_same(
        "cross_entropy", {&logits, &dlogits},
        [&](Ops& ops, Views v) { sums.push_back(ops.cross_entropy(v[0], targets, smoothing, 0.7f, v[1])); },
        rounding(dtype()));
    expect_same(
        "cross_entropy, loss alone", {&logits},
        [&](Ops& ops, Views v) { sums.push_back(ops.cross_entropy(v[0], targets, smoothing, 0.7f, {})); }, 0);
    // Chunk by chunk, as the loss head does.
    const int64_t chunk = std::max<int64_t>(1, V / 3);
    std::vector<Twin> parts;
    for (int64_t begin = 0; begin < V; begin += chunk) {
      const int64_t columns = std::min(chunk, V - begin);
      parts.emplace_back(F32, Shape{R, columns});
      for (int64_t r = 0; r < R; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          parts.back().set(r * columns + c, Twin::at(logits.host(), r * V + begin + c));
        }
      }
    }
    std::vector<Twin*> tensors;
    for (Twin& part : parts) tensors.push_back(&part);
    std::vector<Twin> gradients;
    gradients.reserve(parts.size());
    for (Twin& part : parts) tensors.push_back(&gradients.emplace_back(dtype(), part.host().shape()));
    const DeviceBuffer here = host_device().allocate(R * kSoftmaxRowBytes),
                       there = cuda_ops_->device().allocate(R * kSoftmaxRowBytes);
    expect_same(
        "cross_entropy by chunks", tensors,
        [&](Ops& ops, Views v) {
          const bool is_host = v[0].is_on_host();
          const TensorView rows = (is_host ? here : there).view(DType::kU8, {R, kSoftmaxRowBytes});
          const size_t count = parts.size();
          for (size_t i = 0; i < count; ++i) {
            ops.cross_entropy_add_chunk(v[i], static_cast<int64_t>(i) * chunk, targets, smoothing, rows);
          }
          sums.push_back(ops.cross_entropy_loss(rows, targets, V, smoothing));
          for (size_t i = 0; i < count; ++i) {
            ops.cross_entropy_chunk_gradient(v[i], static_cast<int64_t>(i) * chunk, V, targets, rows,
                                             smoothing, 0.7f, v[count + i]);
          }
        },
        rounding(dtype()));
    for (const LossSums& sum : sums) {
      EXPECT_EQ(sum.num_targets, sums[2].num_targets);
      EXPECT_NEAR(sum.loss_sum, sums[2].loss_sum, 1e-6 * sums[2].loss_sum);
    }
  }
}

TEST_P(CudaOpsTest, Adapters) {
  reserve(kSmallHeads, 600, 600);
  const int64_t N = 120, R = 16;
  Twin b(dtype(), {40, 8}), e(dtype(), {R, N}), de(F32, {R, N}), db(F32, {40, 8});
  const LoraBlock block = {.first_rank = 5, .first_output = 64, .scale = 0.75f};
  expect_same(
      "lora_place", {&b, &e}, [&](Ops& ops, Views v) { ops.lora_place(v[0], block, v[1]); }, 0);
  expect_same(
      "lora_take", {&de, &db}, [&](Ops& ops, Views v) { ops.lora_take(v[0], block, v[1], Update::kAdd); },
      1e-7);
  const int64_t T = 77, D = 301;
  std::vector<uint64_t> tokens(static_cast<size_t>(T));
  std::iota(tokens.begin(), tokens.end(), 1'000'000'000'000u);
  const Dropout dropout = {.probability = 0.3f, .site = 9, .tokens = tokens};
  Twin x(dtype(), {T, D}), y(dtype(), {T, D});
  for (const Update update : {Update::kOverwrite, Update::kAdd}) {
    expect_same(
        "dropout", {&x, &y}, [&](Ops& ops, Views v) { ops.dropout(v[0], dropout, v[1], update); },
        rounding(dtype()));
  }
}

// The results agree bit for bit, so that a run can resume on either device.
TEST_P(CudaOpsTest, AdamW) {
  reserve(kSmallHeads, 16, 16);
  for (const int64_t count : {1, 100, 4096, 100'003}) {
    SCOPED_TRACE(count);
    Twin w(dtype(), {count}), g(F32, {count}, 1e-3), m(F32, {count}, 1e-4), v(F32, {count}, 0);
    Twin remainders(DType::kI16, {dtype() == F32 ? 0 : count});
    for (int64_t i = 0; i < remainders.host().num_elements(); ++i) {
      remainders.host().as<int16_t>()[i] = static_cast<int16_t>(draw(-0x8000, 0x7FFF));
    }
    for (int64_t i = 0; i < count; i += 7) g.set(i, 1e-40f), m.set(i, 1e-39f);  // subnormal
    for (const int64_t step : {1, 2, 1000}) {
      const AdamWScalars scalars = AdamWRule::scalars({step, 1e-3, 0.9, 0.95, 1e-8, 0.1, 0.8});
      expect_same(
          "adamw", {&w, &remainders, &g, &m, &v},
          [&](Ops& ops, Views t) { ops.adamw(t[0], t[1], t[2], t[3], t[4], 0, scalars); }, 0);
    }
  }
}

// Some gradients are not finite.
TEST_P(CudaOpsTest, AdamWWithRoundedMoments) {
  if (dtype() == F32) GTEST_SKIP() << "BF16 moments are for BF16 weights";
  reserve(kSmallHeads, 16, 16);
  for (const int64_t count : {1, 31, 100, 4096, 100'003}) {
    const int64_t begin = draw(0, 100'000);
    SCOPED_TRACE(fmt::format("{} elements from {}", count, begin));
    Twin w(dtype(), {count}), g(F32, {count}, 1e-3), m(DType::kBF16, {count}, 0), v(DType::kBF16, {count}, 0);
    Twin remainders(DType::kI16, {count});
    for (int64_t i = 0; i < count; i += 7) g.set(i, 1e-40f);
    for (const int64_t step : {1, 2, 3, 1000}) {
      if (step == 1000) g.set(count / 2, std::nanf(""));
      const AdamWScalars scalars = AdamWRule::scalars({step, 1e-3, 0.9, 0.95, 1e-8, 0.1, 0.8});
      expect_same(
          "adamw", {&w, &remainders, &g, &m, &v},
          [&](Ops& ops, Views t) { ops.adamw(t[0], t[1], t[2], t[3], t[4], begin, scalars); }, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaOpsTest, testing::Values(DType::kBF16, DType::kF32),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

}  // namespace
}  // namespace tessera
