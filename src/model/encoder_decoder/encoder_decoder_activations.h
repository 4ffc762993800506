// Every buffer of a forward and backward pass over S tokens of sources and U of targets, laid out in two
// arenas.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/blocks/attention_block.h"
#include "model/blocks/cross_attention_block.h"
#include "model/blocks/loss_head.h"
#include "model/blocks/mlp_block.h"
#include "tensor/arena.h"

namespace tessera {

struct StackLayerSaved {
  AttentionSaved attention;
  CrossAttentionSaved cross;  // of the decoder's layers
  MlpSaved mlp;
};

// The blocks never run at the same time: their scratch shares memory.
struct StackLayerScratch {
  AttentionScratch attention;
  CrossAttentionScratch cross;
  MlpScratch mlp;
};

struct EncoderDecoderActivations {
  std::vector<StackLayerSaved> layers;  // the encoder's, then the decoder's
  TensorView embedding_TD;              // inputs of the first layer of each stack: sources, then targets
  TensorView encoder_x_SD;              // the encoder's stream after its last layer
  TensorView memory_SD;                 // its norm: what the decoder attends to
  TensorView memory_rstd_S;             // F32
  TensorView final_x_UD;                // the decoder's stream after its last layer
  TensorView dx_TD;                     // gradient of the streams: the encoder's rows, then the decoder's
  TensorView dmemory_SD;
  // Copies of relative_attention_bias, whose group is closed while later layers compute, and the sums of
  // their gradients (F32) over the layers.
  TensorView encoder_bias_BH, decoder_bias_BH;
  TensorView encoder_dbias_BH, decoder_dbias_BH;
  StackLayerScratch scratch;
  LossHeadScratch loss_scratch;
  TargetRows target_rows;

  // Reserves lay_out()'s host memory for any batch of up to max_tokens tokens.
  void reserve(const ModelConfig& config, int64_t max_tokens);
  // Sets up the views. `saved` lives from forward to backward. `kept`: by layer; those of a stack share one
  // set of buffers for the rest, and without training for their inputs.
  void lay_out(const ModelConfig& config, DType dtype, int64_t num_source_tokens, int64_t num_target_tokens,
               std::span<const KeptOutputs> kept, bool training, const LogitsLimits& logits, Arena& saved,
               Arena& working, const LoraLimits& lora);

 private:
  void lay_out_stack(const ModelConfig& config, DType dtype, size_t begin, size_t end,
                     int64_t num_source_tokens, int64_t num_tokens, std::span<const KeptOutputs> kept,
                     bool training, TensorView first_x, Arena& saved);
};

}  // namespace tessera
