// Any text is either rejected with an Error or gives a configuration that can be written and read back.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "base/fuzz_support.h"
#include "formats/huggingface/lora_config.h"

namespace {

constexpr std::array kWords = {"{",
                               "}",
                               "[",
                               "]",
                               ",",
                               ":",
                               "null",
                               "true",
                               "false",
                               "0",
                               "1",
                               "-1",
                               "0.5",
                               "1e308",
                               "\"LORA\"",
                               "\"r\":",
                               "\"lora_alpha\":",
                               "\"lora_dropout\":",
                               "\"target_modules\":",
                               "\"all-linear\"",
                               "\"q_proj\"",
                               "\"^model.layers.0.mlp.up_proj\":",
                               "\"^(a|.*)*\\\\.q_proj\":",
                               "\"layers_to_transform\":",
                               "\"layers_pattern\":\"layers\"",
                               "\"exclude_modules\":",
                               "\"rank_pattern\":{",
                               "\"alpha_pattern\":{",
                               "\"use_rslora\":",
                               "\"bias\":\"none\"",
                               "\"use_dora\":",
                               "\"init_lora_weights\":\"pissa\"",
                               "\"modules_to_save\":"};

constexpr const char* kSeed =
    "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":2.5,\"target_modules\":[\"q_proj\",\"v_proj\"],"
    "\"rank_pattern\":{\"v_proj\":2},\"alpha_pattern\":{\"v_proj\":3},\"base_model_name_or_path\":\"m\"}";

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return tessera::mutate_text(data, size, max_size, seed, kWords, kSeed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::ExitCode;
  tessera::LoraConfig config;
  try {
    config = tessera::parse_lora_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const tessera::Error& error) {
    // Valid but unsupported settings are kBadConfig, everything else is kBadData.
    const bool is_unsupported = error.code() == ExitCode::kBadConfig;
    tessera::check_refusal(error, is_unsupported ? ExitCode::kBadConfig : ExitCode::kBadData);
    return 0;
  }
  // An exception from here on is a finding.
  const std::string written = tessera::write_lora_config(config);
  if (tessera::write_lora_config(tessera::parse_lora_config(written, "written")) != written) {
    std::fprintf(stderr, "%s\n", written.c_str());
    std::abort();
  }
  try {
    config.adapter_of("model.layers.0.self_attn.q_proj");
  } catch (const tessera::Error& error) {
    tessera::check_refusal(error, ExitCode::kBadConfig);  // an expression of exponential cost
  }
  return 0;
}
