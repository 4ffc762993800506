// Any text is either rejected with an Error or gives a configuration that can be written and read back.

#include "base/error.h"
#include "formats/huggingface/lora_config.h"
#include "support/fuzz_support.h"

namespace {

constexpr const char* kWords =
    R"~({ } [ ] , : null true false 0 1 -1 0.5 1e308 "LORA" "r": "lora_alpha": "lora_dropout":
    "target_modules": "all-linear" "q_proj" "^model.layers.0.mlp.up_proj": "^(a|.*)*\\.q_proj":
    "layers_to_transform": "layers_pattern":"layers" "exclude_modules": "rank_pattern":{
    "alpha_pattern":{ "use_rslora": "bias":"none" "use_dora": "init_lora_weights":"pissa"
    "modules_to_save":)~";

constexpr const char* kSeed =
    "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":2.5,\"target_modules\":[\"q_proj\",\"v_proj\"],"
    "\"rank_pattern\":{\"v_proj\":2},\"alpha_pattern\":{\"v_proj\":3},\"base_model_name_or_path\":\"m\"}";

void check(std::string_view text) {
  const tessera::LoraConfig config = tessera::parse_lora_config(text, "fuzz");
  const std::string written = tessera::write_lora_config(config);
  TESSERA_CHECK(tessera::write_lora_config(tessera::parse_lora_config(written, "again")) == written, "{}",
                written);
  config.adapter_of("model.layers.0.self_attn.q_proj");  // refuses an expression of exponential cost
}

}  // namespace

// Valid but unsupported settings are kBadConfig, everything else is kBadData.
TESSERA_FUZZ(kWords, kSeed, check, tessera::ExitCode::kBadData, tessera::ExitCode::kBadConfig)
