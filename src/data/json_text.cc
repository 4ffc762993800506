#include "data/json_text.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/json_problem.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Receives the parser's events. Returning false from a handler stops the parser; problem() then says why.
class ColumnHandler : public nlohmann::json_sax<Json> {
 public:
  explicit ColumnHandler(const std::string& column) : column_(column) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool binary(binary_t&) override { return value("binary data"); }
  bool start_array(std::size_t) override { return value("an array") && descend(); }
  bool start_object(std::size_t) override { return (depth_ == 0 || value("an object")) && descend(); }
  bool end_array() override { return ascend(); }
  bool end_object() override { return ascend(); }

  bool string(string_t& text) override {
    if (!in_column_) return value("a string");
    in_column_ = false;
    text_ = std::move(text);
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    in_column_ = name == column_;
    if (in_column_ && found_) return stop(fmt::format("column '{}' occurs twice", printable(column_)));
    found_ = found_ || in_column_;
    if (static_cast<int64_t>(columns_.size()) < kMaxColumnsShown) columns_.push_back(printable(name, 40));
    ++num_columns_;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

  bool found() const { return found_; }
  std::string& text() { return text_; }
  const std::string& problem() const { return problem_; }  // empty if the text is not JSON
  std::string columns_found() const {
    if (columns_.empty()) return "none";
    return fmt::format("{}{}", fmt::join(columns_, ", "), num_columns_ > kMaxColumnsShown ? ", ..." : "");
  }

 private:
  static constexpr int64_t kMaxColumnsShown = 8;

  // Handles a value other than the string we are looking for.
  bool value(const char* kind) {
    if (depth_ == 0) return stop(fmt::format("expected an object, found {}", kind));
    if (in_column_)
      return stop(fmt::format("column '{}': expected a string, found {}", printable(column_), kind));
    return true;
  }
  bool descend() {
    if (++depth_ > kMaxJsonDepth) return stop(fmt::format("nested deeper than {} levels", kMaxJsonDepth));
    return true;
  }
  bool ascend() {
    --depth_;
    return true;
  }
  bool stop(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  const std::string& column_;
  int64_t depth_ = 0;
  bool in_column_ = false;
  bool found_ = false;
  std::string text_;
  std::string problem_;
  std::vector<std::string> columns_;
  int64_t num_columns_ = 0;
};

}  // namespace

std::string extract_json_text(std::string_view json, const std::string& column, const std::string& origin,
                              int64_t first_line) {
  ColumnHandler handler(column);
  if (!Json::sax_parse(json.begin(), json.end(), &handler)) {
    if (!handler.problem().empty())
      fail(ExitCode::kBadData, "{}: line {}: {}", origin, first_line, handler.problem());
    const JsonProblem problem = json_problem(json);
    fail(ExitCode::kBadData, "{}: line {}: not valid JSON: column {}: {}", origin,
         first_line + problem.line - 1, problem.column, problem.what);
  }
  if (!handler.found()) {
    fail(ExitCode::kBadData, "{}: line {}: no column '{}' (text_column); columns found: {}", origin,
         first_line, printable(column), handler.columns_found());
  }
  return std::move(handler.text());
}

}  // namespace tessera
