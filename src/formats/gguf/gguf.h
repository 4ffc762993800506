// GGUF version 3, the file format of llama.cpp: metadata fields, tensor descriptions, then the tensors' data.
// Specification: github.com/ggml-org/ggml, docs/gguf.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera {

// The alternatives are in the order of the format's type numbers, from which 9, arrays, is left out.
using GgufScalar = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool,
                                std::string, uint64_t, int64_t, double>;

// Arrays of arrays are not supported, nor does llama.cpp read them.
struct GgufArray {
  GgufScalar type;  // any value of the elements' type
  std::vector<GgufScalar> values;
};

struct GgufField {
  std::string key;
  std::variant<GgufScalar, GgufArray> value;
};

template <typename T>
GgufField gguf_array(std::string key, const std::vector<T>& values) {
  return {std::move(key), GgufArray{T{}, {values.begin(), values.end()}}};
}

// The types that this program writes, by their numbers in the file.
enum class GgmlType : uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBF16 = 30 };

struct GgmlTypeInfo {
  uint32_t number;
  const char* name;
  int64_t block_elements;  // consecutive elements of a row that are stored together
  int64_t block_bytes;
};
const GgmlTypeInfo* find_ggml_type(uint32_t number);  // nullptr if unknown
const GgmlTypeInfo& ggml_type(GgmlType type);

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // the reverse of Hugging Face's: the dimension that varies fastest comes first
  const GgmlTypeInfo* type;
  int64_t offset_bytes = 0;  // from the start of the file
  int64_t size_bytes = 0;
};

struct GgufContent {
  std::vector<GgufField> fields;
  std::vector<GgufTensor> tensors;
};

// Metadata and tensor descriptions may take this much: ten times those of the largest vocabularies.
inline constexpr int64_t kMaxGgufHeaderBytes = int64_t{64} << 20;

// Reads what precedes the data. Error(kNoInput) if the file cannot be opened; kBadData with file, field or
// tensor, expected and found.
GgufContent read_gguf(const std::filesystem::path& path);
// Parses the first bytes of a file of `file_bytes`.
GgufContent parse_gguf(std::string_view head, int64_t file_bytes, const std::string& origin);

// The part of a file before the data. Sets the tensors' places; `shape` and `type` are given, and rows
// consist of whole blocks.
struct GgufLayout {
  std::string header;
  std::vector<GgufTensor> tensors;
  int64_t file_bytes;
};
GgufLayout gguf_layout(const std::vector<GgufField>& fields, std::vector<GgufTensor> tensors);

}  // namespace tessera
