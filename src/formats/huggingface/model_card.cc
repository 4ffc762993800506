#include "formats/huggingface/model_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/text.h"
#include "formats/json.h"
#include "io/absolute_path.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A field of the front matter of README.md that is a plain value; "" if there is none.
std::string card_field(const fs::path& model, std::string_view name) {
  const fs::path card = model / "README.md";
  std::error_code error;
  if (!fs::exists(card, error)) return "";
  const std::string text = read_text_file(card);
  if (!text.starts_with("---\n")) return "";
  const std::string key = fmt::format("\n{}:", name);
  const std::string head = text.substr(3, text.find("\n---", 4) - 3);
  const size_t at = head.find(key);
  if (at == head.npos) return "";
  std::string value = head.substr(at + key.size());
  value.resize(std::min(value.find('\n'), value.size()));
  const auto is_edge = [](char c) { return c == ' ' || c == '\r' || c == '"' || c == '\''; };
  while (!value.empty() && is_edge(value.back())) value.pop_back();
  value.erase(value.begin(), std::ranges::find_if_not(value, is_edge));
  return is_valid_utf8(value) ? value : "";
}

bool is_upper(char c) { return 'A' <= c && c <= 'Z'; }
bool is_lower(char c) { return 'a' <= c && c <= 'z'; }
bool is_digit(char c) { return '0' <= c && c <= '9'; }

// v1, v1.1, or what begins with a digit.
bool is_version(std::string_view word) {
  if (is_digit(word.front())) return true;
  if (word.front() != 'v' || word.size() < 2) return false;
  return std::ranges::all_of(word.substr(1), [](char c) { return is_digit(c) || c == '.'; }) &&
         is_digit(word[1]) && word.back() != '.' && word.find("..") == word.npos;
}

}  // namespace

std::string license_of(const fs::path& model) { return card_field(model, "license"); }

std::string title_of(const std::string& name) {
  std::string spaced = name;
  std::ranges::replace(spaced, '-', ' ');
  std::istringstream words(spaced);
  std::string title;
  for (std::string word; words >> word;) {
    const bool is_plain = std::ranges::any_of(word, is_lower) && std::ranges::none_of(word, is_upper);
    bool in_word = false;
    for (char& c : word) {
      const bool is_letter = is_lower(c) || is_upper(c) || (static_cast<unsigned char>(c) & 0x80) != 0;
      if (is_plain && !is_version(word) && is_lower(c) && !in_word) c = static_cast<char>(c - 'a' + 'A');
      in_word = is_letter;
    }
    title += (title.empty() ? "" : " ") + word;
  }
  return title;
}

std::string gguf_name_of(const fs::path& model) {
  for (const char* field : {"name", "model_name"}) {
    if (const std::string name = card_field(model, field); !name.empty()) return name;
  }
  const Json config = parse_json_file_if_any(model / "config.json");
  const auto path = config.find("_name_or_path");
  if (path != config.end() && path->is_string()) {
    const auto& text = path->get_ref<const std::string&>();
    const bool is_name = std::ranges::count(text, '/') <= 1;
    const std::string title = is_name ? title_of(text.substr(text.find('/') + 1)) : "";
    if (!title.empty()) return title;
  }
  fs::path folder = absolute_path(model).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  return title_of(folder.filename().native());
}

}  // namespace tessera
