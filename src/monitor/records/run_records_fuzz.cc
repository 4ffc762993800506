// Lines of metrics.jsonl and events.jsonl: any text is either refused with Error(kBadData) that names the
// line, or gives a run that can be shown whole, thinned and in part. The first byte chooses which file it is.
#include <array>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "monitor/records/run_report.h"
#include "support/fuzz_support.h"

namespace tessera {
namespace {

constexpr const char* kSeeds[] = {
    "0{\"step\":1,\"loss\":2.5,\"num_tokens\":10,\"step_time_s\":0.5}\n{\"step\":2,\"loss\":null,\"rank_"
    "compute_s\":[1,2]}\n",
    "1{\"event\":\"start\",\"max_steps\":9}\n{\"event\":\"evaluation\",\"step\":1,\"eval_loss\":2}\n{"
    "\"event\":\"finish\"}\n"};

constexpr std::array kWords = {"null",
                               "true",
                               "-1",
                               "1e999",
                               "1e308",
                               "[]",
                               "{}",
                               "\"step\":",
                               "\"event\":",
                               "\n",
                               "\"start\"",
                               "\"warning\"",
                               "9223372036854775808",
                               "[1,2,3]",
                               "\"rank_compute_s\":",
                               "\"loss\":"};

void check(unsigned which, const std::string& text) {
  RunRecords run;
  std::istringstream in(text);
  for_each_record(in, "fuzz", [&](const nlohmann::ordered_json& record) {
    which % 2 == 0 ? run.add_step(record) : run.add_event(record);
  });
  const nlohmann::ordered_json json = run_json("run", run, 0, 10);
  TESSERA_CHECK(json["steps"]["num_steps"] == run.steps().num_rows());
  TESSERA_CHECK(!json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).empty());
  run.steps().thin(4);
}

}  // namespace
}  // namespace tessera

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return tessera::mutate_text(data, size, max_size, seed, tessera::kWords, tessera::kSeeds[seed % 2]);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    tessera::check(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const tessera::Error& error) {
    tessera::check_refusal(error, tessera::ExitCode::kBadData);
  }
  return 0;
}
