// Names on the Hugging Face Hub in place of the folders of models and tokenizers.
#pragma once

#include <string>
#include <string_view>

#include "base/flags.h"
#include "cli/command.h"
#include "hub/hub.h"

namespace tessera {

// resolve_model() with the settings of this process, shown on the terminal.
std::string local_model(const std::string& name_or_path, ModelFiles files);

// Replaces names on the Hub by folders in every flag that takes models or tokenizers, which have the same
// names in all commands (--model, --models, --tokenizer), and tells the command of it; finds the files of
// data sets on the Hub.
void resolve_hub_names(Command& command, FlagTable* table);

// Returns a hint to append to a message that begins with a missing file, if a flag gives that file as a Hub
// name without an owner ("wikitext-103"); "" otherwise.
std::string bare_name_hint(const FlagTable& table, std::string_view message);

}  // namespace tessera
