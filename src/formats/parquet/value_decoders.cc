#include "formats/parquet/value_decoders.h"

#include <array>
#include <cstring>
#include <string>

#include "formats/parquet/integer_decoders.h"
#include "formats/parquet/problem.h"

namespace tessera::parquet {
namespace {

[[noreturn]] void reject_early_end() { reject("the page ends early: values are missing"); }

std::string_view take(std::string_view* bytes, size_t count) {
  if (count > bytes->size()) reject_early_end();
  const std::string_view taken = bytes->substr(0, count);
  bytes->remove_prefix(count);
  return taken;
}

uint64_t read_number(PhysicalType type, const char* bytes) {
  if (type == PhysicalType::kInt32) {
    int32_t value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return static_cast<uint64_t>(int64_t{value});
  }
  uint64_t bits = 0;
  std::memcpy(&bits, bytes, type == PhysicalType::kFloat ? 4 : 8);
  return bits;
}

// Bytes of a value; 0 for BOOLEAN and BYTE_ARRAY.
size_t fixed_size(const PhysicalColumn& column) {
  switch (column.type) {
    case PhysicalType::kInt32:
    case PhysicalType::kFloat:
      return 4;
    case PhysicalType::kInt64:
    case PhysicalType::kDouble:
      return 8;
    case PhysicalType::kInt96:
      return 12;
    case PhysicalType::kFixedLenByteArray:
      return static_cast<size_t>(column.type_length);
    default:
      return 0;
  }
}

bool is_number(PhysicalType type) {
  return type == PhysicalType::kInt32 || type == PhysicalType::kInt64 || type == PhysicalType::kFloat ||
         type == PhysicalType::kDouble;
}

RawValue fixed_value(PhysicalType type, std::string_view bytes) {
  return is_number(type) ? RawValue{read_number(type, bytes.data()), {}} : RawValue{0, bytes};
}

class PlainDecoder : public ValueDecoder {
 public:
  PlainDecoder(const PhysicalColumn& column, std::string_view values)
      : type_(column.type), size_(fixed_size(column)), values_(values) {}

  RawValue next() override {
    if (type_ == PhysicalType::kByteArray) {
      uint32_t size = 0;
      std::memcpy(&size, take(&values_, sizeof size).data(), sizeof size);
      return {0, take(&values_, size)};
    }
    if (type_ != PhysicalType::kBoolean) return fixed_value(type_, take(&values_, size_));
    if (bit_ == values_.size() * 8) reject_early_end();
    const uint64_t value = read_bits(values_, bit_++, 1);
    return {value, {}};
  }

 private:
  PhysicalType type_;
  size_t size_;
  std::string_view values_;
  uint64_t bit_ = 0;  // of BOOLEAN
};

// Indices into the dictionary, or BOOLEAN values, in batches of RLE runs.
class RleValues {
 public:
  explicit RleValues(RleDecoder decoder) : decoder_(decoder) {}

  uint32_t next() {
    if (at_ == count_) fill();
    return batch_[at_++];
  }

 private:
  void fill() {
    at_ = 0;
    count_ = static_cast<size_t>(decoder_.read_some(batch_.data(), std::ssize(batch_)));
  }

  RleDecoder decoder_;
  std::array<uint32_t, 256> batch_ = {};
  size_t at_ = 0;
  size_t count_ = 0;
};

class DictionaryDecoder : public ValueDecoder {
 public:
  DictionaryDecoder(std::string_view values, const std::vector<RawValue>& dictionary)
      : indices_(make_indices(values)), dictionary_(dictionary) {}

  RawValue next() override {
    const uint32_t index = indices_.next();
    if (index >= dictionary_.size())
      reject("a value has the index {} in a dictionary of {}", index, dictionary_.size());
    return dictionary_[index];
  }

 private:
  // A page of nulls alone may be empty.
  static RleDecoder make_indices(std::string_view values) {
    if (values.empty()) return RleDecoder({}, 1);
    const int width = static_cast<uint8_t>(values.front());
    if (width > 32) reject("the indices into the dictionary have {} bits", width);
    return RleDecoder(values.substr(1), width);
  }

  RleValues indices_;
  const std::vector<RawValue>& dictionary_;
};

class RleBooleanDecoder : public ValueDecoder {
 public:
  explicit RleBooleanDecoder(std::string_view values) : bits_(RleDecoder(without_length(values), 1)) {}
  RawValue next() override { return {bits_.next(), {}}; }

 private:
  static std::string_view without_length(std::string_view values) {
    if (values.empty()) return {};
    uint32_t size = 0;
    std::memcpy(&size, take(&values, sizeof size).data(), sizeof size);
    return take(&values, size);
  }

  RleValues bits_;
};

// A page of nulls alone may be empty.
DeltaDecoder make_delta_decoder(std::string_view values) {
  return values.empty() ? DeltaDecoder() : DeltaDecoder(values);
}

class DeltaIntegerDecoder : public ValueDecoder {
 public:
  DeltaIntegerDecoder(PhysicalType type, std::string_view values)
      : is_int32_(type == PhysicalType::kInt32), integers_(make_delta_decoder(values)) {}

  RawValue next() override {
    const int64_t value = integers_.next();
    return {static_cast<uint64_t>(is_int32_ ? static_cast<int32_t>(value) : value), {}};
  }

 private:
  bool is_int32_;
  DeltaDecoder integers_;
};

// DELTA_LENGTH_BYTE_ARRAY: all lengths, then all bytes.
class LengthsAndBytes {
 public:
  explicit LengthsAndBytes(std::string_view values)
      : lengths_(make_delta_decoder(values)), bytes_(DeltaDecoder(lengths_).rest()) {}

  std::string_view next() {
    const int64_t size = lengths_.next();
    if (size < 0) reject("a value has {} bytes", size);
    return take(&bytes_, static_cast<size_t>(size));
  }

 private:
  DeltaDecoder lengths_;
  std::string_view bytes_;
};

class DeltaLengthDecoder : public ValueDecoder {
 public:
  explicit DeltaLengthDecoder(std::string_view values) : values_(values) {}
  RawValue next() override { return {0, values_.next()}; }

 private:
  LengthsAndBytes values_;
};

// DELTA_BYTE_ARRAY: how many bytes each value shares with the one before, then the other bytes of each.
class DeltaBytesDecoder : public ValueDecoder {
 public:
  DeltaBytesDecoder(const PhysicalColumn& column, std::string_view values)
      : size_(fixed_size(column)),
        prefixes_(make_delta_decoder(values)),
        suffixes_(DeltaDecoder(prefixes_).rest()) {}

  RawValue next() override {
    const int64_t shared = prefixes_.next();
    if (shared < 0 || shared > std::ssize(value_))
      reject("a value shares {} bytes with one of {}", shared, value_.size());
    value_.resize(static_cast<size_t>(shared));
    value_ += suffixes_.next();
    if (size_ != 0 && value_.size() != size_)
      reject("a value has {} bytes, expected {}", value_.size(), size_);
    return {0, value_};
  }

 private:
  size_t size_;
  DeltaDecoder prefixes_;
  LengthsAndBytes suffixes_;
  std::string value_;
};

// BYTE_STREAM_SPLIT: the first bytes of all values, then the second bytes, and so on.
class SplitDecoder : public ValueDecoder {
 public:
  SplitDecoder(const PhysicalColumn& column, std::string_view values)
      : type_(column.type), values_(values), value_(fixed_size(column), '\0') {
    if (values.size() % value_.size() != 0)
      reject("{} bytes of values are not a multiple of {}", values.size(), value_.size());
    count_ = values.size() / value_.size();
  }

  RawValue next() override {
    if (at_ == count_) reject_early_end();
    for (size_t byte = 0; byte < value_.size(); ++byte) value_[byte] = values_[byte * count_ + at_];
    ++at_;
    return fixed_value(type_, value_);
  }

 private:
  PhysicalType type_;
  std::string_view values_;
  std::string value_;
  size_t count_ = 0;
  size_t at_ = 0;
};

const char* type_name(PhysicalType type) {
  constexpr const char* kNames[] = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                    "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
  return kNames[static_cast<size_t>(type)];
}

}  // namespace

std::unique_ptr<ValueDecoder> make_decoder(Encoding encoding, const PhysicalColumn& column,
                                           std::string_view values, const std::vector<RawValue>* dictionary) {
  const PhysicalType type = column.type;
  const bool is_integer = type == PhysicalType::kInt32 || type == PhysicalType::kInt64;
  const bool is_fixed = type == PhysicalType::kFixedLenByteArray;
  switch (encoding) {
    case Encoding::kPlain:
      return std::make_unique<PlainDecoder>(column, values);
    case Encoding::kPlainDictionary:
    case Encoding::kRleDictionary:
      if (dictionary == nullptr) reject("the page refers to a dictionary, which is missing");
      return std::make_unique<DictionaryDecoder>(values, *dictionary);
    case Encoding::kRle:
      if (type != PhysicalType::kBoolean) break;
      return std::make_unique<RleBooleanDecoder>(values);
    case Encoding::kDeltaBinaryPacked:
      if (!is_integer) break;
      return std::make_unique<DeltaIntegerDecoder>(type, values);
    case Encoding::kDeltaLengthByteArray:
      if (type != PhysicalType::kByteArray) break;
      return std::make_unique<DeltaLengthDecoder>(values);
    case Encoding::kDeltaByteArray:
      if (type != PhysicalType::kByteArray && !is_fixed) break;
      return std::make_unique<DeltaBytesDecoder>(column, values);
    case Encoding::kByteStreamSplit:
      if (!is_number(type) && !is_fixed) break;
      return std::make_unique<SplitDecoder>(column, values);
    case Encoding::kBitPacked:
      break;
  }
  reject("the encoding {} of {} values is not supported", static_cast<int>(encoding), type_name(type));
}

std::vector<RawValue> read_dictionary(const PhysicalColumn& column, std::string_view values, int64_t count) {
  if (column.type == PhysicalType::kBoolean) reject("a dictionary of BOOLEAN values is not supported");
  // The fewest bytes an entry takes.
  const size_t entry_bytes = column.type == PhysicalType::kByteArray ? 4 : fixed_size(column);
  if (static_cast<uint64_t>(count) > values.size() / entry_bytes)
    reject("a dictionary of {} entries has only {} bytes", count, values.size());
  PlainDecoder decoder(column, values);
  std::vector<RawValue> dictionary(static_cast<size_t>(count));
  for (RawValue& entry : dictionary) entry = decoder.next();
  return dictionary;
}

}  // namespace tessera::parquet
