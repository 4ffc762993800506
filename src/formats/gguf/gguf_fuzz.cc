// Any bytes are either refused with an Error or describe tensors inside the file.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "formats/gguf/gguf.h"
#include "support/fuzz_support.h"

namespace {

std::array<std::string, 2> seeds() {
  using namespace tessera;
  const GgufLayout small = gguf_layout({{"k", GgufScalar(uint32_t{7})}},
                                       {{.name = "t", .shape = {2}, .type = &ggml_type(GgmlType::kF16)}});
  const GgufLayout large = gguf_layout(
      {{"general.alignment", GgufScalar(uint32_t{32})}, gguf_array("a", std::vector<std::string>{"x", "yz"})},
      {{.name = "t", .shape = {64, 2}, .type = &ggml_type(GgmlType::kQ8_0)},
       {.name = "u", .shape = {1, 1, 3}, .type = &ggml_type(GgmlType::kF32)}});
  std::array<std::string, 2> files = {small.header, large.header};
  files[0].resize(static_cast<size_t>(small.file_bytes));
  files[1].resize(static_cast<size_t>(large.file_bytes));
  return files;
}

void check(std::string_view file) {
  const int64_t file_bytes = std::ssize(file);
  for (const auto& tensor : tessera::parse_gguf(file, file_bytes, "fuzz").tensors) {
    if (tensor.offset_bytes < 0 || tensor.size_bytes < 0) std::abort();
    if (tensor.size_bytes > file_bytes - tensor.offset_bytes) std::abort();
  }
}

}  // namespace

TESSERA_FUZZ("", seeds(), check, tessera::ExitCode::kBadData)
