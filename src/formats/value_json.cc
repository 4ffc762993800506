#include "formats/value_json.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/json_problem.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// More than any row needs, though a text of some MiB can exceed it: each value takes tens of bytes.
constexpr int64_t kMaxValues = 8'000'000;
constexpr int64_t kMaxFields = 65536;  // of an object, as many as the columns of a table

// A field name that occurs twice, or null.
const std::string* repeated_name(const Value::Object& fields) {
  std::vector<const std::string*> names;
  names.reserve(fields.size());
  for (const Value::Field& field : fields) names.push_back(&field.name);
  std::sort(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a < *b; });
  const auto twice =
      std::adjacent_find(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a == *b; });
  return twice == names.end() ? nullptr : *twice;
}

// Receives the parser's events. Returning false from a handler stops the parser; problem() then says why.
class ValueBuilder : public nlohmann::json_sax<Json> {
 public:
  ValueBuilder() = default;
  // Two spellings of numbers stand for NaN and Infinity.
  ValueBuilder(std::string not_a_number, std::string infinity)
      : not_a_number_(std::move(not_a_number)), infinity_(std::move(infinity)) {}

  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= uint64_t{std::numeric_limits<int64_t>::max()}) return add(static_cast<int64_t>(value));
    return add(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return add(text == not_a_number_ ? std::numeric_limits<double>::quiet_NaN()
               : text == infinity_   ? std::numeric_limits<double>::infinity()
               : text.size() == infinity_.size() + 1 && text.ends_with(infinity_)
                   ? -std::numeric_limits<double>::infinity()
                   : value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // not part of JSON

  bool start_array(std::size_t) override { return open(Value::List()); }
  bool start_object(std::size_t) override { return open(Value::Object()); }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool end_object() override {
    if (const std::string* name = repeated_name(*open_.back()->object())) {
      return refuse(fmt::format("field '{}' occurs twice in an object", printable(*name)));
    }
    open_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    Value::Object& fields = *open_.back()->object();
    fields.push_back({std::move(name), {}});
    return std::ssize(fields) <= kMaxFields ||
           refuse(fmt::format("an object of more than {} fields", kMaxFields));
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

  Value take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }  // empty if the text is not JSON

 private:
  bool add(Value value) {
    *place() = std::move(value);
    return count();
  }
  bool count() {
    return ++num_values_ <= kMaxValues || refuse(fmt::format("a row of more than {} values", kMaxValues));
  }
  bool refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool open(Value value) {
    Value* at = place();
    *at = std::move(value);
    open_.push_back(at);
    if (std::ssize(open_) <= kMaxValueDepth) return count();
    return refuse(fmt::format("nested deeper than {} levels", kMaxValueDepth));
  }
  // Where the next value goes. An open list or object does not grow while one inside it is open.
  Value* place() {
    if (open_.empty()) return &root_;
    if (Value::Object* fields = open_.back()->object()) return &fields->back().value;
    return &open_.back()->list()->emplace_back();
  }

  Value root_;
  int64_t num_values_ = 0;
  std::vector<Value*> open_;
  std::string problem_;
  std::string not_a_number_ = "NaN";  // the text that stands for NaN
  std::string infinity_ = "Infinity";
};

// NaN and Infinity, which Python's json writes and reads, outside strings; nullopt if there are none.
std::optional<Value> parse_with_special_numbers(std::string_view json) {
  // Spellings that do not occur in the text otherwise.
  std::string not_a_number = "0.0E0";
  while (json.find(not_a_number) != std::string_view::npos) not_a_number += '0';
  std::string infinity = "1.0E0";
  while (json.find(infinity) != std::string_view::npos) infinity += '0';
  std::string text;
  bool is_in_string = false;
  bool has_any = false;
  for (size_t at = 0; at < json.size();) {
    const std::string_view rest = json.substr(at);
    const char before = at == 0 ? ' ' : json[at - 1];
    const bool begins =
        !is_in_string && std::isalnum(static_cast<unsigned char>(before)) == 0 && before != '.';
    const auto is_word = [&](std::string_view word) {
      const size_t end = at + word.size();
      const bool ends =
          end >= json.size() || std::string_view(",]} \t\r\n").find(json[end]) != std::string_view::npos;
      return begins && ends && rest.starts_with(word);
    };
    const bool is_nan = before != '-' && is_word("NaN");
    const bool is_infinity = is_word("Infinity");
    if (is_nan || is_infinity) {
      has_any = true;
      text += is_nan ? not_a_number : infinity;
      at += is_nan ? 3 : 8;
      continue;
    }
    const size_t length = is_in_string && json[at] == '\\' ? 2 : 1;  // with what is escaped
    if (length == 1 && json[at] == '"') is_in_string = !is_in_string;
    text += rest.substr(0, length);
    at += length;
  }
  ValueBuilder builder(not_a_number, infinity);
  if (!has_any || !Json::sax_parse(text.begin(), text.end(), &builder)) return std::nullopt;
  return builder.take();
}

}  // namespace

Value parse_value(std::string_view json, const std::string& origin, int64_t first_line) {
  ValueBuilder builder;
  if (!Json::sax_parse(json.begin(), json.end(), &builder)) {
    if (!builder.problem().empty())
      fail(ExitCode::kBadData, "{}: line {}: {}", origin, first_line, builder.problem());
    if (std::optional<Value> value = parse_with_special_numbers(json)) return std::move(*value);
    const JsonProblem problem = json_problem(json);
    fail(ExitCode::kBadData, "{}: line {}: not valid JSON: column {}: {}", origin,
         first_line + problem.line - 1, problem.column, problem.what);
  }
  return builder.take();
}

}  // namespace tessera
