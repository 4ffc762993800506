#include "formats/huggingface/hub_name.h"

#include <algorithm>
#include <string_view>
#include <system_error>

#include "base/error.h"

namespace tessera {
namespace {

bool is_name_part(std::string_view part) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !part.empty() && part.front() != '.' && std::all_of(part.begin(), part.end(), is_allowed);
}

}  // namespace

void refuse_hub_name(const std::filesystem::path& path) {
  const std::string_view text = path.native();
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return;
  const std::string_view owner = text.substr(0, slash), name = text.substr(slash + 1);
  std::error_code ignored;
  // If the first part exists, it is a path with a misspelled last part.
  const bool is_path = std::filesystem::exists(path, ignored) || std::filesystem::exists(owner, ignored);
  if (is_path || !is_name_part(owner) || !is_name_part(name)) return;
  fail(ExitCode::kNoInput,
       "{0}: no such folder; models are read from disk, never downloaded: get {0} from the Hugging Face Hub "
       "first (hf download {0} --local-dir {1}), then pass the folder {1}",
       text, name);
}

}  // namespace tessera
