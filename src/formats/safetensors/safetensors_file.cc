#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/file_kind.h"
#include "formats/huggingface/convert.h"
#include "formats/safetensors/safetensors.h"

namespace tessera {
namespace {

constexpr int64_t kLengthBytes = 8;
// The reference implementation's limit.
constexpr int64_t kMaxHeaderBytes = 100'000'000;
// Piece size of converting reads: large enough for a disk's full speed, small enough for any number of
// threads.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

// Says what the file is instead of safetensors: other formats have an impossible header length.
[[noreturn]] void fail_not_safetensors(const InputFile& file, uint64_t header_bytes) {
  const FileKind kind = kind_of_head(read_head(file), file.size_bytes());
  fail(ExitCode::kBadData,
       "{}: expected a safetensors file, found {} (header length: expected at most {} bytes, found {})",
       file.path().native(), kind.name, kMaxHeaderBytes, header_bytes);
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile result;
  result.file_ = InputFile::open(path);
  const InputFile& file = result.file_;
  const std::string origin = path.native();
  if (file.size_bytes() < kLengthBytes)
    fail(ExitCode::kBadData, "{}: too short for a safetensors file: expected at least {} bytes, found {}",
         origin, kLengthBytes, file.size_bytes());
  uint64_t header_bytes = 0;
  file.read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (header_bytes > uint64_t{kMaxHeaderBytes}) fail_not_safetensors(file, header_bytes);
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(header_bytes);
  if (data_begin > file.size_bytes())
    fail(ExitCode::kBadData, "{}: header length: {} in a file of {} (truncated?)", origin,
         count_of(static_cast<int64_t>(header_bytes), "byte"), count_of(file.size_bytes(), "byte"));
  std::string header(header_bytes, '\0');
  file.read_at(kLengthBytes, std::as_writable_bytes(std::span(header)));
  result.entries_ =
      parse_safetensors_header(header, file.size_bytes() - data_begin, origin, &result.metadata_);
  for (size_t i = 0; i < result.entries_.size(); ++i) {
    result.entries_[i].offset_bytes += data_begin;
    result.index_.emplace(result.entries_[i].name, i);
  }
  return result;
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &entries_[at->second];
}

void SafetensorsFile::announce(const SafetensorsEntry& entry, int64_t begin, int64_t count) const {
  const int64_t element_bytes = dtype_bytes(entry.dtype);
  file_.announce(entry.offset_bytes + begin * element_bytes, count * element_bytes);
}

void SafetensorsFile::read(const SafetensorsEntry& entry, int64_t begin, TensorView destination) const {
  const int64_t count = destination.num_elements();
  const int64_t element_bytes = dtype_bytes(entry.dtype);
  TESSERA_CHECK(begin >= 0 && count <= entry.size_bytes / element_bytes - begin,
                "{}: elements [{}, {} + {}) of {}", entry.name, begin, begin, count,
                entry.size_bytes / element_bytes);
  const DType to = destination.dtype();
  if (!can_convert(entry.dtype, to))
    fail(ExitCode::kBadData, "{}: tensor '{}': expected values that convert to {}, found {}", path().native(),
         printable(entry.name), dtype_name(to), dtype_name(entry.dtype));
  const int64_t offset = entry.offset_bytes + begin * element_bytes;
  if (entry.dtype == to) {
    file_.read_at(offset, {destination.bytes(), static_cast<size_t>(count * element_bytes)});
    file_.check_unchanged();
    return;
  }
  const int64_t piece = std::min(count, kPieceBytes / element_bytes);
  std::vector<std::byte> buffer(static_cast<size_t>(piece * element_bytes));
  for (int64_t done = 0; done < count; done += piece) {
    const int64_t now = std::min(piece, count - done);
    file_.read_at(offset + done * element_bytes, {buffer.data(), static_cast<size_t>(now * element_bytes)});
    const auto unfit =
        convert_elements(entry.dtype, buffer.data(), to, destination.bytes() + done * dtype_bytes(to), now);
    if (unfit)
      fail(ExitCode::kBadData, "{}: tensor '{}': element {}: expected a value that fits {}, found {}",
           path().native(), printable(entry.name), begin + done + *unfit, dtype_name(to),
           integer_element(entry.dtype, buffer.data(), *unfit));
  }
  file_.check_unchanged();
}

}  // namespace tessera
