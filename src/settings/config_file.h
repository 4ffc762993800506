// Settings from a JSON or YAML file, under the names of the flags.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/flags.h"

namespace tessera {

// Applies every setting of the file that is not set yet: the command line wins. null has the meaning it has
// in the program that reads the setting (max_grad_norm: no clipping), and is refused where it has none.
// Nested values (lr_scheduler_kwargs) are passed on as JSON text. A file name ending in .json is read as
// JSON, any other as YAML. Errors name the file and the line: kNoInput, kBadConfig (syntax, unknown name with
// the likely intended one, a name given twice, a value of the wrong kind or out of range); all mistakes of a
// file that can be parsed are reported together. In a run's training_args.json, only values other than the
// defaults count as set.
void apply_config_file(const std::filesystem::path& path, FlagTable* table);

// Applies text in memory; `origin` names it in errors.
enum class ConfigSyntax { kJson, kYaml };
void apply_config_text(std::string_view text, ConfigSyntax syntax, const std::string& origin,
                       FlagTable* table);

}  // namespace tessera
