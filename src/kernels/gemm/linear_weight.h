// The weight of a linear layer and the packed forms its owner may keep alongside it, or the quantized form in
// place of it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "kernels/quantized_weight/quantized_form.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Addresses, on the weight's device, of the forms of a weight [N, K] that pack_linear_weight() makes, each of
// packed_weight_bytes(N, K); null: not kept.
struct PackedForms {
  std::byte* forward = nullptr;
  std::byte* backward_input = nullptr;
};

// Rows [begin, end) of a weight.
struct RowRange {
  int64_t begin;
  int64_t end;
};

// A weight is packed at once, or by ranges of rows that meet at multiples of this.
inline constexpr int64_t kPackedRows = 32;

// The settings that determine the memory of a weight's products.
struct LinearShape {
  int64_t N;
  int64_t K;
  int64_t packed_rows =
      0;  // these are the rows from first_row on of a packed [packed_rows, K]; 0: not packed
  int64_t first_row = 0;
};

// w_NK, row-major, for any product. If its owner also keeps packed forms, they hold the same values: code
// that changes w_NK repacks it. Products without a suitable form pack on every call.
struct LinearWeight {
  LinearWeight() = default;
  // No packed forms.
  template <std::convertible_to<ConstTensorView> View>
  LinearWeight(const View& w) : w_NK(w) {}  // NOLINT(google-explicit-constructor)
  LinearWeight(ConstTensorView w, const PackedForms& forms) : w_NK(w), packed(forms), packed_rows(w.dim(0)) {}

  // Kept in quantized form alone: w_NK is a shape without elements.
  LinearWeight(const ConstQuantizedMatrix& matrix, DType dtype)
      : w_NK(nullptr, dtype, {matrix.N, matrix.K}), quantized(matrix) {}

  bool is_quantized() const { return quantized.kind != Quantization::kNone; }
  bool empty() const { return w_NK.empty() && !is_quantized(); }

  // The layer restricted to outputs [begin, end); not of a quantized one. Cut at multiples of 512 rows it
  // keeps its packed forms.
  LinearWeight rows(int64_t begin, int64_t end) const {
    LinearWeight part = *this;
    part.w_NK = w_NK.rows(begin, end);
    part.first_row = first_row + begin;
    return part;
  }

  ConstTensorView w_NK;
  ConstQuantizedMatrix quantized;
  PackedForms packed;  // packed form of a weight [packed_rows, K]; w_NK is its rows from first_row on
  int64_t packed_rows = 0;
  int64_t first_row = 0;
};

}  // namespace tessera
