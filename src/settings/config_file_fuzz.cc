// Settings files as JSON and as YAML, with a setting of each type: any text either sets them or is refused
// with Error(kBadConfig) in one line. The first byte chooses the syntax.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/fuzz_support.h"
#include "base/text.h"
#include "settings/config_file.h"

namespace tessera {
namespace {

constexpr std::array kSeeds = {
    "0{\"packing\": true, \"max_steps\": 1e3, \"learning_rate\": 5e-05,\n \"output_dir\": \"out\", "
    "\"dataset\": "
    "[\"a\", \"b\"],\n \"lr_scheduler_kwargs\": {\"num_cycles\": 0.5}, \"seed\": null}",
    "1# run\npacking: yes\nmax_steps: 1e3\nlearning_rate: 5.0e-05\noutput_dir: 'out'\ndataset:\n  - a\n  - "
    "\"b\"\n"
    "lr_scheduler_kwargs: {num_cycles: 0.5}\nseed: ~\n",
};

constexpr std::array kWords = {"packing",
                               "max_steps:",
                               "learning_rate",
                               "dataset: [",
                               "output_dir: |\n  ",
                               "seed: ",
                               "&a ",
                               "*a",
                               "<<: ",
                               "!!int ",
                               "---\n",
                               "...\n",
                               "? ",
                               ": ",
                               "- ",
                               "[[[[",
                               "{{{{",
                               "\n  ",
                               "null",
                               "~",
                               ".inf",
                               "0x1F",
                               "'",
                               "\"",
                               "\\u00e9",
                               "\xff",
                               "9223372036854775808",
                               ",",
                               "}",
                               "]"};

void check(ConfigSyntax syntax, std::string_view text) {
  bool packing = false;
  int64_t max_steps = 0;
  double learning_rate = 0;
  std::string output_dir, lr_scheduler_kwargs;
  std::vector<std::string> dataset;
  std::optional<int64_t> seed;
  FlagTable table;
  table.add("packing", &packing, "help");
  table.add("max_steps", &max_steps, "help");
  table.add("learning_rate", &learning_rate, "help");
  table.add("output_dir", &output_dir, "help");
  table.add("lr_scheduler_kwargs", &lr_scheduler_kwargs, "help");
  table.add("dataset", &dataset, "help");
  table.add("seed", &seed, "help");
  apply_config_text(text, syntax, "fuzz", &table);
  TESSERA_CHECK(is_valid_utf8(output_dir + lr_scheduler_kwargs));
}

}  // namespace
}  // namespace tessera

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return tessera::mutate_text(data, size, max_size, seed, tessera::kWords, tessera::kSeeds[seed % 2]);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    tessera::check(data[0] % 2 == 0 ? tessera::ConfigSyntax::kJson : tessera::ConfigSyntax::kYaml,
                   {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const tessera::Error& error) {
    // The folder of dataset_dir does not exist.
    const bool is_missing = error.code() == tessera::ExitCode::kNoInput;
    tessera::check_refusal(error, is_missing ? error.code() : tessera::ExitCode::kBadConfig);
  }
  return 0;
}
