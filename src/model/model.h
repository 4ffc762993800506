// A Llama-family language model: forward, loss and explicit backward over packed tokens. Single process;
// knows nothing of ranks, optimizer or files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "formats/huggingface/model_config.h"
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
  bool gradient_checkpointing = false;  // keep only each layer's input, recompute the layer in backward
  // Keep the matrices in the packed form the products take, repacked only after weights_changed() or when the
  // ParameterAccess does so.
  bool pack_weights = false;
};

// Bytes by kind, measured by the arenas themselves: what is allocated is what was predicted.
struct ActivationBytes {
  int64_t saved_bytes = 0;      // kept from forward to backward
  int64_t working_bytes = 0;    // temporary, logits chunks included
  int64_t workspace_bytes = 0;  // Ops scratch
  int64_t packed_bytes = 0;     // weights in packed form; 0 where Ops has no use for them
  int64_t total() const { return saved_bytes + working_bytes + workspace_bytes + packed_bytes; }
};

// Called with the outputs of parts of the model during a forward pass, each [tokens, hidden size]: the
// embedding (layer -1, "embedding"), and for every layer the stream after its "attention" and what its "mlp"
// adds to the stream.
using LayerWatch = std::function<void(int64_t layer, const char* part, ConstTensorView values_TD)>;
// Called with the gradient of every parameter (F32, flat), as far as it is summed up on this rank, once its
// group is complete.
using GradientWatch = std::function<void(const Parameter& parameter, ConstTensorView gradient)>;

// Asked whether to continue before a parameter group is used, in the forward or backward pass.
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
  Device& device() const;  // of the Ops: where all tensors are that the model is given, allocates and shows

  // Does not allocate.
  ActivationBytes activation_bytes(const ActivationLimits& limits) const;

  // The flat arrays of layout().num_elements(): weights in dtype(), gradients F32 (empty = no training). The
  // caller owns the memory, which must outlive the model.
  void bind_parameters(TensorView weights, TensorView gradients);
  // Alternative for a model on the host: every parameter group is opened before its use. `access` must
  // outlive the model.
  void bind_parameters(ParameterAccess& access);
  // Called by an `access` that keeps packed forms: makes one share of the forms of a group whose elements are
  // at `weights`. The shares of a group are disjoint and nearly equal.
  void pack_group(int64_t group, std::byte* weights, const PackShare& share);
  // Allocates the activation memory.
  void reserve(const ActivationLimits& limits);
  // Must be called whenever bound weights have been written, before the next forward.
  void weights_changed();
  // What reserve() allocated, excluding what it had the ParameterAccess allocate.
  ActivationBytes reserved_bytes() const;

  // Adds d(grad_scale * sum of token losses) / dw to the gradients or, for the first micro-batch of a step,
  // overwrites them (alignment gaps stay as they are). Returns the unscaled sum. Ids must be below
  // vocab_size, the batch within the limits (TESSERA_CHECK). If the last micro-batch of a step asks for the
  // sum of squares, it covers all gradients, without another pass over those of matrices.
  LossSums forward_backward(const PackedBatch& batch, float grad_scale, float label_smoothing = 0,
                            WeightUpdate gradient_update = Update::kAdd);
  // For a rank without tokens while all ranks run forward_backward() or forward_loss(): opens and closes the
  // same groups as the others; its gradient is zero.
  void take_part_in_forward_backward(Update gradient_update);
  void take_part_in_forward();
  // Computes only the loss.
  LossSums forward_loss(const PackedBatch& batch, float label_smoothing = 0);
  // Writes logits_TV F32 of every position (for tests and small inputs: batches whose logits are not cut by
  // columns).
  void forward_logits(const PackedBatch& batch, TensorView logits_TV);

  // Sets the hook called before each parameter group is used, on the thread that runs the model. Once it
  // returns false the rest of the pass is not computed: groups are still opened and closed, because other
  // ranks rely on it, but the results of the pass are meaningless.
  void call_between_layers(BetweenLayers hook);
  // For debugging; an empty function stops watching.
  void watch_layers(LayerWatch watch);
  void watch_gradients(GradientWatch watch);

  // The internals (model_impl.h), for Generator and for benchmarks that time the parts of a step.
  struct Impl;
  Impl& impl() { return *impl_; }
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Token-by-token generation with a key-value cache; weights must be bound. One sequence.
class Generator {
 public:
  // Allocates caches for `capacity` positions and buffers for prompts fed in chunks of max_chunk tokens.
  Generator(Model& model, int64_t capacity, int64_t max_chunk = 512);
  ~Generator();
  // The bytes the constructor would allocate: caches, buffers, logits. Does not allocate.
  static int64_t memory_bytes(const Model& model, int64_t capacity, int64_t max_chunk = 512);

  int64_t length() const;
  void reset();
  // Appends tokens and returns the logits [V] of the last one, valid until the next call. Exceeding the
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

// Draws one token from logits; `history` holds the ids so far (for the repetition penalty), `index` counts
// the tokens drawn.
int32_t sample_token(std::span<const float> logits, std::span<const int32_t> history,
                     const SamplingOptions& options, uint64_t index, std::vector<float>* scratch);

// Hugging Face's initialisation: normal(0, initializer_range) for linear layers and embeddings, ones for
// norms, zeros for biases. An element's value depends only on seed, tensor name and position.
void initialize_parameter(const Parameter& parameter, double initializer_range, uint64_t seed, int64_t begin,
                          TensorView destination);

}  // namespace tessera
