#include "forecast/time/op_work.h"

#include <algorithm>

#include "model/flops.h"

namespace tessera {
namespace {

constexpr std::string_view kPack = "pack_linear_weight";

WorkKind kind_of(std::string_view name) {
  if (name == kPack) return WorkKind::kPacking;
  if (name == "linear" || name == "linear_backward_input" || name == "linear_backward_weight") {
    return WorkKind::kProduct;
  }
  return name.starts_with("attention") ? WorkKind::kAttention : WorkKind::kElementwise;
}

int64_t rows_of(ConstTensorView view) { return view.shape().rank() == 0 ? 1 : view.dim(0); }

}  // namespace

double OpWork::flop() const {
  const auto size = [this](size_t i) { return static_cast<double>(sizes[i]); };
  if (kind == WorkKind::kProduct) return 2 * size(0) * size(1) * size(2);
  if (kind != WorkKind::kAttention) return 0;
  const double forward = 4 * size(1) * size(3) * pairs;
  return name == "attention_backward" ? 2 * forward : forward;
}

OpWork work_of(const OpCall& call) {
  OpWork work;
  work.name = call.name;
  work.kind = kind_of(work.name);
  const OpCall::Details& details = call.details;
  work.adds = details.update == Update::kAdd;
  work.squares = details.squares;
  work.packed = details.packed;
  work.quantization = details.quantization;

  ConstTensorView widest;
  const auto count = [&](ConstTensorView view, int64_t num_uses) {
    if (view.empty()) return;
    if (widest.empty() || view.num_elements() > widest.num_elements()) widest = view;
    work.bytes += static_cast<double>(view.size_bytes() * num_uses);
  };
  for (const ConstTensorView* view : call.inputs) count(*view, 1);
  for (size_t i = 0; i < call.outputs.size(); ++i) count(*call.outputs[i], i == 0 && work.adds ? 2 : 1);
  work.dtype = widest.dtype();
  if (!call.outputs.empty()) work.result_dtype = call.outputs[0]->dtype();
  work.sizes = {rows_of(widest), widest.num_elements() / std::max<int64_t>(1, rows_of(widest)), 0, 0};

  if (work.kind == WorkKind::kProduct) {
    const bool is_weight_gradient = work.name == "linear_backward_weight";
    const ConstTensorView rows = *call.inputs[0];
    const ConstTensorView w_NK = is_weight_gradient ? ConstTensorView(*call.outputs[0]) : *call.inputs[1];
    work.dtype = rows.dtype();
    work.sizes = {rows.dim(0), w_NK.dim(0), w_NK.dim(1), 0};
  } else if (details.attention != nullptr) {
    const AttentionShape& shape = *details.attention;
    work.sizes = {rows_of(*call.inputs[0]), shape.num_heads, shape.num_key_value_heads, shape.head_dim};
    if (details.general != nullptr) work.pairs = attention_pairs(*details.general, shape.sliding_window);
    for (size_t i = 1; i < details.cu_seqlens.size(); ++i) {
      work.pairs += causal_pairs(details.cu_seqlens[i] - details.cu_seqlens[i - 1], shape.sliding_window);
    }
  } else if (work.name == "embedding") {
    // Reads the rows that occur, not the table.
    work.bytes = 2 * static_cast<double>(call.outputs[0]->size_bytes());
    work.sizes[0] = call.outputs[0]->dim(0);
  } else if (work.name == "embedding_backward") {
    // Adds to the rows that occur, in float32.
    work.bytes = static_cast<double>(call.inputs[0]->size_bytes() + 8 * call.inputs[0]->num_elements());
    work.sizes[0] = call.inputs[0]->dim(0);
  }
  return work;
}

}  // namespace tessera
