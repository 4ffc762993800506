// Any bytes are either refused with an Error or give rows that read back the same when written with every
// cell quoted.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/csv/csv_reader.h"
#include "support/fuzz_support.h"

namespace {

constexpr const char* kWords = R"~(, " "" ␤ ," ",)~"
                               " \t \r␤ \r \xff \xef\xbb\xbf";
constexpr const char* kSeed = "id,text\r\n1,\"a \"\"b\"\"\nc\"\r\n\r\n2,\n\"\",x\n";

// Gives the text in pieces, so that pieces end anywhere.
class PiecesStream : public tessera::ByteStream {
 public:
  PiecesStream(std::string_view text, size_t piece) : text_(text), piece_(piece) {}
  int64_t read(std::span<char> destination) override {
    const size_t count = std::min({piece_, destination.size(), text_.size() - at_});
    std::copy_n(text_.begin() + static_cast<ptrdiff_t>(at_), count, destination.begin());
    at_ += count;
    return static_cast<int64_t>(count);
  }
  int64_t bytes_consumed() const override { return static_cast<int64_t>(at_); }
  int64_t size_bytes() const override { return std::ssize(text_); }
  const std::string& name() const override { return name_; }

 private:
  std::string_view text_;
  size_t piece_;
  size_t at_ = 0;
  std::string name_ = "fuzz";
};

using Rows = std::vector<std::vector<std::string>>;

Rows read_rows(std::string_view text, size_t piece) {
  tessera::CsvReader reader(std::make_unique<PiecesStream>(text, piece), ',');
  Rows rows = {reader.column_names()};
  for (tessera::Value row; reader.next(&row);) {
    rows.emplace_back();
    for (const auto& field : *row.object()) rows.back().push_back(*field.value.string());
  }
  return rows;
}

std::string write_rows(const Rows& rows) {
  std::string text;
  for (const auto& row : rows) {
    for (const std::string& cell : row) {
      text += '"';
      for (const char c : cell) text += c == '"' ? "\"\"" : std::string(1, c);
      text += "\",";
    }
    text.back() = '\n';
  }
  return text;
}

void check(std::string_view text) {
  const Rows rows = read_rows(text, 1 + text.size() % 7);
  if (read_rows(write_rows(rows), 5) != rows) std::abort();
}

}  // namespace

TESSERA_FUZZ(kWords, kSeed, check, tessera::ExitCode::kBadData)
