// Settings files as JSON and as YAML, with a setting of each type: any text either sets them or is refused
// with Error(kBadConfig) in one line. The first byte chooses the syntax.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/text.h"
#include "settings/config_file.h"
#include "support/fuzz_support.h"

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

constexpr const char* kWords =
    R"~(packing max_steps: learning_rate dataset:␠[ output_dir:␠|␤␠␠ seed:␠ &a␠ *a <<:␠ !!int␠ ---␤ ...␤ ?␠
    :␠ -␠ [[[[ {{{{ ␤␠␠ null ~ .inf 0x1F ' " \u00e9 9223372036854775808 , } ])~"
    " \xff";

void check(std::string_view input) {
  const ConfigSyntax syntax = input[0] % 2 == 0 ? ConfigSyntax::kJson : ConfigSyntax::kYaml;
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
  apply_config_text(input.substr(1), syntax, "fuzz", &table);
  TESSERA_CHECK(is_valid_utf8(output_dir + lr_scheduler_kwargs));
}

}  // namespace
}  // namespace tessera

// The folder of dataset_dir does not exist.
TESSERA_FUZZ(tessera::kWords, tessera::kSeeds, tessera::check, tessera::ExitCode::kBadConfig,
             tessera::ExitCode::kNoInput)
