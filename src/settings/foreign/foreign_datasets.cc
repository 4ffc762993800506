#include "settings/foreign/foreign_datasets.h"

#include <optional>

#include "base/json_value.h"
#include "settings/foreign/axolotl_settings.h"
#include "settings/foreign/foreign_settings.h"
#include "settings/foreign/llama_factory_datasets.h"
#include "settings/foreign/trl_settings.h"

namespace tessera {
namespace {

// A share of the rows, or 0.
void translate_held_out_share(ForeignSettings* settings) {
  for (const char* name : {"val_size", "val_set_size"}) {
    const std::optional<ConfigSetting> taken = settings->take(name);
    if (!taken) continue;
    const std::vector<double> share = settings->numbers_of(*taken);
    if (share.size() != 1 || !(share[0] >= 0 && share[0] < 1)) {
      settings->fail_in(taken->line, "{}: expected a share of the rows from 0 to below 1, found {}", name,
                        found_text(taken->value));
    }
    if (share[0] > 0) settings->add("validation_split_percentage", 100 * share[0], taken->line);
  }
}

}  // namespace

void translate_foreign_datasets(const std::string& origin, std::vector<ConfigSetting>* settings) {
  ForeignSettings foreign(origin, settings);
  if (is_axolotl_file(*settings)) {
    translate_axolotl(&foreign);
  } else {
    translate_trl(&foreign);
  }
  translate_llama_factory_datasets(&foreign);
  translate_held_out_share(&foreign);
  foreign.add_formats();
}

}  // namespace tessera
