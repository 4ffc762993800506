// The lists of datasets of Axolotl's configuration files.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "arguments/foreign/axolotl_keys.h"
#include "arguments/foreign/foreign_settings.h"

namespace tessera {

// What the whole file says about conversations.
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

// Drops or refuses a key that is not translated; false if it is. `where` begins the messages.
bool settle_axolotl_key(std::span<const AxolotlKeys> keys, const std::string& name,
                        const nlohmann::json& value, int64_t line, const std::string& where,
                        ForeignSettings* settings);

}  // namespace tessera
