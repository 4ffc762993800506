#include "model/bound_parameters.h"

#include <algorithm>

#include "base/error.h"
#include "base/memory.h"

namespace tessera {
namespace {

// The flat array of gradients, with memory only for those of `group`, which begin at `data`.
TensorView flat_gradients(const ParameterLayout& layout, int64_t group, std::byte* data, Device& device) {
  const int64_t offset_bytes = layout.groups()[static_cast<size_t>(group)].begin * dtype_bytes(DType::kF32);
  const auto begin = reinterpret_cast<uintptr_t>(data) - static_cast<uintptr_t>(offset_bytes);
  return {reinterpret_cast<std::byte*>(begin), DType::kF32, {layout.num_elements()}, device};
}

void check_is_on(const Device& device, ConstTensorView view) {
  TESSERA_CHECK(view.empty() || &view.device() == &device, "a tensor of device {} for a model on {}",
                view.device().name(), device.name());
}

Shape stacked_shape(const ModelTensor& tensor) {
  std::vector<int64_t> shape = tensor.parts.front().shape;
  for (size_t i = 1; i < tensor.parts.size(); ++i) {
    const std::vector<int64_t>& part = tensor.parts[i].shape;
    TESSERA_CHECK(std::equal(part.begin() + 1, part.end(), shape.begin() + 1, shape.end()),
                  "{} does not stack on {}", tensor.parts[i].name, tensor.parts.front().name);
    shape.front() += part.front();
  }
  return Shape(shape);
}

template <typename View>
View view_of(View flat, int64_t offset, const Shape& shape) {
  return flat.rows(offset, offset + shape.num_elements()).reshaped(shape);
}

}  // namespace

BoundParameters::BoundParameters(const std::vector<ModelTensor>& tensors, DType dtype, Ops& ops,
                                 int64_t num_groups, Quantization quantization)
    : dtype_(dtype), ops_(&ops), layout_(tensors, num_groups) {
  const int64_t alignment = kParameterAlignment * dtype_bytes(dtype);
  int64_t end = 0;
  for (const ModelTensor& tensor : tensors) {
    const Quantization kept = tensor.kind == ParameterKind::kMatrix ? quantization : Quantization::kNone;
    stored_begins_.resize(static_cast<size_t>(tensor.group + 1), end);
    tensors_.push_back(
        {tensor, layout_.at(tensor.parts.front().name).offset, stacked_shape(tensor), kept, end});
    const Bound& bound = tensors_.back();
    const int64_t size_bytes = kept == Quantization::kNone ? bound.shape.num_elements() * dtype_bytes(dtype)
                                                           : bound.matrix(nullptr).size_bytes();
    end += round_up(size_bytes, alignment);
  }
  stored_begins_.resize(layout_.groups().size() + 1, end);
  group_weights_.resize(layout_.groups().size());
  group_gradients_.resize(layout_.groups().size());
}

QuantizedMatrix<std::byte> BoundParameters::Bound::matrix(std::byte* data) const {
  QuantizedMatrix<std::byte> matrix = {quantization, data, shape[0], shape[1]};
  const std::vector<ParameterPart>& parts = tensor.parts;
  TESSERA_CHECK(parts.size() <= matrix.later_parts.size() + 1, "{} parts of a matrix", parts.size());
  int64_t row = 0;
  for (size_t part = 1; part < parts.size(); ++part) {
    row += parts[part - 1].shape[0];
    matrix.later_parts[part - 1] = row;
  }
  return matrix;
}

template <typename Body>
void BoundParameters::for_each_tensor(int64_t group, const Body& body) const {
  const auto in_front = [](const Bound& bound, int64_t of_group) { return bound.tensor.group < of_group; };
  auto at = std::lower_bound(tensors_.begin(), tensors_.end(), group, in_front);
  for (; at != tensors_.end() && at->tensor.group == group; ++at) body(*at);
}

template <typename Body>
void BoundParameters::for_each_matrix(int64_t group, const Body& body) const {
  for_each_tensor(group, [&](const Bound& bound) {
    LinearWeight* const* matrix = std::get_if<LinearWeight*>(&bound.tensor.weight);
    if (matrix != nullptr && bound.quantization == Quantization::kNone) {
      body(**matrix, bound.shape, bound.tensor.transposed);
    }
  });
}

void BoundParameters::bind(ParameterAccess& access) {
  const Device& device = ops_->device();
  TESSERA_CHECK(&device == &access.device(), "parameters on {} for a model on {}", access.device().name(),
                device.name());
  access_ = &access;
}

void BoundParameters::bind(TensorView flat_weights, TensorView flat_gradients) {
  check_is_on(ops_->device(), flat_weights);
  check_is_on(ops_->device(), flat_gradients);
  TESSERA_CHECK((flat_weights.dtype() == dtype_ || flat_weights.dtype() == DType::kU8) &&
                    flat_weights.size_bytes() == stored_bytes(),
                "weights of {} {}, expected {} bytes of {}", flat_weights.num_elements(),
                dtype_name(flat_weights.dtype()), stored_bytes(), dtype_name(dtype_));
  TESSERA_CHECK(flat_gradients.empty() || (flat_gradients.dtype() == DType::kF32 &&
                                           flat_gradients.num_elements() == layout_.num_elements()),
                "gradients of {} {}, expected {} F32", flat_gradients.num_elements(),
                dtype_name(flat_gradients.dtype()), layout_.num_elements());
  access_ = nullptr;
  weights_are_bound_ = true;
  std::fill(group_gradients_.begin(), group_gradients_.end(), TensorView());
  for (int64_t group = 0; group < num_groups(); ++group) {
    bind_weights(group, flat_weights.address() + stored_begin(group));
    if (!flat_gradients.empty()) bind_gradients(group, flat_gradients);
  }
  assign_packed_forms();
}

void BoundParameters::bind_weights(int64_t group, std::byte* of_group) {
  for_each_tensor(group, [&](const Bound& bound) {
    std::byte* const data = of_group + (bound.stored_begin - stored_begin(group));
    if (bound.quantization != Quantization::kNone) {
      const QuantizedMatrix<std::byte> matrix = bound.matrix(data);
      *std::get<LinearWeight*>(bound.tensor.weight) = {
          ConstQuantizedMatrix{matrix.kind, data, matrix.N, matrix.K, matrix.later_parts}, dtype_};
      return;
    }
    const ConstTensorView view(data, dtype_, bound.shape, ops_->device());
    std::visit([&](auto* weight) { *weight = view; }, bound.tensor.weight);
  });
}

BoundParameters::Place BoundParameters::place_of(const Parameter& parameter, std::byte* of_group) const {
  const auto after = [](int64_t offset, const Bound& bound) { return offset < bound.offset; };
  const Bound& bound =
      *std::prev(std::upper_bound(tensors_.begin(), tensors_.end(), parameter.offset, after));
  std::byte* const data = of_group + (bound.stored_begin - stored_begin(parameter.group));
  const int64_t before = parameter.offset - bound.offset;
  if (bound.quantization == Quantization::kNone) return {.elements = data + before * dtype_bytes(dtype_)};
  return {.matrix = bound.matrix(data), .first_row = before / bound.shape[1]};
}

void BoundParameters::bind_gradients(int64_t group, TensorView flat) {
  const ParameterLayout::Group range = layout_.groups()[static_cast<size_t>(group)];
  group_gradients_[static_cast<size_t>(group)] = flat.rows(range.begin, range.end);
  for_each_tensor(
      group, [&](const Bound& bound) { *bound.tensor.gradient = view_of(flat, bound.offset, bound.shape); });
}

void BoundParameters::open_weights(int64_t group, WeightUse use) {
  if (access_ == nullptr) return;
  bind_opened_weights(group, access_->open_weights(group, use));
}

void BoundParameters::bind_opened_weights(int64_t group, std::byte* data) {
  std::byte*& bound = group_weights_[static_cast<size_t>(group)];
  if (data == bound) return;
  bound = data;
  bind_weights(group, data);
  assign_packed_forms(group, access_->packed_forms(group));
}

void BoundParameters::close_weights(int64_t group) {
  if (access_ != nullptr) access_->close_weights(group);
}

void BoundParameters::open_gradients(int64_t group) {
  if (access_ == nullptr) return;
  std::byte* data = access_->open_gradients(group);
  if (data == group_gradients_[static_cast<size_t>(group)].address()) return;
  bind_gradients(group, flat_gradients(layout_, group, data, ops_->device()));
}

void BoundParameters::close_gradients(int64_t group) {
  if (access_ != nullptr) access_->close_gradients(group);
}

template <typename Body>
void BoundParameters::for_each_gradient(int64_t group, const Body& body) const {
  const TensorView flat = gradients(group);
  const int64_t begin = layout_.groups()[static_cast<size_t>(group)].begin;
  for (const Parameter& parameter : layout_.parameters()) {
    if (parameter.group != group) continue;
    const int64_t offset = parameter.offset - begin;
    body(parameter, flat.rows(offset, offset + parameter.num_elements));
  }
}

void BoundParameters::add_squares(int64_t group, bool with_matrices, double* squares) const {
  if (squares == nullptr) return;
  for_each_gradient(group, [&](const Parameter& parameter, ConstTensorView gradient) {
    const bool no_product_sums_it =
        is_vector(parameter.kind) || parameter.kind == ParameterKind::kPositionBias;
    if (no_product_sums_it || with_matrices) *squares += ops_->sum_of_squares(gradient);
  });
}

void BoundParameters::show_gradients(int64_t group, const GradientWatch& watch) const {
  for_each_gradient(group, watch);
}

int64_t BoundParameters::packed_bytes(int64_t group, FormsKept kept) const {
  int64_t bytes = 0;
  for_each_matrix(group, [&](const LinearWeight&, const Shape& shape, bool /*transposed*/) {
    bytes += static_cast<int64_t>(kept) * ops_->packed_weight_bytes(shape[0], shape[1], dtype_);
  });
  return bytes;
}

int64_t BoundParameters::packed_bytes(FormsKept kept) const {
  int64_t total = 0;
  for (int64_t group = 0; group < num_groups(); ++group) total += packed_bytes(group, kept);
  return total;
}

void BoundParameters::reserve_packed_forms(FormsKept kept) {
  kept_ = kept;
  if (access_ != nullptr) {
    std::vector<int64_t> bytes_by_group;
    for (int64_t group = 0; group < num_groups(); ++group) {
      bytes_by_group.push_back(packed_bytes(group, kept_));
    }
    packed_memory_ = DeviceBuffer();
    if (packed_bytes(kept_) > 0) access_->reserve_packed_forms(bytes_by_group);
    // They are bound again, with their forms, when opened.
    std::fill(group_weights_.begin(), group_weights_.end(), nullptr);
    return;
  }
  packed_memory_ = ops_->device().allocate(packed_bytes(kept_));
  if (weights_are_bound_) assign_packed_forms();
}

void BoundParameters::assign_packed_forms() {
  std::byte* memory = packed_memory_.address();
  for (int64_t group = 0; group < num_groups(); ++group) {
    assign_packed_forms(group, memory);
    if (memory != nullptr) memory += packed_bytes(group, kept_);
  }
  packed_forms_are_stale_ = true;
}

void BoundParameters::assign_packed_forms(int64_t group, std::byte* memory) {
  for_each_matrix(group, [&](LinearWeight& matrix, const Shape& shape, bool transposed) {
    const int64_t size = ops_->packed_weight_bytes(shape[0], shape[1], dtype_);
    PackedForms forms;
    if (memory != nullptr) {
      // The form of the product itself, then that of its gradient.
      (transposed ? forms.backward_input : forms.forward) = memory;
      memory += size;
      if (kept_ == FormsKept::kAll) {
        (transposed ? forms.forward : forms.backward_input) = memory;
        memory += size;
      }
    }
    matrix = {matrix.w_NK, forms};
  });
}

void BoundParameters::refresh_packed_forms() {
  if (packed_memory_.size_bytes() == 0 || !packed_forms_are_stale_) return;
  for (int64_t group = 0; group < num_groups(); ++group) pack_group(group, PackShare());
  packed_forms_are_stale_ = false;
}

void BoundParameters::pack_group(int64_t group, std::byte* weights, const PackShare& share) {
  bind_opened_weights(group, weights);
  pack_group(group, share);
}

// The matrices, laid end to end, are cut into stretches of equal length, each boundary moved to the nearest
// row where a cut is allowed.
void BoundParameters::pack_group(int64_t group, const PackShare& share) {
  int64_t num_elements = 0;
  for_each_matrix(group, [&](const LinearWeight&, const Shape& shape, bool /*transposed*/) {
    num_elements += shape.num_elements();
  });
  int64_t matrix_begin = 0;
  for_each_matrix(group, [&](const LinearWeight& matrix, const Shape&, bool /*transposed*/) {
    const ConstTensorView w_NK = matrix.w_NK;
    const auto first_row = [&](int64_t share_index) {
      const int64_t element = num_elements * share_index / share.count - matrix_begin;
      if (element <= 0) return int64_t{0};
      if (element >= w_NK.num_elements()) return w_NK.dim(0);
      const int64_t row = (element / w_NK.dim(1) + kPackedRows / 2) / kPackedRows * kPackedRows;
      return std::min(row, w_NK.dim(0));
    };
    const RowRange rows = {first_row(share.index), first_row(share.index + 1)};
    if (rows.begin < rows.end) ops_->pack_linear_weight(w_NK, matrix.packed, rows);
    matrix_begin += w_NK.num_elements();
  });
}

std::vector<LinearLimits> BoundParameters::layer_products(int64_t max_rows, FormsKept kept) const {
  std::vector<LinearLimits> products;
  for (const Bound& bound : tensors_) {
    const bool is_matrix = bound.tensor.kind == ParameterKind::kMatrix;
    if (!is_matrix && bound.tensor.kind != ParameterKind::kRouter) continue;
    const int64_t N = bound.shape[0], K = bound.shape[1];
    const bool is_listed = std::ranges::any_of(products, [&](const LinearLimits& product) {
      return product.weight.N == N && product.weight.K == K && product.transposed == bound.tensor.transposed;
    });
    const bool is_packed = is_matrix && kept != FormsKept::kNone && bound.quantization == Quantization::kNone;
    if (!is_listed)
      products.push_back(
          {max_rows, {N, K, is_packed ? N : 0, 0}, bound.quantization, bound.tensor.transposed});
  }
  return products;
}

}  // namespace tessera
