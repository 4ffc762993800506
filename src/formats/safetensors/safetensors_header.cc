// Parses a safetensors header as a stream, without a JSON tree: memory stays proportional to the text, and
// anything nested deeper than the format's three levels is rejected where it starts.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/json.h"
#include "formats/json_problem.h"
#include "formats/safetensors/safetensors.h"
#include "tensor/shape_text.h"

namespace tessera {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

class HeaderHandler : public nlohmann::json_sax<Json> {
 public:
  HeaderHandler(std::string_view text, const std::string& origin,
                std::map<std::string, std::string>* metadata)
      : text_(text), origin_(origin), metadata_(metadata) {}

  std::vector<SafetensorsEntry> take_entries() { return std::move(entries_); }

  bool start_object(size_t) override {
    if (level_ == Level::kDocument) {
      level_ = Level::kHeader;
    } else if (level_ == Level::kHeader) {
      level_ = in_metadata() ? Level::kMetadata : Level::kTensor;
      begin_tensor();
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& name) override {
    if (level_ == Level::kHeader) {
      if (!names_.insert(name).second)
        fail(ExitCode::kBadData, "{}: tensor '{}' appears twice in the header", origin_, printable(name));
      name_ = std::move(name);
    } else if (level_ == Level::kMetadata) {
      if (!metadata_keys_.insert(name).second)
        fail(ExitCode::kBadData, "{}: __metadata__: key '{}' appears twice", origin_, printable(name));
      field_ = std::move(name);
    } else {
      field_ = std::move(name);
      check_tensor_field();
    }
    return true;
  }

  bool string(std::string& value) override {
    if (level_ == Level::kMetadata) {
      if (metadata_ != nullptr) metadata_->emplace(field_, std::move(value));
    } else if (level_ == Level::kTensor && field_ == "dtype") {
      set_dtype(value);
    } else {
      unexpected("'" + printable(value) + "'");
    }
    return true;
  }

  bool start_array(size_t) override {
    if (level_ != Level::kTensor || field_ == "dtype") unexpected("an array");
    level_ = Level::kNumbers;
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (level_ != Level::kNumbers || value > uint64_t{INT64_MAX}) unexpected(std::to_string(value));
    numbers().push_back(static_cast<int64_t>(value));
    return true;
  }

  bool end_array() override {
    level_ = Level::kTensor;
    if (field_ == "data_offsets" && offsets_.size() != 2)
      unexpected(count_of(std::ssize(offsets_), "number"));
    return true;
  }

  bool end_object() override {
    if (level_ == Level::kTensor) end_tensor();
    level_ = Level::kHeader;
    return true;
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool number_integer(int64_t value) override { return unexpected(std::to_string(value)); }
  bool number_float(double, const std::string& text) override { return unexpected(printable(text)); }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }
  bool parse_error(size_t, const std::string&, const Json::exception&) override {
    fail(ExitCode::kBadData, "{}: header is not valid JSON: {}", origin_, json_problem(text_).text());
  }

 private:
  enum class Level { kDocument, kHeader, kMetadata, kTensor, kNumbers };

  bool in_metadata() const { return name_ == kMetadataKey; }
  std::vector<int64_t>& numbers() { return field_ == "shape" ? entry_.shape : offsets_; }

  void begin_tensor() {
    entry_ = {};
    offsets_.clear();
    dtype_.reset();
    has_shape_ = has_offsets_ = false;
  }

  void check_tensor_field() {
    const bool known = field_ == "dtype" || field_ == "shape" || field_ == "data_offsets";
    if (!known)
      fail(ExitCode::kBadData, "{}: tensor '{}': unknown field '{}', expected dtype, shape and data_offsets",
           origin_, printable(name_), printable(field_));
    const bool again = (field_ == "dtype" && dtype_.has_value()) || (field_ == "shape" && has_shape_) ||
                       (field_ == "data_offsets" && has_offsets_);
    if (again)
      fail(ExitCode::kBadData, "{}: tensor '{}': field '{}' appears twice", origin_, printable(name_),
           field_);
    has_shape_ |= field_ == "shape";
    has_offsets_ |= field_ == "data_offsets";
  }

  void set_dtype(const std::string& name) {
    dtype_ = parse_dtype(name);
    if (dtype_) return;
    const bool sub_byte = name.starts_with("F4") || name.starts_with("F6");
    fail(ExitCode::kBadData, "{}: tensor '{}': field 'dtype': {} '{}', expected one of {}", origin_,
         printable(name_), sub_byte ? "sub-byte type not supported:" : "unknown type", printable(name),
         "BF16, F16, F32, F64, F8_E4M3, F8_E5M2, I64, I32, I16, I8, U64, U32, U16, U8, BOOL");
  }

  void end_tensor() {
    const char* missing = !dtype_         ? "dtype"
                          : !has_shape_   ? "shape"
                          : !has_offsets_ ? "data_offsets"
                                          : nullptr;
    if (missing != nullptr)
      fail(ExitCode::kBadData, "{}: tensor '{}': field '{}' is missing", origin_, printable(name_), missing);
    entry_.name = name_;
    entry_.dtype = *dtype_;
    check_size();
    entries_.push_back(std::move(entry_));
  }

  // Fills offset and size; they must agree with shape and dtype.
  void check_size() {
    int64_t size_bytes = dtype_bytes(entry_.dtype);
    for (const int64_t dim : entry_.shape) {
      if (__builtin_mul_overflow(size_bytes, dim, &size_bytes))
        fail(ExitCode::kBadData, "{}: tensor '{}': field 'shape': the size of {} {} overflows 64 bits",
             origin_, printable(name_), dtype_name(entry_.dtype), shape_text(entry_.shape));
    }
    const auto [begin, end] = std::pair(offsets_[0], offsets_[1]);
    if (begin > end)
      fail(ExitCode::kBadData, "{}: tensor '{}': field 'data_offsets': begin {} is after end {}", origin_,
           printable(name_), begin, end);
    if (end - begin != size_bytes)
      fail(ExitCode::kBadData,
           "{}: tensor '{}': field 'data_offsets': expected {} for {} {}, found {} ([{}, {}])", origin_,
           printable(name_), count_of(size_bytes, "byte"), dtype_name(entry_.dtype), shape_text(entry_.shape),
           end - begin, begin, end);
    entry_.offset_bytes = begin;
    entry_.size_bytes = size_bytes;
  }

  [[noreturn]] bool unexpected(const std::string& found) const {
    switch (level_) {
      case Level::kDocument:
        fail(ExitCode::kBadData, "{}: header: expected an object, found {}", origin_, found);
      case Level::kHeader:
        fail(ExitCode::kBadData, "{}: tensor '{}': expected an object, found {}", origin_, printable(name_),
             found);
      case Level::kMetadata:
        fail(ExitCode::kBadData, "{}: __metadata__: key '{}': expected a string, found {}", origin_,
             printable(field_), found);
      case Level::kTensor:
      case Level::kNumbers:
        fail(ExitCode::kBadData, "{}: tensor '{}': field '{}': expected {}, found {}", origin_,
             printable(name_), field_,
             field_ == "dtype"   ? "a type name"
             : field_ == "shape" ? "a list of integers from 0 to 2^63 - 1"
                                 : "two integers from 0 to 2^63 - 1",
             found);
    }
    TESSERA_CHECK(false);
    std::abort();
  }

  std::string_view text_;
  const std::string& origin_;
  std::map<std::string, std::string>* metadata_;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_keys_;
  Level level_ = Level::kDocument;
  std::string name_;   // of the current tensor
  std::string field_;  // in the tensor or in __metadata__
  SafetensorsEntry entry_;
  std::vector<int64_t> offsets_;
  std::optional<DType> dtype_;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

// The tensors must cover the data exactly, back to back: a gap could hide another file's content.
void check_coverage(std::vector<SafetensorsEntry>& entries, int64_t data_bytes, const std::string& origin) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.offset_bytes, a.size_bytes, a.name) < std::tie(b.offset_bytes, b.size_bytes, b.name);
  });
  int64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.offset_bytes + entry.size_bytes > data_bytes)
      fail(ExitCode::kBadData,
           "{}: tensor '{}': field 'data_offsets': [{}, {}] lies outside the {} of data in the file "
           "(truncated?)",
           origin, printable(entry.name), entry.offset_bytes, entry.offset_bytes + entry.size_bytes,
           count_of(data_bytes, "byte"));
    if (entry.offset_bytes != covered)
      fail(ExitCode::kBadData,
           "{}: tensor '{}': field 'data_offsets': expected to begin at {}, found {} ({})", origin,
           printable(entry.name), covered, entry.offset_bytes,
           entry.offset_bytes < covered ? "overlaps the tensor before it" : "a hole that no tensor covers");
    covered += entry.size_bytes;
  }
  if (covered != data_bytes)
    fail(ExitCode::kBadData, "{}: expected {} of data for {} in the header, found {}", origin,
         count_of(covered, "byte"), count_of(std::ssize(entries), "tensor"), data_bytes);
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, int64_t data_bytes,
                                                       const std::string& origin,
                                                       std::map<std::string, std::string>* metadata) {
  const std::string where = origin + ": header";
  check_json_bytes(json, where);
  const size_t first = json.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || json[first] != '{')
    fail(ExitCode::kBadData, "{}: expected '{{', found {}", where,
         first == std::string_view::npos ? "nothing" : "'" + printable(json.substr(first), 16) + "'");
  HeaderHandler handler(json, origin, metadata);
  Json::sax_parse(json, &handler);
  std::vector<SafetensorsEntry> entries = handler.take_entries();
  check_coverage(entries, data_bytes, origin);
  return entries;
}

}  // namespace tessera
