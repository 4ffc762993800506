#include "formats/value_json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/json_problem.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

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
  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= uint64_t{std::numeric_limits<int64_t>::max()}) return add(static_cast<int64_t>(value));
    return add(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
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
      problem_ = fmt::format("field '{}' occurs twice in an object", printable(*name));
      return false;
    }
    open_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    open_.back()->object()->push_back({std::move(name), {}});
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

  Value take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }  // empty if the text is not JSON

 private:
  bool add(Value value) {
    *place() = std::move(value);
    return true;
  }
  bool open(Value value) {
    Value* at = place();
    *at = std::move(value);
    open_.push_back(at);
    if (std::ssize(open_) <= kMaxValueDepth) return true;
    problem_ = fmt::format("nested deeper than {} levels", kMaxValueDepth);
    return false;
  }
  // Where the next value goes. An open list or object does not grow while one inside it is open.
  Value* place() {
    if (open_.empty()) return &root_;
    if (Value::Object* fields = open_.back()->object()) return &fields->back().value;
    return &open_.back()->list()->emplace_back();
  }

  Value root_;
  std::vector<Value*> open_;
  std::string problem_;
};

}  // namespace

Value parse_value(std::string_view json, const std::string& origin, int64_t first_line) {
  ValueBuilder builder;
  if (!Json::sax_parse(json.begin(), json.end(), &builder)) {
    if (!builder.problem().empty())
      fail(ExitCode::kBadData, "{}: line {}: {}", origin, first_line, builder.problem());
    const JsonProblem problem = json_problem(json);
    fail(ExitCode::kBadData, "{}: line {}: not valid JSON: column {}: {}", origin,
         first_line + problem.line - 1, problem.column, problem.what);
  }
  return builder.take();
}

}  // namespace tessera
