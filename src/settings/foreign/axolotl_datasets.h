// The lists of datasets of Axolotl's configuration files.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "settings/foreign/foreign_settings.h"

namespace tessera {

// Settings about conversations that apply to the whole file.
struct AxolotlChats {
  bool train_on_inputs = false;
  nlohmann::json eot_tokens = nullptr;
  nlohmann::json variables = nullptr;  // of the template
};

// `datasets:` and `test_datasets:`, lists of objects with path, type, ...: dataset, eval_dataset and their
// formats. Returns the chat template that the data sets name; nullopt if they take the file's.
std::optional<ConfigSetting> translate_axolotl_datasets(const AxolotlChats& chats, ForeignSettings* settings);

// The chat template of a file or an entry, as our flag takes it: chat_template_jinja, a name, "" for the
// model's own.
std::string axolotl_chat_template(const nlohmann::json& object, int64_t line,
                                  const ForeignSettings& settings);

// Drops or refuses the key `where` + `name` if the table says so; false if it is read or renamed. The table
// has the keys of an entry as datasets.NAME.
bool settle_axolotl_key(const std::string& name, const nlohmann::json& value, int64_t line,
                        const std::string& where, ForeignSettings* settings);

}  // namespace tessera
