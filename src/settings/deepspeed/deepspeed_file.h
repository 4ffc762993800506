// A DeepSpeed configuration file, parsed as DeepSpeed parses it: its contents, not yet their meaning for a
// run. docs/deepspeed.md and docs/compat.md list every key and how it is treated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "settings/deepspeed/deepspeed_keys.h"

namespace tessera {

struct DeepSpeedFile {
  std::string origin;          // for messages
  Json keys = Json::object();  // of those with an effect, by their canonical names
  std::vector<DeepSpeedNote> notes;

  // The value of a key such as "zero_optimization.stage", or "auto" (the run's arguments decide); nullptr if
  // absent.
  const Json* find(std::string_view path) const;
  bool is_auto(std::string_view path) const { return find(path) != nullptr && *find(path) == "auto"; }
  // nullopt for "auto" as well.
  template <typename T>
  std::optional<T> value(std::string_view path) const {
    const Json* found = find(path);
    return found == nullptr || *found == "auto" ? std::nullopt : std::optional<T>(found->get<T>());
  }
  bool keeps_on_disk(std::string_view offload_section) const;  // its device is nvme
  // The folder of a monitor, output_path/job_name; nullopt unless it is on.
  std::optional<std::string> monitor_folder(std::string_view monitor) const;
};

// Errors are kBadConfig: "FILE: KEY: expected ..., found ...; what to do"; syntax errors name the line
// instead.
DeepSpeedFile parse_deepspeed(std::string_view text, const std::string& origin);

// The keys of a configuration as they are written, of any kind that read_deepspeed() takes.
Json read_deepspeed_keys(const std::string& argument);

// `argument` is a file, the configuration itself (starting with '{'), or the configuration in base64
// (standard or URL-safe, with or without padding). kNoInput if it is none of these.
DeepSpeedFile read_deepspeed(const std::string& argument);

// Logs the keys without effect, one line per reason; on one rank these include keys that divide work among
// several.
void log_deepspeed_notes(const DeepSpeedFile& file, int64_t world_size);

}  // namespace tessera
