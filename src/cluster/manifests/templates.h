// The files from which `tessera deploy` writes manifests: those shipped with the program, and those in a
// user's folder that replace them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"

namespace tessera {

struct ShippedFile {
  std::string_view name;  // its path from its folder of deploy/: "queue.yaml.jinja"
  std::string_view text;
};
// In the order of their names within a folder.
std::span<const ShippedFile> shipped_files();

class DeployTemplates {
 public:
  // Without a folder the shipped files are used. Error(kNoInput) if the folder does not exist; Error(kUsage)
  // for a template in it that replaces none: a misspelt name would have no effect.
  explicit DeployTemplates(const std::filesystem::path& folder = {});

  // True if the user's folder has this file.
  bool is_overridden(std::string_view name) const;
  // The text of a shipped file, or of the one that replaces it.
  std::string text(std::string_view name) const;
  // The template's output with the fields of `context` as variables. A mistake in a user's template is
  // Error(kBadData) with its path and line, one in a shipped template Error(kInternal). Templates write
  // values with `| tojson`, which makes any text one YAML scalar and refuses a variable that is undefined.
  std::string render(std::string_view name, const Value::Object& context) const;

 private:
  std::filesystem::path folder_;
};

// YAML documents as one stream.
std::string join_documents(const std::vector<std::string>& documents);

}  // namespace tessera
