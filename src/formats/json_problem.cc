#include "formats/json_problem.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Accepts every value and keeps the parser's message for the first error.
class ErrorKeeper : public nlohmann::json_sax<Json> {
 public:
  explicit ErrorKeeper(std::string_view text) : text_(text) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(std::string&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }

  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    const std::string_view before = text_.substr(0, position == 0 ? 0 : position - 1);
    const size_t line_end = before.rfind('\n');
    problem.emplace();
    problem->line = 1 + std::count(before.begin(), before.end(), '\n');
    problem->column = std::ssize(before) - (line_end == before.npos ? -1 : static_cast<int64_t>(line_end));
    problem->offset = std::ssize(before);
    problem->is_at_end = position > text_.size();
    // "[json.exception.parse_error.101] parse error at line 1, column 6: syntax error while parsing object
    // separator - unexpected number literal; expected ':'"
    std::string_view what = error.what();
    for (const std::string_view start : {"] ", " - "}) {
      if (const size_t at = what.find(start); at != what.npos) what.remove_prefix(at + start.size());
    }
    what = what.substr(0, what.find("; last read: "));
    problem->what = printable(what, 200);
    if (problem->is_at_end) return false;
    const std::string_view rest = text_.substr(before.size());
    size_t size = 1;
    while (size < rest.size() && (rest[size] & 0xC0) == 0x80) ++size;  // the rest of the character
    problem->what = fmt::format("found '{}': {}", printable(rest.substr(0, size)), problem->what);
    return false;
  }

  std::optional<JsonProblem> problem;

 private:
  std::string_view text_;
};

}  // namespace

std::string JsonProblem::text() const { return fmt::format("line {}, column {}: {}", line, column, what); }

std::optional<JsonProblem> find_json_problem(std::string_view text) {
  ErrorKeeper keeper(text);
  Json::sax_parse(text.begin(), text.end(), &keeper);
  return std::move(keeper.problem);
}

JsonProblem json_problem(std::string_view text) {
  std::optional<JsonProblem> problem = find_json_problem(text);
  TESSERA_CHECK(problem, "a JSON parser refused a valid text of {} bytes", text.size());
  return *std::move(problem);
}

}  // namespace tessera
