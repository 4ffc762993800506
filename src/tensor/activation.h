// The function between the two products of a feed-forward block.
#pragma once

namespace tessera {

// Named as in Hugging Face's ACT2FN; the gated ones multiply the result by a second half of the first product
// (Shazeer, "GLU variants improve transformer", 2020).
enum class Activation { kGatedSilu, kGatedGeluTanh, kGatedGelu, kRelu, kGelu };

// The gated activation of experts whose gate is cut off above a limit and whose other half is on both sides
// (kernels/clamped_swiglu).
struct ClampedSwiglu {
  float alpha = 1.702f;  // times the gate, in its sigmoid
  float limit = 7;

  bool operator==(const ClampedSwiglu&) const = default;
};

// Whether the first product is twice as wide as the second takes: [gate: F | up: F].
constexpr bool is_gated(Activation activation) {
  return activation != Activation::kRelu && activation != Activation::kGelu;
}

}  // namespace tessera
