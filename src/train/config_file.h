// Settings from a JSON or YAML file, under the names of the flags.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/flags.h"

namespace tessera {

// Sets every setting of the file that was not set before: what the command line gave wins. null leaves the
// default. Nested values (lr_scheduler_kwargs) are passed on as JSON text. A name that ends in .json is read
// as JSON, any other as YAML. Errors name the file and the line: kNoInput, kBadConfig (syntax, unknown name
// with what was probably meant, a name given twice, a value of the wrong kind or out of range); all mistakes
// of a file that can be parsed are reported together.
void apply_config_file(const std::filesystem::path& path, FlagTable* table);

// The same for a text; `origin` names it in errors.
enum class ConfigSyntax { kJson, kYaml };
void apply_config_text(std::string_view text, ConfigSyntax syntax, const std::string& origin,
                       FlagTable* table);

}  // namespace tessera
