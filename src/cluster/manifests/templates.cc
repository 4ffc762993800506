#include "cluster/manifests/templates.h"

#include <algorithm>

#include "base/error.h"
#include "base/name_hint.h"
#include "base/text.h"
#include "io/file.h"
#include "jinja/template.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxFileBytes = int64_t{4} << 20;

std::vector<std::string> shipped_names() {
  std::vector<std::string> names;
  for (const ShippedFile& file : shipped_files()) names.emplace_back(file.name);
  return names;
}

void check_names(const fs::path& folder) {
  const std::vector<std::string> known = shipped_names();
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    if (!name.ends_with(".jinja") || std::ranges::find(known, name) != known.end()) continue;
    const std::string hint = hint_for_name(name, known, known, {}).text("", "");
    fail(ExitCode::kUsage, "--templates: {} replaces no template{}", printable(entry.path().string()),
         hint.empty() ? "; `tessera deploy templates` writes the existing ones" : hint);
  }
}

}  // namespace

DeployTemplates::DeployTemplates(const fs::path& folder) : folder_(folder) {
  if (folder_.empty()) return;
  std::error_code error;
  if (!fs::is_directory(folder_, error)) {
    fail(ExitCode::kNoInput, "--templates: there is no folder {}", printable(folder_.string()));
  }
  check_names(folder_);
}

bool DeployTemplates::is_overridden(std::string_view name) const {
  std::error_code error;
  return !folder_.empty() && fs::exists(folder_ / name, error);
}

std::string DeployTemplates::text(std::string_view name) const {
  if (is_overridden(name)) return read_text_file(folder_ / name, kMaxFileBytes);
  const auto file = std::ranges::find(shipped_files(), name, &ShippedFile::name);
  if (file == shipped_files().end()) fail(ExitCode::kInternal, "no file {} is shipped", name);
  return std::string(file->text);
}

std::string DeployTemplates::render(std::string_view name, const Value::Object& context) const {
  const bool is_ours = !is_overridden(name);
  const std::string origin = is_ours ? std::string(name) : (folder_ / name).string();
  try {
    std::string text = jinja::Template::parse(this->text(name), origin).render(context).text;
    if (!text.ends_with('\n')) text += '\n';  // Jinja drops one at the end of a template
    return text;
  } catch (const Error& error) {
    throw Error(is_ours ? ExitCode::kInternal : error.code(), error.what());
  }
}

std::string join_documents(const std::vector<std::string>& documents) {
  std::string text;
  for (const std::string& document : documents) {
    if (!text.empty()) text += "---\n";
    text += document;
    if (!document.ends_with('\n')) text += '\n';
  }
  return text;
}

}  // namespace tessera
