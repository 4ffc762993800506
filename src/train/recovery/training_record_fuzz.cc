// The "run" object of a checkpoint's manifest and the log_history of its trainer_state.json: any text is
// either refused with Error(kBadData) or gives a value that survives writing and reading back. The first byte
// chooses which.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "report/trainer_state.h"
#include "support/fuzz_support.h"
#include "train/recovery/training_record.h"

namespace tessera {
namespace {

constexpr const char* kAgain = "again";

TrainingRecord full_record() {
  TrainingRecord record;
  record.arguments = {{"learning_rate", "0.1"}, {"dataset", {"a.txt", "b.txt"}}};
  record.world_size = 2;
  record.model = {{"hidden_size", 64}, {"rope_scaling", nullptr}};
  record.base = ValueSums{17, 18, 19};
  record.data = {.num_rows = 9,
                 .num_tokens = 90,
                 .fingerprint = "0123456789abcdef",
                 .max_length = 16,
                 .packing = "isolated",
                 .seed = 42,
                 .micro_batch_size = 2,
                 .gradient_accumulation_steps = 2,
                 .world_size = 2,
                 .global_batch_size = 8};
  record.progress.step = 3;
  record.progress.epoch = 0.5;
  record.progress.plateau = PlateauState{.learning_rate = 1e-3, .best = 2.5, .num_bad = 1};
  record.progress.loss_spikes = {.losses = {2.5, 2.25}, .grad_norms = {1, 0.5}};
  return record;
}

std::string log_history_text() {
  TrainerState state;
  state.log_history = {{.values = {{"loss", 2.5}, {"num_tokens", int64_t{100}}}, .epoch = 0.5, .step = 1}};
  return trainer_state_json(state, false, false);
}

const std::vector<std::string>& seeds() {
  static const std::vector<std::string> the_seeds = {"0" + training_record_json(full_record()),
                                                     "1" + log_history_text()};
  return the_seeds;
}

constexpr std::array kWords = {"null",   "true",  "\"\"", "-1",        "0",          "1e999",
                               "1e308",  "0.5",   "[]",   "{}",        "\"none\"",   "9223372036854775808",
                               "\"a\":", "[1,2]", ",",    "\"step\":", "\"joined\"", "\"epoch\":"};

void check(unsigned which, const std::string& text) {
  if (which % 2 == 0) {
    const std::string once = training_record_json(parse_training_record(text, "fuzz"));
    TESSERA_CHECK(training_record_json(parse_training_record(once, kAgain)) == once);
  } else {
    TrainerState state;
    state.log_history = parse_log_history(text, "fuzz");
    const std::string once = trainer_state_json(state, false, false);
    state.log_history = parse_log_history(once, kAgain);
    TESSERA_CHECK(trainer_state_json(state, false, false) == once);
  }
}

}  // namespace
}  // namespace tessera

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  const auto& seeds = tessera::seeds();
  return tessera::mutate_text(data, size, max_size, seed, tessera::kWords, seeds[seed % seeds.size()]);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    tessera::check(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const tessera::Error& error) {
    TESSERA_CHECK(!std::string_view(error.what()).starts_with(tessera::kAgain), "{}", error.what());
    tessera::check_refusal(error, tessera::ExitCode::kBadData);
  }
  return 0;
}
