// The tensors of a model in memory: the views by which its operations read them, bound to the caller's flat
// arrays, or group by group to what a ParameterAccess opens; and their packed forms
// (kernels/gemm/linear_weight.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "model/model_tensor.h"
#include "model/parameter_access.h"
#include "model/parameters.h"
#include "ops/ops.h"
#include "tensor/device.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Called with the gradient of every parameter (F32, flat), as far as it is summed up on this rank, once its
// group is complete.
using GradientWatch = std::function<void(const Parameter& parameter, ConstTensorView gradient)>;

// Packed forms kept of every matrix: none, forward's, or backward's too.
enum class FormsKept { kNone = 0, kForward = 1, kAll = 2 };

class BoundParameters {
 public:
  BoundParameters() = default;
  // The views of the tensors stay where they are.
  // `num_groups` as for a ParameterLayout. The matrices of layers are kept in the form of `quantization`; if
  // that is not kNone, they are never trained.
  BoundParameters(const std::vector<ModelTensor>& tensors, DType dtype, Ops& ops, int64_t num_groups = 0,
                  Quantization quantization = Quantization::kNone);

  const ParameterLayout& layout() const { return layout_; }
  int64_t num_groups() const { return std::ssize(layout_.groups()); }

  // Bytes of all weights as they are kept: of the flat array of layout(), or fewer with quantized ones. They
  // are in the order of layout(), and group `group` (or the end, after the last) begins at the second.
  int64_t stored_bytes() const { return stored_begins_.back(); }
  int64_t stored_begin(int64_t group) const { return stored_begins_[static_cast<size_t>(group)]; }
  // Where a parameter is kept whose group begins at `of_group`: as elements in the model's dtype, or as rows
  // of a quantized matrix.
  struct Place {
    std::byte* elements = nullptr;  // null: quantized
    QuantizedMatrix<std::byte> matrix = {};
    int64_t first_row = 0;
  };
  Place place_of(const Parameter& parameter, std::byte* of_group) const;

  // The flat arrays of layout().num_elements(): weights (U8 [stored_bytes()] if some are quantized), and
  // gradients F32 or empty.
  void bind(TensorView flat_weights, TensorView flat_gradients);
  void bind(ParameterAccess& access);
  bool has_weights() const { return access_ != nullptr || weights_are_bound_; }
  bool has_gradients() const { return access_ != nullptr || !group_gradients_.front().empty(); }

  // Without a ParameterAccess everything is open.
  void open_weights(int64_t group, WeightUse use);
  void close_weights(int64_t group);
  void open_gradients(int64_t group);
  void close_gradients(int64_t group);
  // All elements of a group's gradients, including gaps; the group has been opened.
  TensorView gradients(int64_t group) const { return group_gradients_[static_cast<size_t>(group)]; }
  // Adds the squares of a group's gradients, of all or of norms and biases alone, unless `squares` is null.
  void add_squares(int64_t group, bool with_matrices, double* squares) const;
  void show_gradients(int64_t group, const GradientWatch& watch) const;

  // Bytes of the packed forms of all matrices.
  int64_t packed_bytes(FormsKept kept) const;
  // Reserves memory for them, here or in the ParameterAccess.
  void reserve_packed_forms(FormsKept kept);
  int64_t reserved_packed_bytes() const { return packed_memory_.size_bytes(); }
  void weights_changed() { packed_forms_are_stale_ = true; }
  // Packs the current weights into the memory reserved here, if they have changed.
  void refresh_packed_forms();
  // See TrainableModel::pack_group.
  void pack_group(int64_t group, std::byte* weights, const PackShare& share);

  // The products with every matrix of the layers, of max_rows tokens; equal ones once.
  std::vector<LinearLimits> layer_products(int64_t max_rows, FormsKept kept) const;

 private:
  struct Bound {
    ModelTensor tensor;
    int64_t offset;
    Shape shape;  // of all parts together
    Quantization quantization;
    int64_t stored_begin;  // bytes

    QuantizedMatrix<std::byte> matrix(std::byte* data) const;
  };

  // `of_group`: where the group begins.
  void bind_weights(int64_t group, std::byte* of_group);
  void bind_gradients(int64_t group, TensorView flat);
  // Binds a group that is, or is about to be, open at `data`.
  void bind_opened_weights(int64_t group, std::byte* data);
  int64_t packed_bytes(int64_t group, FormsKept kept) const;
  // Points all matrices to their packed forms in packed_memory_, or one group's matrices to theirs in
  // `memory` (nullptr: not kept).
  void assign_packed_forms();
  void assign_packed_forms(int64_t group, std::byte* memory);
  void pack_group(int64_t group, const PackShare& share);
  template <typename Body>
  void for_each_tensor(int64_t group, const Body& body) const;
  template <typename Body>
  void for_each_gradient(int64_t group, const Body& body) const;
  // Visits the matrices of a group that may have packed forms, in the order of these in memory.
  template <typename Body>
  void for_each_matrix(int64_t group, const Body& body) const;

  DType dtype_ = DType::kF32;
  Ops* ops_ = nullptr;
  ParameterLayout layout_;
  std::vector<Bound> tensors_;
  std::vector<int64_t> stored_begins_;  // by group, and the end
  ParameterAccess* access_ = nullptr;
  bool weights_are_bound_ = false;
  std::vector<std::byte*> group_weights_;  // with access_: what the views point to
  std::vector<TensorView> group_gradients_;
  FormsKept kept_ = FormsKept::kNone;
  DeviceBuffer packed_memory_;
  bool packed_forms_are_stale_ = true;
};

}  // namespace tessera
