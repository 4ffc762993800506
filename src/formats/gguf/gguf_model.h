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

// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight"; an unknown name is a bug.
std::string gguf_tensor_name(const ModelConfig& config, const std::string& name);

// Whether llama.cpp's models of this architecture have the windows of config.sliding_window.
bool gguf_has_sliding_window(const ModelConfig& config);

// What is added to the weights of norms: llama.cpp multiplies by them as they are, Gemma by 1 + w.
float gguf_norm_offset(const ModelConfig& config);

// llama.cpp rotates neighbouring elements of a head, Hugging Face the first half with the second: of Llama's
// q_proj and k_proj, row i of a head becomes row 2 i, and row head_dim / 2 + i row 2 i + 1. Returns the
// number of heads in the tensor with this Hugging Face name; 0 if its rows stay in order.
int64_t num_reordered_heads(const ModelConfig& config, std::string_view name);

// The tensor rope_freqs.weight, head_dim / 2 divisors of the rotary frequencies; empty unless the model has
// Llama 3's rope scaling.
std::vector<float> gguf_rope_divisors(const ModelConfig& config);

// "8.0B", "135M", "16K".
std::string gguf_size_label(int64_t num_parameters);

}  // namespace tessera
