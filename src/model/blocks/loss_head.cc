#include "model/blocks/loss_head.h"

#include <algorithm>

#include "base/divide_up.h"
#include "base/memory.h"
#include "model/allocate.h"
#include "tensor/packed_batch.h"

namespace tessera {

void TargetRows::reserve(int64_t max_tokens, bool with_dropout) {
  rows.reserve(static_cast<size_t>(max_tokens));
  targets.reserve(static_cast<size_t>(max_tokens));
  if (with_dropout) dropout_tokens.reserve(static_cast<size_t>(max_tokens));
}

LogitsLimits logits_limits(const Device& device) {
  constexpr int64_t kTileRows = 128;
  if (!device.own_memory()) return {};
  return {LogitsLimits::kCardBytes, kTileRows};
}

LogitsPieces logits_pieces(int64_t num_tokens, int64_t vocab_size, const LogitsLimits& limits) {
  const int64_t most_elements = limits.bytes / static_cast<int64_t>(sizeof(float));
  constexpr int64_t kColumnMultiple = 512;  // packed forms of the LM head can be cut there
  const int64_t num_elements = std::min(num_tokens * vocab_size, most_elements);
  int64_t whole_rows = most_elements / vocab_size;
  if (whole_rows >= limits.row_multiple) whole_rows = whole_rows / limits.row_multiple * limits.row_multiple;
  if (whole_rows >= std::min(num_tokens, kMinWholeRows)) {
    return {std::min(num_tokens, whole_rows), vocab_size, num_elements};
  }
  const int64_t rows = std::min(num_tokens, kMaxBlockRows);
  const int64_t num_chunks = divide_up(vocab_size, most_elements / rows / kColumnMultiple * kColumnMultiple);
  return {rows, round_up(divide_up(vocab_size, num_chunks), kColumnMultiple), num_elements};
}

std::vector<LogitsPieces> all_logits_pieces(int64_t max_tokens, int64_t vocab_size,
                                            const LogitsLimits& limits) {
  const LogitsPieces most = logits_pieces(max_tokens, vocab_size, limits);
  if (most.columns == vocab_size) return {most};
  std::vector<LogitsPieces> all;
  for (int64_t rows = 1; rows <= most.rows; ++rows) {
    const LogitsPieces pieces = logits_pieces(rows, vocab_size, limits);
    if (all.empty() || all.back().columns != pieces.columns) all.push_back(pieces);
    all.back() = pieces;
  }
  return all;
}

LossHeadScratch allocate_loss_head_scratch(Arena& arena, const ModelConfig& config, DType dtype,
                                           const LogitsLimits& limits, int64_t num_tokens, bool training) {
  LossHeadScratch scratch;
  scratch.pieces = logits_pieces(num_tokens, config.vocab_size, limits);
  const int64_t num_elements = scratch.pieces.num_elements;
  scratch.norm_TD = allocate_tensor(arena, dtype, {num_tokens, config.hidden_size});
  scratch.rstd_T = allocate_tensor(arena, DType::kF32, norm_statistics_shape(config.norm, num_tokens));
  if (config.encoder) {
    scratch.stats_T2 = allocate_tensor(arena, DType::kF32, {num_tokens, 2});
    scratch.dense_TD = allocate_tensor(arena, dtype, {num_tokens, config.hidden_size});
    scratch.activated_TD = allocate_tensor(arena, dtype, {num_tokens, config.hidden_size});
  }
  scratch.logits = allocate_tensor(arena, DType::kF32, {num_elements});
  if (training) {
    const bool shares = dtype == DType::kF32 && config.logits_softcap == 0;
    scratch.dlogits = shares ? scratch.logits : allocate_tensor(arena, dtype, {num_elements});
  }
  if (scratch.pieces.columns < config.vocab_size) {
    const int64_t num_rows = scratch.pieces.rows;
    if (training) scratch.dnorm_RD = allocate_tensor(arena, DType::kF32, {num_rows, config.hidden_size});
    scratch.softmax = allocate_tensor(arena, DType::kU8, {num_rows, kSoftmaxRowBytes});
  }
  return scratch;
}

namespace {

void select_targets(std::span<const int32_t> targets, TargetRows& selected) {
  selected.rows.clear();
  selected.targets.clear();
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == kIgnoredLabel) continue;
    selected.rows.push_back(static_cast<int32_t>(t));
    selected.targets.push_back(targets[t]);
  }
}

// What is dropped of the rows that have a target.
Dropout dropout_of(const Dropout& of_all, TargetRows& selected) {
  if (!of_all.drops()) return {};
  selected.dropout_tokens.clear();
  for (const int32_t row : selected.rows)
    selected.dropout_tokens.push_back(of_all.tokens[static_cast<size_t>(row)]);
  return {of_all.probability, of_all.site, selected.dropout_tokens};
}

void add_to(LossSums& sums, const LossSums& piece) {
  sums.loss_sum += piece.loss_sum;
  sums.num_targets += piece.num_targets;
}

// Shared by the walks over the pieces.
struct Head {
  Ops& ops;
  const LossHeadWeights& weights;
  const LossHeadScratch& scratch;
  float label_smoothing;
  float softcap;

  int64_t vocab_size() const { return weights.lm_head_VD.w_NK.dim(0); }
  bool whole_rows() const { return scratch.pieces.columns == vocab_size(); }
  int64_t num_chunks() const { return divide_up(vocab_size(), scratch.pieces.columns); }
};

// Columns [begin, end) of the logits of some rows.
struct Chunk {
  int64_t begin, end;

  static Chunk at(const Head& head, int64_t index) {
    const int64_t begin = index * head.scratch.pieces.columns;
    return {begin, std::min(begin + head.scratch.pieces.columns, head.vocab_size())};
  }
  TensorView view(TensorView flat, int64_t rows) const { return matrix_in(flat, rows, end - begin); }
};

// (2) for one chunk.
TensorView compute_logits(const Head& head, ConstTensorView norm_RD, const Chunk& chunk) {
  const TensorView logits_RC = chunk.view(head.scratch.logits, norm_RD.dim(0));
  const ConstTensorView bias_V = head.weights.lm_head_b_V;
  head.ops.linear(norm_RD, head.weights.lm_head_VD.rows(chunk.begin, chunk.end),
                  bias_V.empty() ? ConstTensorView() : bias_V.rows(chunk.begin, chunk.end), logits_RC);
  if (head.softcap != 0) head.ops.soft_cap(logits_RC, head.softcap);
  return logits_RC;
}

// (2) and (3); `dlogits_RV` is empty without backward.
LossSums whole_rows_loss(const Head& head, ConstTensorView norm_RD, std::span<const int32_t> targets,
                         float grad_scale, TensorView dlogits_RV) {
  const TensorView logits_RV = compute_logits(head, norm_RD, {0, head.vocab_size()});
  return head.ops.cross_entropy(logits_RV, targets, head.label_smoothing, grad_scale, dlogits_RV);
}

// (2) and the first half of (3) chunk by chunk; leaves the logits of the last chunk in scratch.
TensorView chunked_softmax(const Head& head, ConstTensorView norm_RD, std::span<const int32_t> targets) {
  const TensorView rows = head.scratch.softmax.rows(0, std::ssize(targets));
  for (int64_t i = 0; i < head.num_chunks(); ++i) {
    const Chunk chunk = Chunk::at(head, i);
    head.ops.cross_entropy_add_chunk(compute_logits(head, norm_RD, chunk), chunk.begin, targets,
                                     head.label_smoothing, rows);
  }
  return rows;
}

LossSums chunked_loss(const Head& head, ConstTensorView norm_RD, std::span<const int32_t> targets) {
  const TensorView rows = chunked_softmax(head, norm_RD, targets);
  return head.ops.cross_entropy_loss(rows, targets, head.vocab_size(), head.label_smoothing);
}

// Gradients of columns [begin, end) of the LM head and of its bias, of which each may be empty.
void add_head_gradients(const Head& head, const LossHeadGrads& grads, WeightUpdate update, const Chunk& chunk,
                        ConstTensorView dlogits_RC, ConstTensorView norm_RD) {
  if (!grads.lm_head_VD.empty())
    head.ops.linear_backward_weight(dlogits_RC, norm_RD, grads.lm_head_VD.rows(chunk.begin, chunk.end),
                                    update);
  if (!grads.lm_head_b_V.empty())
    head.ops.linear_backward_bias(dlogits_RC, grads.lm_head_b_V.rows(chunk.begin, chunk.end), update.mode);
}

// Replaces norm_RD by its gradient.
LossSums whole_rows_backward(const Head& head, const LossHeadGrads& grads, WeightUpdate update,
                             TensorView norm_RD, std::span<const int32_t> targets, float grad_scale) {
  const TensorView dlogits_RV = matrix_in(head.scratch.dlogits, norm_RD.dim(0), head.vocab_size());
  const LossSums sums = whole_rows_loss(head, norm_RD, targets, grad_scale, dlogits_RV);
  if (head.softcap != 0) {
    const TensorView logits_RV = matrix_in(head.scratch.logits, norm_RD.dim(0), head.vocab_size());
    head.ops.soft_cap_backward(logits_RV, head.softcap, dlogits_RV);
  }
  add_head_gradients(head, grads, update, {0, head.vocab_size()}, dlogits_RV, norm_RD);
  head.ops.linear_backward_input(dlogits_RV, head.weights.lm_head_VD, norm_RD, Update::kOverwrite);
  return sums;
}

LossSums chunked_backward(const Head& head, const LossHeadGrads& grads, WeightUpdate update,
                          TensorView norm_RD, std::span<const int32_t> targets, float grad_scale) {
  const int64_t R = norm_RD.dim(0), num_chunks = head.num_chunks();
  const TensorView dnorm_RD = head.scratch.dnorm_RD.rows(0, R);
  const LossSums sums = chunked_loss(head, norm_RD, targets);
  for (int64_t i = num_chunks - 1; i >= 0; --i) {
    const Chunk chunk = Chunk::at(head, i);
    const bool is_last = i == num_chunks - 1;  // its logits are still in scratch
    const TensorView logits_RC =
        is_last ? chunk.view(head.scratch.logits, R) : compute_logits(head, norm_RD, chunk);
    const TensorView dlogits_RC = chunk.view(head.scratch.dlogits, R);
    head.ops.cross_entropy_chunk_gradient(logits_RC, chunk.begin, head.vocab_size(), targets,
                                          head.scratch.softmax.rows(0, R), head.label_smoothing, grad_scale,
                                          dlogits_RC);
    if (head.softcap != 0) head.ops.soft_cap_backward(logits_RC, head.softcap, dlogits_RC);
    add_head_gradients(head, grads, update, chunk, dlogits_RC, norm_RD);
    head.ops.linear_backward_input(dlogits_RC, head.weights.lm_head_VD.rows(chunk.begin, chunk.end), dnorm_RD,
                                   is_last ? Update::kOverwrite : Update::kAdd);
  }
  head.ops.round_to(dnorm_RD, norm_RD);
  return sums;
}

// Calls body(begin, end) for blocks of rows of equal height, as high as the scratch allows.
template <typename Body>
LossSums sum_over_blocks(const LossHeadScratch& scratch, int64_t num_rows, const Body& body) {
  const int64_t num_blocks = divide_up(num_rows, scratch.pieces.rows);
  const int64_t height = divide_up(num_rows, num_blocks);
  LossSums sums;
  for (int64_t begin = 0; begin < num_rows; begin += height) {
    add_to(sums, body(begin, std::min(begin + height, num_rows)));
  }
  return sums;
}

std::span<const int32_t> targets_between(const TargetRows& selected, int64_t begin, int64_t end) {
  return std::span(selected.targets).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

// (2) and (3) of selected rows [begin, end), sequence by sequence.
LossSums loss_by_sequence(const Head& head, ConstTensorView norm_RD, const TargetRows& selected,
                          int64_t begin, int64_t end, const SequenceLosses& by_sequence) {
  const std::span<const int32_t> targets = targets_between(selected, begin, end);
  const TensorView rows = head.whole_rows() ? compute_logits(head, norm_RD, {0, head.vocab_size()})
                                            : chunked_softmax(head, norm_RD, targets);
  LossSums sums;
  for (int64_t first = begin, last; first < end; first = last) {
    const int32_t row = selected.rows[static_cast<size_t>(first)];
    const auto next = std::ranges::upper_bound(by_sequence.cu_seqlens, row);
    const auto in_sequence = std::ranges::lower_bound(selected.rows, *next) - selected.rows.begin();
    last = std::min<int64_t>(in_sequence, end);
    const ConstTensorView of_sequence = rows.rows(first - begin, last - begin);
    const std::span<const int32_t> its_targets = targets_between(selected, first, last);
    const LossSums found =
        head.whole_rows()
            ? head.ops.cross_entropy(of_sequence, its_targets, head.label_smoothing, /*grad_scale=*/0, {})
            : head.ops.cross_entropy_loss(of_sequence, its_targets, head.vocab_size(), head.label_smoothing);
    add_to(by_sequence.sums[static_cast<size_t>(next - by_sequence.cu_seqlens.begin() - 1)], found);
    add_to(sums, found);
  }
  return sums;
}

// (1) of the first `count` rows.
TensorView norm_of_rows(Ops& ops, const LossHeadConfig& config, const LossHeadWeights& weights,
                        TensorView x_ND, const LossHeadScratch& scratch) {
  const int64_t count = x_ND.dim(0);
  const TensorView norm_ND = scratch.norm_TD.rows(0, count);
  if (config.transform) {
    const TensorView dense_ND = scratch.dense_TD.rows(0, count);
    const TensorView activated_ND = scratch.activated_TD.rows(0, count);
    ops.linear(x_ND, weights.transform_DD, weights.transform_b_D, dense_ND);
    ops.activation(*config.transform, dense_ND, activated_ND);
    ops.layernorm(activated_ND, weights.norm_D, weights.norm_b_D, config.norm.eps, norm_ND,
                  scratch.stats_T2.rows(0, count));
  } else {
    norm_forward(ops, config.norm, x_ND, weights.norm_D, norm_ND, scratch.rstd_T.rows(0, count));
  }
  drop_in_place(ops, config.of_norm, norm_ND);
  if (config.output_scale != 1) ops.scale(norm_ND, config.output_scale, norm_ND);
  return norm_ND;
}

// dx_ND = the gradient through (1), with dnorm in the place of norm.
void head_norm_backward(Ops& ops, const LossHeadConfig& config, const LossHeadWeights& weights,
                        const LossHeadGrads& grads, WeightUpdate update, ConstTensorView x_ND,
                        const LossHeadScratch& scratch, TensorView dx_ND) {
  const int64_t count = x_ND.dim(0);
  const TensorView dnorm_ND = scratch.norm_TD.rows(0, count);
  if (config.output_scale != 1) ops.scale(dnorm_ND, config.output_scale, dnorm_ND);
  drop_in_place(ops, config.of_norm, dnorm_ND);
  if (!config.transform) {
    norm_backward(ops, config.norm, dnorm_ND, x_ND, weights.norm_D, scratch.rstd_T.rows(0, count), dx_ND,
                  Update::kOverwrite, grads.norm_D, update.mode);
    return;
  }
  const TensorView dense_ND = scratch.dense_TD.rows(0, count);
  const TensorView activated_ND = scratch.activated_TD.rows(0, count);
  const TensorView dactivated_ND = dx_ND;
  ops.layernorm_backward(dnorm_ND, activated_ND, weights.norm_D, scratch.stats_T2.rows(0, count),
                         dactivated_ND, Update::kOverwrite, grads.norm_D, grads.norm_b_D, update.mode);
  const TensorView ddense_ND = dense_ND;  // in place
  ops.activation_backward(*config.transform, dactivated_ND, dense_ND, ddense_ND, activated_ND);
  if (!grads.transform_b_D.empty()) ops.linear_backward_bias(ddense_ND, grads.transform_b_D, update.mode);
  if (!grads.transform_DD.empty()) ops.linear_backward_weight(ddense_ND, x_ND, grads.transform_DD, update);
  ops.linear_backward_input(ddense_ND, weights.transform_DD, dx_ND, Update::kOverwrite);
}

}  // namespace

LossSums loss_head_forward(Ops& ops, const LossHeadConfig& config, const LossHeadWeights& weights,
                           std::span<const int32_t> targets, float label_smoothing, TensorView x_TD,
                           const LossHeadScratch& scratch, TargetRows& selected,
                           const SequenceLosses& by_sequence) {
  select_targets(targets, selected);
  const int64_t count = std::ssize(selected.rows);
  if (count == 0) return {};

  ops.gather_rows(selected.rows, x_TD);
  const TensorView norm_ND = norm_of_rows(ops, config, weights, x_TD.rows(0, count), scratch);
  const Head head = {ops, weights, scratch, label_smoothing, config.softcap};
  return sum_over_blocks(scratch, count, [&](int64_t begin, int64_t end) {
    const TensorView norm_RD = norm_ND.rows(begin, end);
    if (!by_sequence.sums.empty()) {
      return loss_by_sequence(head, norm_RD, selected, begin, end, by_sequence);
    }
    const std::span<const int32_t> block_targets = targets_between(selected, begin, end);
    return head.whole_rows() ? whole_rows_loss(head, norm_RD, block_targets, /*grad_scale=*/0, {})
                             : chunked_loss(head, norm_RD, block_targets);
  });
}

LossSums loss_head_forward_backward(Ops& ops, const LossHeadConfig& of_all, const LossHeadWeights& weights,
                                    const LossHeadGrads& grads, WeightUpdate update,
                                    std::span<const int32_t> targets, float label_smoothing, float grad_scale,
                                    TensorView x_TD, const LossHeadScratch& scratch, TargetRows& selected,
                                    TensorView dx_TD) {
  select_targets(targets, selected);
  const int64_t count = std::ssize(selected.rows);
  if (count == 0) {
    ops.zero(dx_TD);
    return {};
  }

  LossHeadConfig config = of_all;
  config.of_norm = dropout_of(of_all.of_norm, selected);

  // forward (1)
  ops.gather_rows(selected.rows, x_TD);
  const TensorView x_ND = x_TD.rows(0, count);
  const TensorView norm_ND = norm_of_rows(ops, config, weights, x_ND, scratch);

  // forward and backward (2) and (3)
  const Head head = {ops, weights, scratch, label_smoothing, config.softcap};
  const LossSums sums = sum_over_blocks(scratch, count, [&](int64_t begin, int64_t end) {
    const auto backward = head.whole_rows() ? whole_rows_backward : chunked_backward;
    const WeightUpdate of_block = {begin == 0 ? update.mode : Update::kAdd,
                                   end == count ? update.squares : nullptr};
    return backward(head, grads, of_block, norm_ND.rows(begin, end), targets_between(selected, begin, end),
                    grad_scale);
  });

  // backward (1)
  head_norm_backward(ops, config, weights, grads, update, x_ND, scratch, dx_TD.rows(0, count));
  ops.scatter_rows(selected.rows, dx_TD);
  return sums;
}

}  // namespace tessera
