#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "hub/dataset_splits.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr size_t kMaxBlockBytes = 4 << 20;
constexpr size_t kMaxNames = 100'000;  // of configurations, splits and globs

// The text between the first line "---" and the next one; "" if there is none.
std::string_view yaml_block(std::string_view card) {
  const auto take_line = [&card] {
    const std::string_view line = card.substr(0, card.find('\n'));
    card.remove_prefix(std::min(line.size() + 1, card.size()));
    return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
  };
  if (take_line() != "---") return "";
  const char* const begin = card.data();
  while (!card.empty()) {
    const char* const end = card.data();
    if (take_line() == "---") return {begin, static_cast<size_t>(end - begin)};
  }
  return "";
}

class CardReader {
 public:
  explicit CardReader(const std::string& origin) : origin_(origin) {}

  std::vector<DatasetConfig> read(const YAML::Node& card) {
    std::vector<DatasetConfig> configs;
    if (!card.IsMap() || !card["configs"] || card["configs"].IsNull()) return configs;
    const YAML::Node list = card["configs"];
    if (!list.IsSequence()) expected("configs", "a list", list);
    for (const YAML::Node& entry : list) {
      if (!entry.IsMap()) expected("configs", "a list of objects", entry);
      configs.push_back(read_config(entry));
    }
    return configs;
  }

 private:
  [[noreturn]] void expected(std::string_view field, std::string_view what, const YAML::Node& found) const {
    fail(ExitCode::kBadData, "{}:{}: {}: expected {} in the YAML block", origin_,
         std::max(found.Mark().line, 0) + 2, field, what);
  }

  std::string text(std::string_view field, const YAML::Node& node) {
    if (!node.IsDefined() || !node.IsScalar() || !is_valid_utf8(node.Scalar()))
      expected(field, "a text", node);
    if (++num_names_ > kMaxNames)
      fail(ExitCode::kBadData, "{}: configs: more than {} names", origin_, kMaxNames);
    return node.Scalar();
  }

  // One text, or a list of texts.
  std::vector<std::string> texts(std::string_view field, const YAML::Node& node) {
    if (!node.IsDefined() || !node.IsSequence()) return {text(field, node)};
    std::vector<std::string> out;
    for (const YAML::Node& item : node) out.push_back(text(field, item));
    return out;
  }

  DatasetConfig read_config(const YAML::Node& entry) {
    DatasetConfig config;
    config.name = entry["config_name"] ? text("config_name", entry["config_name"]) : "default";
    if (entry["default"]) config.is_default = text("default", entry["default"]) == "true";
    if (entry["data_dir"]) config.data_dir = text("data_dir", entry["data_dir"]);
    while (config.data_dir.ends_with('/')) config.data_dir.pop_back();
    const YAML::Node files = entry["data_files"];
    if (!files || files.IsNull()) return config;
    const bool names_splits = files.IsSequence() && files.size() > 0 && files[0].IsMap();
    if (!names_splits) {
      config.splits.push_back({"train", texts("data_files", files)});
      return config;
    }
    for (const YAML::Node& item : files) {
      if (!item.IsMap() || !item["split"] || !item["path"])
        expected("data_files", "objects with split and path", item);
      config.splits.push_back({text("split", item["split"]), texts("path", item["path"])});
    }
    return config;
  }

  const std::string& origin_;
  size_t num_names_ = 0;
};

}  // namespace

std::vector<DatasetConfig> parse_dataset_card(std::string_view card, const std::string& origin) {
  const std::string_view block = yaml_block(card);
  if (block.size() > kMaxBlockBytes)
    fail(ExitCode::kBadData, "{}: the YAML block is larger than {}", origin, format_bytes(kMaxBlockBytes));
  // yaml-cpp takes a zero byte outside quotes for a backslash.
  if (!is_valid_utf8(block) || block.find('\0') != std::string_view::npos)
    fail(ExitCode::kBadData, "{}: the YAML block is not UTF-8 text", origin);
  try {
    return CardReader(origin).read(YAML::Load(std::string(block)));
  } catch (const YAML::Exception& error) {
    fail(ExitCode::kBadData, "{}:{}: not YAML: {}", origin, std::max(error.mark.line, 0) + 2,
         printable(error.msg));
  }
}

std::vector<DatasetConfig> read_dataset_card(const std::filesystem::path& folder) {
  const std::filesystem::path card = folder / "README.md";
  std::error_code error;
  if (!std::filesystem::is_regular_file(card, error)) return {};
  return parse_dataset_card(read_text_file(card), card.string());
}

}  // namespace tessera
