// Splitting text into records must not depend on how the bytes arrive, and the text of a record must be what
// a general JSON parser finds.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "data/sources/record_reader.h"
#include "formats/value_json.h"
#include "support/fuzz_support.h"
#include "support/value_json.h"

namespace tessera {
namespace {

constexpr const char* kWords =
    R"~({"text":␠" "}␤ "text": \u00e9 \ud83d\ude00 \ud8 \n ␤ [ ] , null { } " é 1e5)~"
    " \r␤ \xff \xef\xbb\xbf";

// The first byte is the chunk size; then records on lines, as an array, and in other shapes.
constexpr const char* kSeed =
    "\3{\"text\": \"one\", \"n\": [1, {\"text\": 2}]}\n\n{\"id\": 7, \"text\": \"tw\\u00f6\\n\"}\r\n"
    "[{\"text\": \"three\"}, {\"text\": \"\"}]\n{\"text\": null}\n";

struct Cut {
  std::vector<Record> records;
  std::string error;
};

Cut cut(RecordReader::Format format, std::string_view text, size_t piece) {
  const auto source = [text, piece, at = size_t{0}](std::span<char> destination) mutable {
    const size_t count = std::min({piece, text.size() - at, destination.size()});
    std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(at), count, destination.begin());
    at += count;
    return static_cast<int64_t>(count);
  };
  Cut result;
  RecordReader reader(format, source, "input", static_cast<int64_t>(piece + 2));
  try {
    for (Record record; reader.next(&record);) result.records.push_back(record);
  } catch (const Error& error) {
    check_refusal(error, ExitCode::kBadData);
    result.error = error.what();
  }
  return result;
}

void check_record(const Record& record) {
  Value value;
  try {
    value = parse_value(record.text, "input", record.number);
  } catch (const Error& error) {
    check_refusal(error, ExitCode::kBadData);
    return;
  }
  const auto expected = nlohmann::ordered_json::parse(record.text, nullptr, /*allow_exceptions=*/false);
  // Python writes numbers that are not finite by names that JSON does not have.
  const bool has_names =
      record.text.find("NaN") != record.text.npos || record.text.find("Infinity") != record.text.npos;
  if (expected.is_discarded() && has_names) return;
  TESSERA_CHECK(to_json(value) == expected);
}

void check(std::string_view input) {
  const std::string_view text = input.substr(1);
  const size_t piece = 1 + static_cast<unsigned char>(input[0]) % 16;
  for (const auto format : {RecordReader::Format::kLines, RecordReader::Format::kJson}) {
    const Cut expected = cut(format, text, text.size() + 1);
    const Cut pieces = cut(format, text, piece);
    TESSERA_CHECK(pieces.error == expected.error && pieces.records.size() == expected.records.size());
    for (size_t i = 0; i < pieces.records.size(); ++i) {
      const Record& record = pieces.records[i];
      TESSERA_CHECK(record.text == expected.records[i].text && record.number == expected.records[i].number &&
                    record.offset_bytes == expected.records[i].offset_bytes);
      TESSERA_CHECK(text.substr(static_cast<size_t>(record.offset_bytes)).starts_with(record.text));
      check_record(record);
    }
  }
}

}  // namespace
}  // namespace tessera

TESSERA_FUZZ(tessera::kWords, tessera::kSeed, tessera::check, tessera::ExitCode::kBadData)
