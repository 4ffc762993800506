// A Llama-family language model: forward, loss and explicit backward over packed tokens. One process; knows
// nothing of ranks, optimizer or files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "formats/model_config.h"
#include "model/parameter_access.h"
#include "model/parameters.h"
#include "ops/ops.h"
#include "tensor/packed_batch.h"

namespace tessera {

// The largest micro-batch a model will be given, and what it must be able to do with it.
struct ActivationLimits {
  int64_t max_tokens = 0;           // T
  int64_t max_sequence_length = 0;  // also the number of rotary positions
  bool training = true;
  bool gradient_checkpointing = false;  // keep only each layer's input, compute the layer again in backward
  // Keep the matrices in the forms that the products take, packed again only after weights_changed(), or
  // when the ParameterAccess sees to it.
  bool pack_weights = false;
};

// Bytes by kind, from the arenas' own measurements: what is allocated is what was predicted.
struct ActivationBytes {
  int64_t saved_bytes = 0;      // kept from forward to backward
  int64_t working_bytes = 0;    // temporary, logits chunks included
  int64_t workspace_bytes = 0;  // of Ops
  int64_t packed_bytes = 0;     // weights in packed form; 0 where Ops has no use for them
  int64_t total() const { return saved_bytes + working_bytes + workspace_bytes + packed_bytes; }
};

// Shown what parts of the model yield in a forward pass: the embedding (layer -1, "embedding"), of every
// layer the stream behind its "attention" and what its "mlp" adds to it. [tokens, hidden size].
using LayerWatch = std::function<void(int64_t layer, const char* part, ConstTensorView values_TD)>;
// Shown the gradient of every parameter (F32, flat), as far as it is summed up here, when its group is
// complete.
using GradientWatch = std::function<void(const Parameter& parameter, ConstTensorView gradient)>;

// Asked whether to go on, with the parameter group that is about to be used, in the forward or backward pass.
using BetweenLayers = std::function<bool(int64_t group, WeightUse use)>;

class Model {
 public:
  // dtype is BF16 or F32. `ops` must outlive the model.
  Model(const ModelConfig& config, DType dtype, Ops& ops);
  ~Model();
  Model(Model&&) noexcept;

  const ModelConfig& config() const;
  const ParameterLayout& layout() const;
  DType dtype() const;

  // Without allocating anything.
  ActivationBytes activation_bytes(const ActivationLimits& limits) const;

  // The flat arrays of layout().num_elements(): weights in dtype(), gradients F32 (empty = no training). The
  // memory is the caller's and must outlive the model.
  void bind_parameters(TensorView weights, TensorView gradients);
  // Instead: every parameter group is opened before its use. `access` must outlive the model.
  void bind_parameters(ParameterAccess& access);
  // For `access`, which keeps packed forms: makes a share of those of a group whose elements are at
  // `weights`. The shares of a group are disjoint and nearly equal.
  void pack_group(int64_t group, std::byte* weights, const PackShare& share);
  // Allocates the activation memory.
  void reserve(const ActivationLimits& limits);
  // To be called whenever bound weights have been written, before the next forward.
  void weights_changed();
  // What reserve() allocated; not what it had the ParameterAccess allocate.
  ActivationBytes reserved_bytes() const;

  // d(grad_scale * sum of token losses) / dw is added to the gradients or, for the first micro-batch of a
  // step, replaces whatever they hold (alignment gaps stay as they are). Returns the unscaled sum. Ids must
  // be below vocab_size, the batch within the limits (TESSERA_CHECK). Where the last micro-batch of a step
  // asks for the sum of squares, it is that of all gradients, without another pass over those of matrices.
  LossSums forward_backward(const PackedBatch& batch, float grad_scale, float label_smoothing = 0,
                            WeightUpdate gradient_update = Update::kAdd);
  // The part of a rank without tokens in a forward_backward() or forward_loss() of all ranks: opens and
  // closes what the others do; its gradient is zero.
  void take_part_in_forward_backward(Update gradient_update);
  void take_part_in_forward();
  // The loss alone.
  LossSums forward_loss(const PackedBatch& batch, float label_smoothing = 0);
  // logits_TV F32 of every position (tests, small inputs: a batch whose logits are not cut by columns).
  void forward_logits(const PackedBatch& batch, TensorView logits_TV);

  // Asked before each parameter group is used, on the thread that runs the model. Once it says no the rest of
  // the pass is not computed: the groups are opened and closed, as other ranks rely on it, but what comes of
  // the pass is of no use.
  void call_between_layers(BetweenLayers hook);
  // For those who look for a mistake; an empty one ends it.
  void watch_layers(LayerWatch watch);
  void watch_gradients(GradientWatch watch);

  // The inside (model_impl.h): for Generator, and for benchmarks that time the parts of a step.
  struct Impl;
  Impl& impl() { return *impl_; }
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Token-by-token use of a model with a key-value cache; weights must be bound. One sequence.
class Generator {
 public:
  // Allocates caches for `capacity` positions and buffers for prompts fed in pieces of max_chunk tokens.
  Generator(Model& model, int64_t capacity, int64_t max_chunk = 512);
  ~Generator();
  // What it allocates, without allocating it: caches, buffers, logits.
  static int64_t memory_bytes(const Model& model, int64_t capacity, int64_t max_chunk = 512);

  int64_t length() const;
  void reset();
  // Appends tokens and returns the logits [V] of the last one; valid until the next call. More tokens than
  // capacity is an Error(kBadConfig).
  std::span<const float> feed(std::span<const int32_t> ids);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct SamplingOptions {
  double temperature = 1.0;  // 0 = greedy
  int64_t top_k = 0;         // 0 = off
  double top_p = 1.0;
  double repetition_penalty = 1.0;  // Keskar et al., CTRL, 2019; as in Hugging Face
  uint64_t seed = 42;
};

// One token from logits; `history` are the ids so far (repetition penalty), `index` counts the tokens drawn.
int32_t sample_token(std::span<const float> logits, std::span<const int32_t> history,
                     const SamplingOptions& options, uint64_t index, std::vector<float>* scratch);

// Hugging Face's initialisation: normal(0, initializer_range) for linear layers and embeddings, ones for
// norms, zeros for biases. The value of an element depends on seed, tensor name and position only.
void initialize_parameter(const Parameter& parameter, double initializer_range, uint64_t seed, int64_t begin,
                          TensorView destination);

}  // namespace tessera
