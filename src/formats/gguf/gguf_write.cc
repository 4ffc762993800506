#include <type_traits>

#include "base/error.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/gguf_wire.h"

namespace tessera {
namespace {

template <typename T>
void append(std::string& out, T value) {
  static_assert(std::is_arithmetic_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append(std::string& out, const std::string& text) {
  append(out, static_cast<uint64_t>(text.size()));
  out += text;
}

uint32_t type_number(const GgufScalar& value) {
  const auto index = static_cast<uint32_t>(value.index());
  return index < kGgufArrayType ? index : index + 1;
}

void append_scalar(std::string& out, const GgufScalar& value) {
  std::visit([&](const auto& held) { append(out, held); }, value);
}

void append_field(std::string& out, const GgufField& field) {
  append(out, field.key);
  if (const auto* scalar = std::get_if<GgufScalar>(&field.value)) {
    append(out, type_number(*scalar));
    append_scalar(out, *scalar);
    return;
  }
  const auto& array = std::get<GgufArray>(field.value);
  append(out, kGgufArrayType);
  append(out, type_number(array.type));
  append(out, static_cast<uint64_t>(array.values.size()));
  for (const GgufScalar& value : array.values) append_scalar(out, value);
}

// Sets size_bytes.
void measure(GgufTensor* tensor) {
  const GgmlTypeInfo& type = *tensor->type;
  TESSERA_CHECK(tensor->shape.at(0) % type.block_elements == 0, "{}: {} of {}", tensor->name, type.name,
                tensor->shape[0]);
  int64_t num_elements = 1;
  for (const int64_t dim : tensor->shape) num_elements *= dim;
  tensor->size_bytes = num_elements / type.block_elements * type.block_bytes;
}

}  // namespace

GgufLayout gguf_layout(const std::vector<GgufField>& fields, std::vector<GgufTensor> tensors) {
  GgufLayout layout = {.header = std::string(kGgufMagic), .tensors = std::move(tensors), .file_bytes = 0};
  std::string& out = layout.header;
  append(out, kGgufVersion);
  append(out, static_cast<uint64_t>(layout.tensors.size()));
  append(out, static_cast<uint64_t>(fields.size()));
  for (const GgufField& field : fields) append_field(out, field);
  int64_t data_bytes = 0;
  for (GgufTensor& tensor : layout.tensors) {
    measure(&tensor);
    append(out, tensor.name);
    append(out, static_cast<uint32_t>(tensor.shape.size()));
    for (const int64_t dim : tensor.shape) append(out, static_cast<uint64_t>(dim));
    append(out, tensor.type->number);
    append(out, static_cast<uint64_t>(data_bytes));
    tensor.offset_bytes = data_bytes;
    data_bytes += gguf_aligned(tensor.size_bytes, kGgufAlignment);
  }
  out.resize(static_cast<size_t>(gguf_aligned(std::ssize(out), kGgufAlignment)));
  for (GgufTensor& tensor : layout.tensors) tensor.offset_bytes += std::ssize(out);
  layout.file_bytes = std::ssize(out) + data_bytes;
  return layout;
}

}  // namespace tessera
