// GGUF names of a model's metadata and tensors, as llama.cpp's convert_hf_to_gguf.py writes them for the
// families that have a gguf_architecture (formats/huggingface/model_families.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf/gguf.h"
#include "formats/huggingface/model_config.h"

namespace tessera {

// general.architecture and the fields with its prefix. Error(kBadConfig), naming `origin`, for what
// llama.cpp's models of this architecture lack.
std::vector<GgufField> gguf_model_fields(const ModelConfig& config, const std::string& origin);

// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight". The matrices of a layer's experts are in
// one tensor: "model.layers.3.mlp.experts.7.up_proj.weight" -> "blk.3.ffn_up_exps.weight". An unknown name is
// a bug.
std::string gguf_tensor_name(const ModelConfig& config, const std::string& name);

// What is added to the weights of norms: llama.cpp multiplies by them as they are, Gemma by 1 + w.
float gguf_norm_offset(const ModelConfig& config);

// llama.cpp's code for Llama rotates neighbouring elements of a head, Hugging Face the first half with the
// second (Helium: neighbours, too): of Llama's
// q_proj and k_proj, row i of a head becomes row 2 i, and row head_dim / 2 + i row 2 i + 1. Returns the
// number of heads in the tensor with this Hugging Face name; 0 if its rows stay in order.
int64_t num_reordered_heads(const ModelConfig& config, std::string_view name);

// head_dim / 2 divisors of the rotary frequencies; empty unless the model has Llama 3's rope scaling.
std::vector<float> gguf_rope_divisors(const ModelConfig& config);

// The tensors with divisors of rotary frequencies: rope_freqs.weight with Llama 3's scaling,
// rope_factors_long.weight and rope_factors_short.weight with longrope.
struct GgufRopeTensor {
  std::string name;
  std::vector<float> values;
};
std::vector<GgufRopeTensor> gguf_rope_tensors(const ModelConfig& config);

// "8.0B", "135M", "16K"; with experts their number, and the size with one expert per layer: "128x1.2B".
std::string gguf_size_label(int64_t num_parameters, int64_t num_expert_parameters = 0,
                            int64_t num_experts = 0);

}  // namespace tessera
