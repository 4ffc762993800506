#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/gguf_wire.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr uint64_t kMaxDimensions = 4;
// A description takes at least this many bytes of the file, which limits their number.
constexpr uint64_t kMinFieldBytes = 13;
constexpr uint64_t kMinTensorBytes = 32;
// Values of all arrays: a value in memory takes more room than in the file.
constexpr uint64_t kMaxArrayValues = uint64_t{1} << 23;

class Parser {
 public:
  Parser(std::string_view head, int64_t file_bytes, const std::string& origin)
      : head_(head), file_bytes_(file_bytes), origin_(origin) {}

  GgufContent parse() {
    where_ = "header";
    if (!head_.starts_with(kGgufMagic)) refuse("expected a GGUF file, found another first word");
    at_ = kGgufMagic.size();
    // Version 2 differs from 3 only in allowing no big-endian files.
    if (const auto version = take<uint32_t>(); version != 2 && version != kGgufVersion)
      refuse(fmt::format("expected GGUF version 2 or 3, found {}", version));
    const uint64_t num_tensors = take_count("tensors", kMinTensorBytes);
    const uint64_t num_fields = take_count("metadata fields", kMinFieldBytes);
    GgufContent content;
    for (uint64_t i = 0; i < num_fields; ++i) content.fields.push_back(take_field(i));
    const int64_t alignment = alignment_of(content.fields);
    std::unordered_set<std::string> names;
    for (uint64_t i = 0; i < num_tensors; ++i) {
      content.tensors.push_back(take_tensor(i, alignment));
      if (!names.insert(content.tensors.back().name).second) refuse("the name appears twice");
    }
    place(alignment, &content.tensors);
    return content;
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    fail(ExitCode::kBadData, "{}: {}: {}", origin_, where_, problem);
  }

  std::string_view take_bytes(uint64_t count) {
    if (count > head_.size() - at_) {
      if (static_cast<int64_t>(head_.size()) < file_bytes_)
        refuse(fmt::format("expected at most {} before the data, found more",
                           format_bytes(kMaxGgufHeaderBytes)));
      refuse(fmt::format(
          "expected {} bytes at offset {}, found the end of the file: it is damaged or incomplete", count,
          at_));
    }
    at_ += count;
    return head_.substr(at_ - count, count);
  }

  template <typename T>
  T take() {
    if constexpr (std::is_same_v<T, std::string>) {
      return std::string(take_bytes(take<uint64_t>()));
    } else if constexpr (std::is_same_v<T, bool>) {
      return take<uint8_t>() != 0;
    } else {
      T value;
      std::memcpy(&value, take_bytes(sizeof(value)).data(), sizeof(value));
      return value;
    }
  }

  uint64_t take_count(const char* what, uint64_t min_bytes) {
    const auto count = take<uint64_t>();
    const uint64_t limit = (head_.size() - at_) / min_bytes;
    if (count > limit)
      refuse(fmt::format("expected at most {} {} in this file, found {}", limit, what, count));
    return count;
  }

  std::string take_name() {
    std::string name = take<std::string>();
    if (!is_valid_utf8(name)) refuse(fmt::format("expected a name in UTF-8, found {}", printable(name)));
    return name;
  }

  template <size_t kIndex = 0>
  GgufScalar take_scalar(uint32_t type) {
    if constexpr (kIndex == std::variant_size_v<GgufScalar>) {
      refuse(fmt::format("expected a value type from 0 to 12, found {}", type));
    } else {
      if (type == (kIndex < kGgufArrayType ? kIndex : kIndex + 1))
        return take<std::variant_alternative_t<kIndex, GgufScalar>>();
      return take_scalar<kIndex + 1>(type);
    }
  }

  GgufField take_field(uint64_t number) {
    where_ = fmt::format("metadata field {}", number);
    GgufField field = {take_name(), GgufScalar{}};
    where_ = fmt::format("metadata field '{}'", printable(field.key));
    const auto type = take<uint32_t>();
    if (type != kGgufArrayType) {
      field.value = take_scalar(type);
      return field;
    }
    const auto element_type = take<uint32_t>();
    if (element_type == kGgufArrayType)
      refuse("expected an array of single values, found an array of arrays");
    const uint64_t count = take_count("array values", 1);
    num_array_values_ += count;
    if (num_array_values_ > kMaxArrayValues)
      refuse(fmt::format("expected at most {} values in all arrays, found more", kMaxArrayValues));
    GgufArray array;
    array.values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) array.values.push_back(take_scalar(element_type));
    if (count > 0) array.type = array.values.front();
    field.value = std::move(array);
    return field;
  }

  int64_t alignment_of(const std::vector<GgufField>& fields) const {
    for (const GgufField& field : fields) {
      if (field.key != "general.alignment") continue;
      const auto* scalar = std::get_if<GgufScalar>(&field.value);
      const uint32_t* value = scalar == nullptr ? nullptr : std::get_if<uint32_t>(scalar);
      if (value == nullptr || *value == 0 || (*value & (*value - 1)) != 0 || *value > (1u << 20))
        fail(ExitCode::kBadData, "{}: general.alignment: expected a power of two up to 2^20 as uint32",
             origin_);
      return *value;
    }
    return kGgufAlignment;
  }

  GgufTensor take_tensor(uint64_t number, int64_t alignment) {
    where_ = fmt::format("tensor {}", number);
    GgufTensor tensor = {.name = take_name(), .shape = {}, .type = nullptr};
    where_ = fmt::format("tensor '{}'", printable(tensor.name));
    const auto num_dims = take<uint32_t>();
    if (num_dims > kMaxDimensions)
      refuse(fmt::format("expected at most {} dimensions, found {}", kMaxDimensions, num_dims));
    int64_t num_elements = 1;
    for (uint32_t i = 0; i < num_dims; ++i) {
      const auto dim = take<uint64_t>();
      if (dim > std::numeric_limits<int64_t>::max() ||
          __builtin_mul_overflow(num_elements, static_cast<int64_t>(dim), &num_elements))
        refuse(fmt::format("expected fewer than 2^63 elements, found a dimension of {}", dim));
      tensor.shape.push_back(static_cast<int64_t>(dim));
    }
    const auto type = take<uint32_t>();
    tensor.type = find_ggml_type(type);
    if (tensor.type == nullptr)
      refuse(fmt::format("expected a tensor type that ggml has, found number {}", type));
    const int64_t row = tensor.shape.empty() ? 1 : tensor.shape[0];
    if (row % tensor.type->block_elements != 0) {
      refuse(fmt::format("expected rows of a multiple of {} elements for {}, found {}",
                         tensor.type->block_elements, tensor.type->name, row));
    }
    if (__builtin_mul_overflow(num_elements / tensor.type->block_elements, tensor.type->block_bytes,
                               &tensor.size_bytes))
      refuse("expected fewer than 2^63 bytes, found more");
    const auto offset = take<uint64_t>();
    if (offset % static_cast<uint64_t>(alignment) != 0 || offset > static_cast<uint64_t>(file_bytes_))
      refuse(fmt::format("expected an offset inside the file and a multiple of {}, found {}", alignment,
                         offset));
    tensor.offset_bytes = static_cast<int64_t>(offset);
    return tensor;
  }

  // From offsets within the data to offsets within the file.
  void place(int64_t alignment, std::vector<GgufTensor>* tensors) {
    const int64_t data_begin = gguf_aligned(static_cast<int64_t>(at_), alignment);
    for (GgufTensor& tensor : *tensors) {
      where_ = fmt::format("tensor '{}'", printable(tensor.name));
      tensor.offset_bytes += data_begin;
      if (tensor.size_bytes > file_bytes_ - tensor.offset_bytes) {
        refuse(
            fmt::format("expected {} bytes at offset {}, found the end of the file at {}: it is damaged or "
                        "incomplete",
                        tensor.size_bytes, tensor.offset_bytes, file_bytes_));
      }
    }
  }

  std::string_view head_;
  int64_t file_bytes_;
  const std::string& origin_;
  std::string where_;
  size_t at_ = 0;
  uint64_t num_array_values_ = 0;
};

}  // namespace

GgufContent parse_gguf(std::string_view head, int64_t file_bytes, const std::string& origin) {
  return Parser(head, file_bytes, origin).parse();
}

GgufContent read_gguf(const std::filesystem::path& path) {
  const InputFile file = InputFile::open(path);
  std::string head(static_cast<size_t>(std::min(file.size_bytes(), kMaxGgufHeaderBytes)), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  return parse_gguf(head, file.size_bytes(), path.native());
}

}  // namespace tessera
