#include "cluster/manifests/manifest.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr size_t kMaxBytes = size_t{8} << 20;
constexpr size_t kMaxDepth = 64;
constexpr int64_t kMaxValues = 200'000;
constexpr size_t kMaxNames = 2000;  // of one object

// Plain texts that YAML 1.1 takes for booleans and YAML 1.2 for text.
bool is_old_boolean(std::string_view text) {
  static constexpr std::string_view kTexts[] = {"y",  "Y",  "yes", "Yes", "YES", "n",   "N",   "no",
                                                "No", "NO", "on",  "On",  "ON",  "off", "Off", "OFF"};
  return std::ranges::find(kTexts, text) != std::end(kTexts);
}

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Builds the values of a stream of documents.
class Builder : public YAML::EventHandler {
 public:
  explicit Builder(const std::string& origin) : origin_(origin) {}

  std::vector<Manifest> take() { return std::move(documents_); }

  void OnDocumentStart(const YAML::Mark& mark) override { line_ = mark.line + 1; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    put(mark, Value(), "null");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail_at(mark, "an alias: write the value itself");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    refuse_anchor(mark, anchor);
    if (!is_valid_utf8(text)) fail_at(mark, "text that is not UTF-8");
    put(mark, tag == "!" ? Value(text) : plain(mark, text), text);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, anchor, Value::List());
  }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, anchor, Value::Object());
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    Value value;
    std::string key;
    bool has_key = false;
    int line = 0;
  };

  [[noreturn]] void fail_at(const YAML::Mark& mark, const std::string& what) const {
    fail(ExitCode::kBadData, "{}:{}: found {}", origin_, mark.line + 1, what);
  }

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != 0) fail_at(mark, "an anchor: write the value itself");
  }

  // File modes are written like this.
  Value octal(const YAML::Mark& mark, const std::string& text) const {
    const char* const end = text.data() + text.size();
    int64_t integer = 0;
    const auto [at, error] = std::from_chars(text.data(), end, integer, 8);
    if (error == std::errc() && at == end) return integer;
    fail_at(mark, fmt::format("'{}', a number that begins with 0 and is not octal: quote it", text));
  }

  Value plain(const YAML::Mark& mark, const std::string& text) const {
    if (text == "true" || text == "True" || text == "TRUE") return true;
    if (text == "false" || text == "False" || text == "FALSE") return false;
    if (text.empty() || text == "null" || text == "Null" || text == "NULL" || text == "~") return Value();
    const bool is_key =
        !levels_.empty() && levels_.back().value.object() != nullptr && !levels_.back().has_key;
    if (is_old_boolean(text) && !is_key)
      fail_at(mark, fmt::format("'{}', which kubectl reads as a boolean: quote it", text));
    if (text.size() > 1 && text[0] == '0' && is_digits(text)) return octal(mark, text);
    const char* const end = text.data() + text.size();
    int64_t integer = 0;
    if (const auto [at, error] = std::from_chars(text.data(), end, integer);
        error == std::errc() && at == end)
      return integer;
    double number = 0;
    // Without a digit it is a word, such as inf.
    const bool has_digit = text.find_first_of("0123456789") != std::string::npos;
    if (const auto [at, error] = std::from_chars(text.data(), end, number);
        has_digit && error == std::errc() && at == end)
      return number;
    return text;
  }

  void open(const YAML::Mark& mark, YAML::anchor_t anchor, Value value) {
    refuse_anchor(mark, anchor);
    if (levels_.size() >= kMaxDepth) fail_at(mark, fmt::format("more than {} levels", kMaxDepth));
    if (!levels_.empty() && levels_.back().value.object() != nullptr && !levels_.back().has_key) {
      fail_at(mark, "a name that is not text");
    }
    levels_.push_back({std::move(value), "", false, mark.line + 1});
  }

  void close() {
    const Level level = std::move(levels_.back());
    levels_.pop_back();
    YAML::Mark mark;
    mark.line = level.line - 1;
    put(mark, level.value, "");
  }

  void put(const YAML::Mark& mark, Value value, const std::string& text) {
    if (++num_values_ > kMaxValues) fail_at(mark, fmt::format("more than {} values", kMaxValues));
    if (levels_.empty()) {
      documents_.push_back({std::move(value), fmt::format("{}:{}", origin_, line_)});
      return;
    }
    Level& level = levels_.back();
    if (Value::List* const list = level.value.list(); list != nullptr) {
      list->push_back(std::move(value));
    } else if (!level.has_key) {
      if (level.value.object()->size() >= kMaxNames)
        fail_at(mark, fmt::format("more than {} names", kMaxNames));
      if (level.value.find(text) != nullptr)
        fail_at(mark, fmt::format("'{}' a second time", printable(text)));
      level.key = text;
      level.has_key = true;
    } else {
      level.value.object()->push_back({level.key, std::move(value)});
      level.has_key = false;
    }
  }

  const std::string& origin_;
  std::vector<Manifest> documents_;
  std::vector<Level> levels_;
  int line_ = 1;
  int64_t num_values_ = 0;
};

}  // namespace

std::string Manifest::api() const { return text_at(body, "apiVersion"); }
std::string Manifest::kind() const { return text_at(body, "kind"); }
std::string Manifest::name() const { return text_at(body, "metadata.name"); }
std::string Manifest::name_space() const { return text_at(body, "metadata.namespace"); }
std::string Manifest::title() const { return fmt::format("{}: {} {}", origin, kind(), name()); }

std::vector<Manifest> parse_manifests(std::string_view text, const std::string& origin) {
  if (text.size() > kMaxBytes)
    fail(ExitCode::kBadData, "{}: larger than {}", origin, format_bytes(kMaxBytes));
  // yaml-cpp takes a zero byte for the end.
  const size_t zero = text.find('\0');
  if (zero != std::string_view::npos) {
    fail(ExitCode::kBadData, "{}:{}: found a zero byte", origin,
         std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(zero), '\n') + 1);
  }
  Builder builder(origin);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    fail(ExitCode::kBadData, "{}:{}: not YAML: {}", origin, std::max(error.mark.line, 0) + 1,
         printable(error.msg));
  }
  std::vector<Manifest> documents;
  for (Manifest& each : builder.take()) {
    if (each.body.is_null()) continue;
    if (each.kind() != "List" || each.api() != "v1") {
      documents.push_back(std::move(each));
      continue;
    }
    for (const Value& item : list_at(each.body, "items")) documents.push_back({item, each.origin});
  }
  return documents;
}

const Value* value_at(const Value& value, std::string_view path) {
  const Value* at = &value;
  while (at != nullptr && !path.empty()) {
    const bool is_quoted = path[0] == '\'';
    const std::string_view step = path.substr(is_quoted, path.find(is_quoted ? '\'' : '.', 1) - is_quoted);
    path.remove_prefix(std::min(path.size(), step.size() + 2 * is_quoted + 1));
    if (const Value::List* const list = at->list(); list != nullptr) {
      size_t index = 0;
      std::from_chars(step.data(), step.data() + step.size(), index);
      at = index < list->size() ? &(*list)[index] : nullptr;
    } else {
      at = at->find(step);
    }
  }
  return at;
}

const Value::List& list_at(const Value& value, std::string_view path) {
  static const Value::List kEmpty;
  const Value* const at = value_at(value, path);
  return at != nullptr && at->list() != nullptr ? *at->list() : kEmpty;
}

std::string text_at(const Value& value, std::string_view path) {
  const Value* const at = value_at(value, path);
  if (at == nullptr) return "";
  if (at->string() != nullptr) return *at->string();
  return at->integer() != nullptr ? std::to_string(*at->integer()) : "";
}

}  // namespace tessera
