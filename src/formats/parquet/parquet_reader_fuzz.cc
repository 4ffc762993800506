// Any bytes are either refused with an Error or give as many rows as the footer says.
#include <unistd.h>

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "formats/parquet/parquet_reader.h"
#include "formats/row_error.h"
#include "support/fuzz_support.h"
#include "support/parquet_bytes.h"

namespace {

using tessera::ParquetBytes;
using tessera::parquet::Encoding;
using tessera::parquet::PageType;
using tessera::parquet::PhysicalType;
using tessera::parquet::Repetition;

// A list of objects, a number and a boolean, in two row groups, with this codec.
std::string make_seed(int codec, PageType page_type) {
  const std::vector<std::string> texts = {"user", "user 2", "", "a longer text"};
  ParquetBytes file;
  file.add_group("messages", Repetition::kOptional, 1, ParquetBytes::kList);
  file.add_group("list", Repetition::kRepeated, 1);
  file.add_group("element", Repetition::kOptional, 2);
  file.add_leaf("role", Repetition::kOptional, PhysicalType::kByteArray, ParquetBytes::kUtf8);
  file.add_leaf("content", Repetition::kRequired, PhysicalType::kByteArray, ParquetBytes::kUtf8);
  file.add_leaf("id", Repetition::kRequired, PhysicalType::kInt64);
  file.add_leaf("ok", Repetition::kOptional, PhysicalType::kBoolean);
  for (int group = 0; group < 2; ++group) {
    file.start_row_group(4);
    const std::string levels = tessera::encode_rle({0, 1, 1, 0, 0, 0}, 1);
    const std::string roles = tessera::encode_rle({4, 4, 3, 1, 4, 4}, 3);
    const std::string contents = tessera::encode_rle({3, 3, 3, 1, 3, 3}, 2);
    file.start_column(PhysicalType::kByteArray, 6, codec);
    file.add_page({PageType::kDictionary, Encoding::kPlain, 2, "", "",
                   tessera::encode_byte_array("user") + tessera::encode_byte_array("bot"), group == 0});
    file.add_page({page_type, Encoding::kRleDictionary, 6, levels, roles,
                   "\1" + tessera::encode_rle({0, 1, 1, 0}, 1), false});
    file.start_column(PhysicalType::kByteArray, 6, codec);
    file.add_page({page_type, group == 0 ? Encoding::kDeltaByteArray : Encoding::kDeltaLengthByteArray, 6,
                   levels, contents,
                   group == 0 ? tessera::encode_delta_bytes({"a", "ab", "abc", "", "x"})
                              : tessera::encode_delta_lengths({"a", "ab", "abc", "", "x"}),
                   false});
    file.start_column(PhysicalType::kInt64, 4, codec);
    file.add_page(
        {page_type, Encoding::kDeltaBinaryPacked, 4, "", "", tessera::encode_delta({1, -500, 7, 8}), false});
    file.start_column(PhysicalType::kBoolean, 4, codec);
    file.add_page({page_type, Encoding::kPlain, 4, "", tessera::encode_rle({1, 0, 1, 1}, 1), "\5", false});
  }
  return file.finish(3);
}

// Reads the rows of a file with these bytes; what a row is refused for must be one line.
void read_rows(std::string_view bytes) {
  static const int kFile = ::memfd_create("fuzz", 0);
  if (::ftruncate(kFile, 0) != 0 || ::pwrite(kFile, bytes.data(), bytes.size(), 0) != std::ssize(bytes))
    std::abort();
  tessera::ParquetReader reader("/proc/self/fd/" + std::to_string(kFile));
  // A few bytes can stand for any number of null rows.
  constexpr int64_t kMaxRows = 1000;
  int64_t num_rows = 0;
  for (tessera::Value row; num_rows < kMaxRows; ++num_rows) {
    try {
      if (!reader.next(&row)) break;
    } catch (const tessera::RowError& error) {
      tessera::check_refusal(error, tessera::ExitCode::kBadData);
    }
  }
  if (num_rows < kMaxRows && num_rows != reader.num_rows()) std::abort();
}

std::vector<std::string> seeds() {
  std::vector<std::string> files;
  for (const int codec : {0, 1}) {
    for (const PageType page_type : {PageType::kData, PageType::kDataV2}) {
      files.push_back(make_seed(codec, page_type));
      read_rows(files.back());
    }
  }
  return files;
}

}  // namespace

TESSERA_FUZZ("", seeds(), read_rows, tessera::ExitCode::kBadData)
