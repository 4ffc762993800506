#include "model/llama/activations.h"

#include "model/allocate.h"

namespace tessera {

void Activations::reserve(const ModelConfig& config, int64_t max_tokens) {
  layers.reserve(static_cast<size_t>(config.num_hidden_layers));
  target_rows.rows.reserve(static_cast<size_t>(max_tokens));
  target_rows.targets.reserve(static_cast<size_t>(max_tokens));
}

void Activations::lay_out(const ModelConfig& config, DType dtype, int64_t num_tokens, ActivationMode mode,
                          Arena& saved, Arena& working, const LoraLimits& lora) {
  const bool training = mode != ActivationMode::kForwardOnly;
  const Shape stream_shape = {num_tokens, config.hidden_size};
  layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool own_input = i == 0 || mode != ActivationMode::kForwardOnly;
    const bool own_rest = i == 0 || mode == ActivationMode::kKeepAll;
    const TensorView x_TD =
        own_input ? allocate_tensor(saved, dtype, stream_shape) : layers[0].attention.x_TD;
    if (own_rest) {
      layers[i].attention = allocate_attention_saved(saved, config, dtype, num_tokens, x_TD);
      layers[i].mlp = allocate_mlp_saved(saved, config, dtype, num_tokens);
    } else {
      layers[i] = layers[0];
      layers[i].attention.x_TD = x_TD;
    }
  }
  final_x_TD = training ? allocate_tensor(saved, dtype, stream_shape) : layers[0].attention.x_TD;

  dx_TD = training ? allocate_tensor(working, dtype, stream_shape) : TensorView();
  const Arena::Mark mark = working.mark();
  layer_scratch = allocate_layer_scratch(working, config, dtype, num_tokens, training, lora);
  working.release(mark);
  loss_scratch = allocate_loss_head_scratch(working, config, dtype, num_tokens, training);
  working.release(mark);
}

}  // namespace tessera
