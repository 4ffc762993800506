// A language model as training, sharding, planning and checkpoints see it: forward, loss and explicit
// backward over packed tokens. Single process, independent of ranks, optimizer and files.
//
// A model is a stack of parameter groups: 0 the embedding, then one per layer, the last one the head (final
// norm, projection to logits, loss); with tied embeddings the head also uses group 0. A family (model/llama)
// lists its tensors and computes each of these parts; everything that has to do with where parameters are is
// done here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "formats/huggingface/model_config.h"
#include "io/async_file.h"
#include "model/bound_parameters.h"
#include "model/dropout_place.h"
#include "model/flops.h"
#include "model/lora.h"
#include "model/parameter_access.h"
#include "model/parameters.h"
#include "ops/expert_exchange.h"
#include "ops/ops.h"
#include "tensor/arena.h"
#include "tensor/device.h"
#include "tensor/packed_batch.h"

namespace tessera {

// The largest micro-batch a model will be given, and what it must be able to do with it.
struct ActivationLimits {
  int64_t max_tokens = 0;           // T
  int64_t max_sequence_length = 0;  // also the number of rotary positions
  bool training = true;
  bool gradient_checkpointing = false;  // keep only each layer's input, recompute the layer in backward
  // Given checkpointing, also keep this many outputs of operations, first those that save the most time per
  // byte. At most TrainableModel::num_keepable_outputs().
  int64_t num_kept_outputs = 0;
  bool offload_inputs = false;  // with checkpointing: the layers' inputs wait for backward on disk
  int64_t expert_nodes = 1;     // nodes among which the experts of a layer are divided
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
// Asked whether to continue before a parameter group is used, in the forward or backward pass.
using BetweenLayers = std::function<bool(int64_t group, WeightUse use)>;

// Fills the values that are added to the embedding of token `token` of the batch.
using EmbeddingNoise = std::function<void(int64_t token, std::span<float> noise_D)>;

class TrainableModel {
 public:
  virtual ~TrainableModel() = default;
  TrainableModel(const TrainableModel&) = delete;
  TrainableModel& operator=(const TrainableModel&) = delete;

  const ModelConfig& config() const { return config_; }
  // The trained parameters: all weights, or the adapters if config().lora is set.
  const ParameterLayout& layout() const { return parameters_.layout(); }
  // The weights, which stay as they are if adapters are trained.
  const ParameterLayout& weight_layout() const { return packed_weights().layout(); }
  bool is_adapted() const { return config_.lora.has_value(); }
  DType dtype() const { return dtype_; }
  // The device of the Ops, which holds every tensor that the model receives, allocates or shows.
  Device& device() const { return ops_->device(); }
  Ops& ops() const { return *ops_; }

  // Does not allocate.
  ActivationBytes activation_bytes(const ActivationLimits& limits) const;

  // The flat arrays of layout().num_elements(): weights in dtype(), gradients F32 (empty = no training). The
  // caller owns the memory, which must outlive the model.
  void bind_parameters(TensorView weights, TensorView gradients) { parameters_.bind(weights, gradients); }
  // Alternative for a model on the host: every parameter group is opened before its use. `access` must
  // outlive the model.
  void bind_parameters(ParameterAccess& access) { parameters_.bind(access); }
  // Binds the weights of weight_layout() in a model with adapters: as a flat array (bytes, U8
  // [frozen_bytes()], with config().base_quantization), or group by group. Their gradients are never opened.
  void bind_frozen(TensorView weights) { frozen_.bind(weights, {}); }
  void bind_frozen(ParameterAccess& access) { frozen_.bind(access); }
  // Called by an `access` that keeps packed forms: makes one share of the forms of a group whose elements are
  // at `weights`. The shares of a group are disjoint and nearly equal.
  void pack_group(int64_t group, std::byte* weights, const PackShare& share) {
    parameters_.pack_group(group, weights, share);
  }
  // The scratch file of offload_inputs, which reserve() makes: named before it is called.
  void offload_inputs_to(std::filesystem::path file, const AsyncFileSettings& settings = {}) {
    input_file_ = std::move(file);
    input_file_settings_ = settings;
  }
  // Its size.
  virtual int64_t offloaded_bytes(const ActivationLimits& /*limits*/) const { return 0; }
  virtual AsyncFileStatistics input_file_statistics() const { return {}; }
  // Bytes of the frozen weights, 0 without adapters; where a group of them begins (and where the last one
  // ends); where one of them is kept whose group begins at `of_group`.
  int64_t frozen_bytes() const { return is_adapted() ? frozen_.stored_bytes() : 0; }
  int64_t frozen_begin(int64_t group) const { return frozen_.stored_begin(group); }
  BoundParameters::Place frozen_place(const Parameter& parameter, std::byte* of_group) const {
    return frozen_.place_of(parameter, of_group);
  }
  void pack_frozen_group(int64_t group, std::byte* weights, const PackShare& share) {
    frozen_.pack_group(group, weights, share);
  }
  // Allocates the activation memory.
  void reserve(const ActivationLimits& limits);
  // Given limits.expert_nodes, before the first pass: it must outlive the model. All ranks then run the same
  // passes, with take_part_in_forward() or take_part_in_forward_backward() where they have no rows.
  void exchange_rows_with(ExpertExchange& exchange) { expert_exchange_ = &exchange; }
  // Must be called whenever bound weights have been written, before the next forward.
  void weights_changed() { parameters_.weights_changed(); }
  // Bytes allocated by reserve(), excluding memory it had the ParameterAccess allocate.
  ActivationBytes reserved_bytes() const;

  // Adds d(grad_scale * sum of token losses) / dw to the gradients or, for the first micro-batch of a step,
  // overwrites them (alignment gaps stay as they are); a slice contributes only its own tokens. Returns the
  // unscaled sum. Ids must be below vocab_size, the batch within the limits (TESSERA_CHECK). If the last
  // micro-batch of a step asks for the sum of squares, it covers all gradients, without another pass over
  // those of matrices.
  LossSums forward_backward(const PackedBatch& batch, float grad_scale, float label_smoothing = 0,
                            WeightUpdate gradient_update = Update::kAdd);
  // For a rank without tokens while all ranks run forward_backward() or forward_loss(): opens and closes the
  // same groups as the others; its gradient is zero.
  void take_part_in_forward_backward(Update gradient_update);
  void take_part_in_forward();
  // Computes only the loss, and also the loss of each sequence if `by_sequence` has room for one each.
  LossSums forward_loss(const PackedBatch& batch, float label_smoothing = 0,
                        std::span<LossSums> by_sequence = {});
  // Sets the hook called before each parameter group is used, on the thread that runs the model. Once it
  // returns false the rest of the pass is not computed: groups are still opened and closed, because other
  // ranks rely on it, but the results of the pass are meaningless.
  void call_between_layers(BetweenLayers hook) { between_layers_ = std::move(hook); }
  // forward_backward() adds this noise, rounded to dtype(), to the embedding. An empty function adds none.
  void add_embedding_noise(EmbeddingNoise noise) { embedding_noise_ = std::move(noise); }
  // What forward_backward() drops (config().dropout, and inputs of adapters) follows from these numbers of
  // the tokens of the next batch, which outlive the pass. Without any nothing is dropped.
  void draw_dropout(const PassDropout& of_pass);
  // For debugging; an empty function stops watching.
  void watch_layers(LayerWatch watch) { watch_ = std::move(watch); }
  void watch_gradients(GradientWatch watch) { gradient_watch_ = std::move(watch); }

  // The number of operation outputs that checkpointing can keep rather than recompute.
  virtual int64_t num_keepable_outputs() const { return 0; }
  // Layers whose attention the backward pass computes again.
  virtual int64_t num_recomputed_attentions(const ActivationLimits& /*limits*/) const { return 0; }

  // Floating-point operations of the forward pass over one micro-batch, with cu_seqlens [num_sequences + 1],
  // num_sources and num_targets as in PackedBatch. Without an LM head (num_targets 0) only the layers count.
  virtual ModelFlops flops(std::span<const int32_t> cu_seqlens, int64_t num_sources,
                           int64_t num_targets) const = 0;

 protected:
  // The output of compute_embedding() and, in training, memory of the same shape that is free until
  // backward.
  struct EmbeddingBuffers {
    TensorView x_TD, free_TD;
  };
  // dtype is BF16 or F32. `ops` must outlive the model. The constructor of a family calls list_tensors().
  TrainableModel(const ModelConfig& config, DType dtype, Ops& ops);
  // Every tensor of the model, by group: the views they name belong to the family and stay where they are.
  void list_tensors(const std::vector<ModelTensor>& tensors);
  // The layout() of a model with these tensors.
  static ParameterLayout trained_layout(const ModelConfig& config, const std::vector<ModelTensor>& tensors);

  const ActivationLimits& limits() const { return limits_; }
  const std::filesystem::path& input_file() const { return input_file_; }
  const AsyncFileSettings& input_file_settings() const { return input_file_settings_; }
  // Whether a backward pass follows, which reads what forward saves.
  bool has_backward() const { return has_backward_; }
  const LoraLimits& lora_limits() const { return lora_limits_; }
  // Null: every rank has all experts.
  ExpertExchange* expert_exchange() const { return limits_.expert_nodes > 1 ? expert_exchange_ : nullptr; }
  // What the pass drops of the inputs of adapters; null: nothing.
  const Dropout* adapter_dropout() const {
    return is_training_ && adapter_dropout_.drops() ? &adapter_dropout_ : nullptr;
  }
  // What the pass drops at a place, of all tokens of the batch.
  Dropout dropout_at(double rate, DropoutPlace place, int64_t layer) const {
    if (!is_training_ || rate == 0 || adapter_dropout_.tokens.empty()) return {};
    return {static_cast<float>(rate), dropout_site(adapter_dropout_.site, place, layer),
            adapter_dropout_.tokens};
  }
  // Shows the result of a part of a layer.
  void show(int64_t layer, const char* part, ConstTensorView values_TD) const {
    if (watch_) watch_(layer, part, values_TD);
  }
  // Limits with everything that follows from the list of tensors: `linears` has the matrices of the layers.
  OpsLimits ops_limits_of_layers(const ActivationLimits& limits) const;

  // The parts of a pass, which open and close the groups they use (parameter_access.h).
  //
  // Checks the batch, lays out the buffers for it and binds the workspace.
  void begin(const PackedBatch& batch, bool is_training = false);
  void forward_embedding(const PackedBatch& batch);
  void forward_layers();
  void open_head_weights();
  void close_head_weights();
  LossSums forward_backward_head(const PackedBatch& batch, float grad_scale, float label_smoothing,
                                 WeightUpdate update);
  void backward_layers(WeightUpdate update);
  void backward_embedding(const PackedBatch& batch, WeightUpdate update);
  void refresh_packed_forms() { packed_weights().refresh_packed_forms(); }

 private:
  // The part of a model that its family implements. The groups it needs are open while it computes; nothing
  // is called in an abandoned pass.
  //
  // Bytes that lay_out() takes from each of its arenas (saved_bytes, working_bytes) for the largest batch.
  virtual ActivationBytes arena_bytes(const ActivationLimits& limits) const = 0;
  // Sets up the buffers for a batch, which outlives the pass. `saved` lives from forward to backward.
  virtual void lay_out(const PackedBatch& batch, Arena& saved, Arena& working) = 0;
  virtual OpsLimits ops_limits(const ActivationLimits& limits) const = 0;
  // Memory beyond the arenas that depends on the limits alone, counted as working_bytes.
  virtual int64_t table_bytes(const ActivationLimits& /*limits*/) const { return 0; }
  virtual int64_t reserve_tables(const ActivationLimits& /*limits*/) { return 0; }

  // Products add the squares of matrices to update.squares; the caller adds those of norms, biases and group
  // 0. Without targets in the batch compute_head() leaves the gradients alone and returns {}; the gradient of
  // the stream is then zero.
  virtual void compute_embedding(const PackedBatch& batch) = 0;
  // What comes between the embedding of the tokens, to which noise may have been added, and the first layer.
  virtual void finish_embedding(const PackedBatch& /*batch*/) {}
  virtual EmbeddingBuffers embedding_buffers() = 0;
  virtual void compute_layer(int64_t layer) = 0;
  // by_sequence [num_sequences] is zero, or empty.
  virtual LossSums compute_loss(const PackedBatch& batch, float label_smoothing,
                                std::span<LossSums> by_sequence) = 0;
  virtual LossSums compute_head(const PackedBatch& batch, float grad_scale, float label_smoothing,
                                WeightUpdate update) = 0;
  // Called before compute_layer_backward() if gradient checkpointing is on.
  virtual void recompute_layer(int64_t layer) = 0;
  virtual void compute_layer_backward(int64_t layer, WeightUpdate update) = 0;
  // If embeddings are tied, `update` is kAdd: the gradient of the LM head is already there.
  virtual void compute_embedding_backward(const PackedBatch& batch, Update update) = 0;

  // The tensors with packed forms: adapters are too small to need any.
  BoundParameters& packed_weights() { return is_adapted() ? frozen_ : parameters_; }
  const BoundParameters& packed_weights() const { return is_adapted() ? frozen_ : parameters_; }
  int64_t num_layers() const { return parameters_.num_groups() - 2; }
  int64_t head_group() const { return parameters_.num_groups() - 1; }
  bool is_tied() const { return config_.tie_word_embeddings; }
  // Of a rank without rows: helps the other ranks to compute a layer whose experts are divided.
  // Backward adds to the gradients.
  virtual void help_with_layer(int64_t /*layer*/) {}
  virtual void help_with_layer_backward(int64_t /*layer*/) {}
  // Asks between_layers_, too.
  void open_weights(int64_t group, WeightUse use);
  void close_weights(int64_t group);
  void close_gradients(int64_t group);
  void open_head_gradients();
  // Open and close the same groups as forward up to the loss, and as backward once the head's gradients are
  // open, without computing anything but what other ranks need: the gradient is zero otherwise.
  void forward_nothing();
  void add_noise();
  void backward_nothing(WeightUpdate update);
  void close_zero_gradients(int64_t group, WeightUpdate update);

  ModelConfig config_;
  DType dtype_;
  Ops* ops_;
  BoundParameters parameters_;  // the trained ones
  BoundParameters frozen_;      // the weights, if adapters are trained; has the same groups
  LoraLimits lora_limits_;
  BetweenLayers between_layers_;
  EmbeddingNoise embedding_noise_;
  std::vector<float> noise_;            // a few rows of it
  std::vector<std::byte> noise_bytes_;  // in dtype()
  Dropout adapter_dropout_;             // its site is the seed of the pass
  bool is_training_ = false;            // the pass, rather than computing a loss alone
  bool is_abandoned_ = false;           // the rest of the pass is not computed
  LayerWatch watch_;
  GradientWatch gradient_watch_;
  ActivationLimits limits_;
  ExpertExchange* expert_exchange_ = nullptr;
  PackedBatch one_token_;  // for which buffers are laid out on a rank without rows
  bool has_backward_ = false;
  std::filesystem::path input_file_;
  AsyncFileSettings input_file_settings_;
  DeviceBuffer saved_memory_;
  DeviceBuffer working_memory_;
  DeviceBuffer workspace_;
  int64_t reserved_table_bytes_ = 0;
};

}  // namespace tessera
