#include "settings/config_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/json_value.h"
#include "base/text.h"
#include "formats/json_problem.h"
#include "io/file.h"
#include "settings/foreign/axolotl_settings.h"
#include "settings/foreign/foreign_datasets.h"
#include "settings/run/evaluation_sets.h"
#include "settings/run/report_settings.h"
#include "settings/yaml_scalars.h"

namespace tessera {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr int64_t kMaxValues = 20'000;  // aliases of YAML can stand for any number
constexpr int64_t kMaxSettings = 1000;
constexpr int64_t kMaxDepth = 32;  // of nested values; settings need two levels

[[noreturn]] void fail_at(const std::string& origin, int64_t line, const std::string& message) {
  fail(ExitCode::kBadConfig, "{}:{}: {}", origin, line, message);
}

// Counts the lines that the JSON parser has read.
class LineCounter {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineCounter(const char* at, int64_t* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  LineCounter& operator++() {
    if (*at_++ == '\n') ++*line_;
    return *this;
  }
  bool operator==(const LineCounter& other) const { return at_ == other.at_; }
  bool operator!=(const LineCounter& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  int64_t* line_;
};

// JSON and YAML allow no control characters except newlines and tabs; yaml-cpp takes a zero byte outside
// quotes for a backslash.
void check_characters(std::string_view text, const std::string& origin) {
  const auto line_of = [&](int64_t at) { return 1 + std::count(text.begin(), text.begin() + at, '\n'); };
  if (const int64_t at = find_invalid_utf8(text); at >= 0) fail_at(origin, line_of(at), "not valid UTF-8");
  const auto is_control = [](char c) { return c >= 0 && c < ' ' && c != '\t' && c != '\n' && c != '\r'; };
  const auto control = std::find_if(text.begin(), text.end(), is_control);
  if (control == text.end()) return;
  fail_at(origin, line_of(control - text.begin()),
          fmt::format("found the control character \\x{:02x}", *control));
}

void check_count(const std::vector<ConfigSetting>& settings, int64_t line, const std::string& origin) {
  if (std::ssize(settings) == kMaxSettings)
    fail_at(origin, line, fmt::format("more than {} settings in one file", kMaxSettings));
}

std::vector<ConfigSetting> read_json(std::string_view text, const std::string& origin) {
  int64_t line = 1;
  int64_t values_left = kMaxValues;
  std::vector<ConfigSetting> settings;
  const auto note_key = [&](int depth, json::parse_event_t event, ordered_json& parsed) {
    if (depth > kMaxDepth) fail_at(origin, line, fmt::format("nested more than {} levels deep", kMaxDepth));
    if (event == json::parse_event_t::value && --values_left < 0)
      fail_at(origin, line, fmt::format("more than {} values in the settings", kMaxValues));
    if (event == json::parse_event_t::key && depth == 1) {
      check_count(settings, line, origin);
      settings.push_back({parsed.get<std::string>(), nullptr, line, ""});
    }
    return true;
  };
  ordered_json whole;
  try {
    whole = ordered_json::parse(LineCounter(text.data(), &line),
                                LineCounter(text.data() + text.size(), &line), note_key);
  } catch (const json::exception&) {
    const JsonProblem problem = json_problem(text);
    fail_at(origin, problem.line, fmt::format("not JSON: column {}: {}", problem.column, problem.what));
  }
  if (!whole.is_object())
    fail_at(origin, 1, "expected a JSON object of settings, found " + found_text(json(whole)));
  for (ConfigSetting& setting : settings) {
    const ordered_json& value = whole.at(setting.name);
    setting.value = value;
    if (value.is_object()) setting.ordered = value.dump();
  }
  return settings;
}

const char* kind_of(const YAML::Node& node) {
  return node.IsSequence() ? "a list" : node.IsMap() ? "an object" : node.IsScalar() ? "a text" : "nothing";
}

struct YamlFile {
  std::string text;
  const std::string& origin;
};

std::string yaml_text(const YAML::Node& node, const YamlFile& file) {
  if (!node.IsScalar())
    fail_at(file.origin, node.Mark().line + 1, fmt::format("expected a text, found {}", kind_of(node)));
  return yaml_scalar(node, file.text);
}

// Plain scalars that look like null, booleans or numbers are such (YAML 1.2 core schema); quoted ones are
// text.
ordered_json scalar_from_yaml(const YAML::Node& node, const YamlFile& file) {
  std::string text = yaml_text(node, file);
  if (node.Tag() == "!") return text;
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  // Numbers that JSON cannot spell (+1, .5, 0x10) stay text; the flag decides how to read them.
  const json number = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return number.is_number() ? ordered_json(number) : ordered_json(std::move(text));
}

ordered_json json_from_yaml(const YAML::Node& node, const YamlFile& file, int64_t depth,
                            int64_t* values_left) {
  if (--*values_left < 0)
    fail_at(
        file.origin, node.Mark().line + 1,
        fmt::format("more than {} values in the settings, those that aliases repeat among them", kMaxValues));
  if (depth > kMaxDepth) {
    fail_at(file.origin, node.Mark().line + 1, fmt::format("nested more than {} levels deep", kMaxDepth));
  }
  switch (node.Type()) {
    case YAML::NodeType::Scalar:
      return scalar_from_yaml(node, file);
    case YAML::NodeType::Sequence: {
      auto out = ordered_json::array();
      for (const YAML::Node& item : node) out.push_back(json_from_yaml(item, file, depth + 1, values_left));
      return out;
    }
    case YAML::NodeType::Map: {
      auto out = ordered_json::object();
      for (const auto& item : node) {
        const std::string name = yaml_text(item.first, file);
        if (out.contains(name))
          fail_at(file.origin, item.first.Mark().line + 1, fmt::format("'{}' is set twice", printable(name)));
        out[name] = json_from_yaml(item.second, file, depth + 1, values_left);
      }
      return out;
    }
    default:
      return nullptr;
  }
}

// The likely mistake where yaml-cpp stops, in our own words.
std::string_view yaml_problem(std::string_view message) {
  namespace Known = YAML::ErrorMsg;
  struct Problem {
    std::string_view message;
    std::string_view text;
  };
  constexpr std::string_view kBracket = "a [ or { and its end do not match";
  constexpr std::string_view kQuote = "a text in quotes does not end";
  constexpr std::string_view kEscape = "an unknown escape: in double quotes a backslash is written \\\\";
  constexpr std::string_view kAnchor = "a value that begins with * or & needs quotes";
  const Problem kProblems[] = {
      {Known::END_OF_MAP_FLOW, kBracket},
      {Known::END_OF_SEQ_FLOW, kBracket},
      {Known::FLOW_END, kBracket},
      {Known::EOF_IN_SCALAR, kQuote},
      {Known::DOC_IN_SCALAR, kQuote},
      {Known::INVALID_ESCAPE, kEscape},
      {Known::INVALID_HEX, kEscape},
      {Known::INVALID_UNICODE, kEscape},
      {Known::ALIAS_NOT_FOUND, kAnchor},
      {Known::ANCHOR_NOT_FOUND, kAnchor},
      {Known::CHAR_IN_ALIAS, kAnchor},
      {Known::CHAR_IN_ANCHOR, kAnchor},
      {Known::UNKNOWN_ANCHOR, kAnchor},
      {Known::ALIAS_CONTENT, kAnchor},
      {Known::TAB_IN_INDENTATION, "indent with spaces, not with tabs"},
  };
  const auto known = std::find_if(std::begin(kProblems), std::end(kProblems), [&](const Problem& problem) {
    return message.starts_with(problem.message);
  });
  return known != std::end(kProblems)
             ? known->text
             : "expected 'name: value' lines with one indentation, and quotes around a value "
               "that has ': ' or ' #' in it or begins with a special character";
}

[[noreturn]] void fail_yaml(std::string_view text, const YAML::Exception& error, const std::string& origin) {
  const int64_t line = std::max(error.mark.line, 0);
  for (int64_t i = 0; i < line; ++i) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  fail_at(origin, line + 1,
          fmt::format("not YAML: column {}: {}; found '{}'", std::max(error.mark.column, 0) + 1,
                      yaml_problem(error.msg), printable(text.substr(0, text.find('\n')), 60)));
}

// yaml-cpp takes no step beyond a ',' outside brackets: it reads an empty document there, and LoadAll() one
// after the other until memory ends.
class DocumentStarts final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    if (mark.pos == last_) throw YAML::ParserException(mark, "no step since the last document");
    last_ = mark.pos;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
  }
  void OnMapEnd() override {}

 private:
  int last_ = -1;
};

void check_documents_end(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  while (parser.HandleNextDocument(starts)) {
  }
}

std::vector<ConfigSetting> read_yaml(std::string_view text, const std::string& origin) {
  std::vector<ConfigSetting> settings;
  try {
    const YamlFile file = {std::string(text), origin};
    check_documents_end(file.text);
    const std::vector<YAML::Node> documents = YAML::LoadAll(file.text);
    for (size_t i = 1; i < documents.size(); ++i) {
      if (documents[i].IsNull()) continue;
      fail_at(origin, documents[i].Mark().line + 1,
              "a second YAML document after '---', expected all settings in the first");
    }
    if (documents.empty() || documents[0].IsNull()) return settings;
    const YAML::Node& whole = documents[0];
    if (!whole.IsMap()) {
      fail_at(origin, whole.Mark().line + 1,
              fmt::format("expected settings as 'name: value' lines, found {}", kind_of(whole)));
    }
    int64_t values_left = kMaxValues;
    for (const auto& item : whole) {
      const int64_t line = item.first.Mark().line + 1;
      check_count(settings, line, origin);
      const bool is_text = item.second.IsScalar() && !item.second.IsNull();
      // Scalars keep their spelling: 1e-05 is a number for any flag, 007 may be a folder.
      const ordered_json value = is_text ? ordered_json(yaml_text(item.second, file))
                                         : json_from_yaml(item.second, file, 1, &values_left);
      settings.push_back(
          {yaml_text(item.first, file), value, line, value.is_object() ? value.dump() : std::string()});
    }
  } catch (const YAML::Exception& error) {
    fail_yaml(text, error, origin);
  }
  return settings;
}

std::string word_of(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

const char* expected_kind(FlagType type) {
  switch (type) {
    case FlagType::kBool:
      return "true or false";
    case FlagType::kInt:
      return "a whole number";
    case FlagType::kFloat:
      return "a number";
    case FlagType::kString:
      return "a text";
    case FlagType::kStringList:
      break;
  }
  return "a list of texts";
}

// The values as the command line would give them.
std::vector<std::string> flag_words(const ConfigSetting& setting, const Flag& flag,
                                    const std::string& origin) {
  const json& value = setting.value;
  if (flag.type == FlagType::kStringList && value.is_array()) {
    std::vector<std::string> words;
    for (const json& item : value) {
      if (item.is_structured())
        fail_at(origin, setting.line,
                fmt::format("{}: expected a list of texts, found {} in it", setting.name, found_text(item)));
      words.push_back(word_of(item));
    }
    return words;
  }
  if (flag.name == "eval_dataset" && value.is_object())
    return entries_of_sets(setting.ordered, fmt::format("{}:{}: {}", origin, setting.line, setting.name));
  if (value.is_structured() && flag.type != FlagType::kString) {
    fail_at(
        origin, setting.line,
        fmt::format("{}: expected {}, found {}", setting.name, expected_kind(flag.type), found_text(value)));
  }
  if (value.is_object() && json::parse(setting.ordered, nullptr, /*allow_exceptions=*/false) == value) {
    return {setting.ordered};
  }
  return {word_of(value)};
}

std::string unknown_setting(const ConfigSetting& setting, const FlagTable& table) {
  const std::string hint = table.hint(setting.name).text("'", "'");
  return fmt::format("unknown setting '{}'{}", printable(setting.name),
                     hint.empty() ? "; 'tessera train --help' lists them" : hint);
}

// The record that a run writes to its output folder: every setting, defaults included, and the configuration
// file whose settings it contains.
bool is_record_of_a_run(const std::string& origin) {
  return std::filesystem::path(origin).filename() == "training_args.json";
}

// The meaning of null in the programs that read these settings, if it is not the default here.
struct NullMeaning {
  std::string_view name;
  std::vector<std::string> values;
};
const NullMeaning kNullMeanings[] = {
    {"eval_delay", {"0"}},
    {"max_grad_norm", {"0"}},  // Trainer clips if it "is not None and > 0"
    {"max_length", {"none"}},  // TRL truncates nothing
    {"output_dir", {"trainer_output"}},
    {"report_to", {"jsonl"}},
};

// TRL's default where it differs, for hints.
std::string_view trl_default(std::string_view name) {
  return name == "learning_rate"   ? " (2e-05 in TRL's files)"
         : name == "logging_steps" ? " (10 in TRL's files)"
                                   : "";
}

// nullopt: null is the default. Otherwise a setting without a value is refused, as our default may differ
// from that of the program the file was written for.
std::optional<std::vector<std::string>> words_of_null(const ConfigSetting& setting, const Flag& flag,
                                                      const std::string& origin) {
  for (const NullMeaning& meaning : kNullMeanings) {
    if (setting.name == meaning.name) return meaning.values;
  }
  if (setting.name == "lora_target_modules") return std::nullopt;  // script_settings.h
  const bool is_off = flag.type == FlagType::kBool && flag.default_text == "false";
  if (flag.default_text.empty() || is_off) return std::nullopt;
  const bool is_on = flag.type == FlagType::kBool && flag.default_text == "true";
  if (is_on && flag.status == FlagStatus::kRefused)
    fail_at(origin, setting.line, fmt::format("--{} null is not supported: {}", setting.name, flag.note));
  if (flag.status != FlagStatus::kHonoured) return std::nullopt;
  fail_at(origin, setting.line,
          fmt::format("{}: expected {}, found null; leave the line out for the default, {}{}", setting.name,
                      expected_kind(flag.type), flag.default_text, trl_default(flag.name)));
}

void apply_setting(const ConfigSetting& setting, const std::string& origin, bool null_is_default,
                   FlagTable* table) {
  const bool is_record = is_record_of_a_run(origin);
  const Flag* flag = table->find(setting.name);
  if (flag == nullptr) fail_at(origin, setting.line, unknown_setting(setting, *table));
  if (flag->name == "config") {
    if (is_record) return;
    fail_at(origin, setting.line, "a configuration file cannot name another one");
  }
  if (table->is_set(flag->name) || (setting.value.is_null() && (null_is_default || is_record))) return;
  const std::optional<std::vector<std::string>> words =
      setting.value.is_null() ? words_of_null(setting, *flag, origin) : flag_words(setting, *flag, origin);
  if (!words) return;
  if (is_record && flag->get) {
    const std::vector<std::string> initial = flag->get();
    flag->set(*words);
    if (flag->get() == initial) return;
  }
  table->set(*flag, *words, fmt::format("{}:{}", origin, setting.line));
}

// Two spellings of a flag that say the same count as one, as in the JSON that Trainer writes.
void drop_agreeing_spellings(const FlagTable& table, std::vector<ConfigSetting>* settings) {
  const auto repeats = [&](const ConfigSetting& setting, const ConfigSetting& other) {
    const Flag* flag = table.find(setting.name);
    return &setting != &other && setting.name != other.name && flag != nullptr &&
           flag == table.find(other.name) && (setting.value.is_null() || setting.value == other.value);
  };
  for (size_t i = settings->size(); i-- > 0;) {
    const ConfigSetting& setting = (*settings)[i];
    if (std::ranges::any_of(*settings, [&](const auto& other) { return repeats(setting, other); }))
      settings->erase(settings->begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// Two lines for one flag, even under different aliases, would leave it unclear which one counts.
void refuse_repeated(const std::vector<ConfigSetting>& settings, size_t index, const std::string& origin,
                     const FlagTable& table) {
  const ConfigSetting& setting = settings[index];
  for (size_t earlier = 0; earlier < index; ++earlier) {
    const Flag* flag = table.find(setting.name);
    const bool same = setting.name == settings[earlier].name ||
                      (flag && !flag->name.ends_with('*') && flag == table.find(settings[earlier].name));
    if (!same) continue;
    fail_at(origin, setting.line,
            fmt::format("'{}' is already set in line {}", printable(setting.name), settings[earlier].line));
  }
}

}  // namespace

void apply_config_text(std::string_view text, ConfigSyntax syntax, const std::string& origin,
                       FlagTable* table) {
  check_characters(text, origin);
  std::vector<ConfigSetting> settings =
      syntax == ConfigSyntax::kJson ? read_json(text, origin) : read_yaml(text, origin);
  // Every setting of Axolotl may be empty, which means its default.
  const bool null_is_default = is_axolotl_file(settings);
  translate_foreign_datasets(origin, &settings);
  drop_unsupported_services(origin, *table, &settings);
  drop_agreeing_spellings(*table, &settings);
  std::vector<std::string> mistakes;
  for (size_t i = 0; i < settings.size(); ++i) {
    try {
      refuse_repeated(settings, i, origin, *table);
      apply_setting(settings[i], origin, null_is_default, table);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage && error.code() != ExitCode::kBadConfig) throw;
      mistakes.push_back(error.what());
    }
  }
  if (!mistakes.empty()) fail_all(ExitCode::kBadConfig, mistakes);
}

void apply_config_file(const std::filesystem::path& path, FlagTable* table) {
  const std::string text = read_text_file(path, kMaxFileBytes);
  const bool is_json = path.extension() == ".json";
  apply_config_text(text, is_json ? ConfigSyntax::kJson : ConfigSyntax::kYaml, path.string(), table);
}

}  // namespace tessera
