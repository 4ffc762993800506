#include "formats/file_kind.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "formats/byte_order_mark.h"

namespace tessera {
namespace {

using namespace std::string_view_literals;

constexpr size_t kHeadBytes = 8000;

struct Mark {
  size_t offset;
  std::string_view bytes;
  const char* name;
  const char* advice;
};

constexpr const char* kLeaveOut = "leave it out";
constexpr const char* kUnpack = "unpack it first";
constexpr const char* kConvert = "convert it to .jsonl";

constexpr const char* kGguf = "a GGUF file";
constexpr const char* kPyTorch = "a PyTorch archive (.bin, .pt, .pth)";
constexpr const char* kZip = "a zip archive";
constexpr const char* kPickle = "a Python pickle";
constexpr const char* kOriginalFolder =
    "give the Hugging Face folder that the GGUF file was made from (config.json, safetensors, "
    "tokenizer.json)";

constexpr Mark kMarks[] = {
    {0, "GGUF"sv, kGguf, kLeaveOut},
    {0, "PK\x03\x04"sv, kZip, kUnpack},
    {0, "\x80\x02"sv, kPickle, kLeaveOut},
    {0, "\x80\x04"sv, kPickle, kLeaveOut},
    {0, "\x1f\x8b"sv, "a gzip file", kUnpack},
    {0, "\x28\xb5\x2f\xfd"sv, "a Zstandard file", kUnpack},
    {0, "\xfd\x37zXZ\0"sv, "an xz file", kUnpack},
    {0, "BZh91AY&SY"sv, "a bzip2 file", kUnpack},
    {0, "7z\xbc\xaf\x27\x1c"sv, "a 7-Zip archive", kUnpack},
    {257, "ustar"sv, "a tar archive", kUnpack},
    {0, "PAR1"sv, "a Parquet file", kConvert},
    {0, "ARROW1"sv, "an Arrow file", kConvert},
    {0, "\x89HDF"sv, "an HDF5 file", kLeaveOut},
    {0, "\x93NUMPY"sv, "a NumPy array", kLeaveOut},
    {0, "SQLite format 3\0"sv, "an SQLite database", kLeaveOut},
    {0, "%PDF-"sv, "a PDF document", kLeaveOut},
    {0, "\x89PNG"sv, "a PNG image", kLeaveOut},
    {0, "\xff\xd8\xff"sv, "a JPEG image", kLeaveOut},
    {0, "\x7f\x45LF"sv, "a program or library (ELF)", kLeaveOut},
    {0, kLfsPointerStart, kLfsPointer, ""},
};

// An 8-byte length, then a JSON object of that length.
bool is_safetensors(std::string_view head, int64_t file_bytes) {
  uint64_t header_bytes = 0;
  if (head.size() <= sizeof(header_bytes) || head[sizeof(header_bytes)] != '{') return false;
  std::memcpy(&header_bytes, head.data(), sizeof(header_bytes));
  return header_bytes <= static_cast<uint64_t>(file_bytes) - sizeof(header_bytes);
}

}  // namespace

std::string read_head(const InputFile& file) {
  std::string head(std::min(kHeadBytes, static_cast<size_t>(file.size_bytes())), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  return head;
}

FileKind kind_of_head(std::string_view head, int64_t file_bytes) {
  if (head.empty()) return {.name = "an empty file", .is_text = true};
  for (const Mark& mark : kMarks) {
    if (head.size() <= mark.offset || !head.substr(mark.offset).starts_with(mark.bytes)) continue;
    // torch.save writes a zip whose first entry is ARCHIVE/data.pkl.
    const bool is_pytorch = mark.name == kZip && head.substr(0, 512).find("data.pkl") != head.npos;
    return {.name = is_pytorch ? kPyTorch : mark.name,
            .advice = is_pytorch ? kLeaveOut : mark.advice,
            .is_gguf = mark.name == kGguf,
            .has_mark = true};
  }
  if (is_safetensors(head, file_bytes)) return {.name = "a safetensors file", .advice = kLeaveOut};
  if (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF"))
    return {.name = "UTF-16 text", .advice = "convert it (`iconv -f UTF-16 -t UTF-8`)"};
  if (const size_t nul = head.find('\0'); nul != head.npos)
    return {.name = fmt::format("a binary file (a NUL byte at offset {})", nul), .advice = kLeaveOut};
  if (head.starts_with(kByteOrderMark)) head.remove_prefix(kByteOrderMark.size());
  const size_t first = head.find_first_not_of(" \t\r\n");
  const bool is_json = first != head.npos && (head[first] == '{' || head[first] == '[');
  return {.name = is_json ? "a JSON file" : "a text file", .is_text = true, .is_json = is_json};
}

FileKind kind_of_file(const std::filesystem::path& path) {
  const InputFile file = InputFile::open(path);
  return kind_of_head(read_head(file), file.size_bytes());
}

bool starts_as_utf8(std::string_view head) {
  const int64_t invalid = find_invalid_utf8(head);
  return invalid < 0 || (head.size() == kHeadBytes && std::ssize(head) - invalid < 4);
}

void check_is_model_folder(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) fail_not_a_model(path, kind_of_file(path));
}

void fail_not_a_model(const std::filesystem::path& path, const FileKind& kind) {
  std::string advice = "give the folder that holds config.json, the weights and the tokenizer";
  if (kind.name == kGguf) advice = fmt::format("GGUF is not supported: {}", kOriginalFolder);
  if (kind.name == kPyTorch || kind.name == kZip || kind.name == kPickle)
    advice = "PyTorch's own format is not supported: save the model as safetensors and give its folder";
  fail(ExitCode::kBadData, "{}: expected a Hugging Face model folder, found {}; {}", path.native(), kind.name,
       advice);
}

std::string note_on_gguf(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (lower_case(name).ends_with(".gguf"))
      return fmt::format(" ({} is there, but GGUF is not supported: {})", printable(name), kOriginalFolder);
  }
  return "";
}

}  // namespace tessera
