// Any text is either rejected with an Error or gives a configuration that can be written and read back.

#include "base/error.h"
#include "base/log.h"
#include "formats/huggingface/model_config.h"
#include "support/fuzz_support.h"

namespace {

constexpr const char* kWords =
    R"~({ } [ ] , : null true false 0 1 -1 64 1e308 1e-9 9223372036854775807 18446744073709551615 "llama"
    "mistral" "qwen2" "qwen3" "head_dim": "rope_scaling": "rope_parameters": "rope_type": "type":
    "linear" "factor": "rope_theta": "sliding_window": "use_sliding_window":true, "max_window_layers":
    "layer_types": "full_attention" "sliding_attention" "attention_bias": "eos_token_id":[
    "pad_token_id": "tie_word_embeddings": "architectures":[ "quantization_config": "dtype":)~";

constexpr const char* kSeed =
    "{\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":64,\"intermediate_size\":128,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"rope_theta\":5e5,"
    "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":"
    "4.0,"
    "\"original_max_position_embeddings\":64},\"eos_token_id\":[1,2]}";

void check(std::string_view text) {
  tessera::set_log_level(tessera::LogLevel::kError);
  const tessera::ModelConfig config = tessera::parse_model_config(text, "fuzz");
  const std::string written = tessera::write_model_config(config, "bfloat16");
  const tessera::ModelConfig again = tessera::parse_model_config(written, "again");
  TESSERA_CHECK(again.sliding_window == config.sliding_window && again.head_dim == config.head_dim &&
                    again.rope_theta == config.rope_theta && again.eos_token_ids == config.eos_token_ids &&
                    again.qkv_bias == config.qkv_bias,
                "{}", written);
}

}  // namespace

// Valid but unsupported settings are kBadConfig, everything else is kBadData.
TESSERA_FUZZ(kWords, kSeed, check, tessera::ExitCode::kBadData, tessera::ExitCode::kBadConfig)
