// A DeepSpeed configuration, as text and as a flag's argument: any text is read or rejected with a one-line
// Error(kBadConfig).
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "settings/deepspeed/deepspeed_file.h"
#include "support/fuzz_support.h"

namespace {

constexpr std::array kWords = {"\"auto\"",
                               "true",
                               "null",
                               "-1",
                               "0",
                               "1e9",
                               "1e999",
                               "\"x\"",
                               "{}",
                               "[",
                               "]",
                               ",",
                               ":",
                               "\"stage\":",
                               "\"zero_optimization\": {",
                               "\"bf16\": {\"enabled\": true}",
                               "\"fp16\":",
                               "\"params\":",
                               "\"betas\": [0.9, 0.99]",
                               "\"scheduler\": {\"type\": \"WarmupCosineLR\"",
                               "\"WarmupDecayLR\"",
                               "\"OneCycle\"",
                               "\"AdamW\"",
                               "\"Lamb\"",
                               "\"offload_optimizer\":",
                               "\"overlap_comm\":",
                               "\"gradient_clipping\":",
                               "\"data_types\":",
                               "\"stage3_max_live_parameters\":",
                               "9223372036854775808"};

constexpr const char* kSeed =
    "{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": \"auto\", "
    "\"gradient_accumulation_steps\": 2,\n"
    " \"gradient_clipping\": 1.0, \"bf16\": {\"enabled\": \"auto\"}, \"zero_optimization\": {\"stage\": 3,\n"
    " \"overlap_comm\": true, \"stage3_prefetch_bucket_size\": 5e7, \"offload_param\": {\"device\": "
    "\"cpu\"}},\n"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-5, \"betas\": [0.8, 0.999], \"eps\": "
    "1e-8}},\n"
    " \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0, \"warmup_num_steps\": "
    "500}},\n"
    " \"data_types\": {\"grad_accum_dtype\": \"fp32\"}, \"steps_per_print\": 2000}";

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return tessera::mutate_text(data, size, max_size, seed, kWords, kSeed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    tessera::parse_deepspeed(text, "fuzz");
  } catch (const tessera::Error& error) {
    tessera::check_refusal(error, tessera::ExitCode::kBadConfig);
  }
  return 0;
}
