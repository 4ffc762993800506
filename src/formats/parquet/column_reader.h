// The values of one leaf column in order, with their levels. Holds one page and the dictionary of the current
// column chunk.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parquet/integer_decoders.h"
#include "formats/parquet/metadata.h"
#include "formats/parquet/problem.h"
#include "formats/parquet/schema.h"
#include "formats/parquet/value_decoders.h"
#include "io/file.h"

namespace tessera::parquet {

// Reads a part of a file in sequence, in large pieces.
class FileWindow {
 public:
  explicit FileWindow(const InputFile& file) : file_(file) {}

  // Continues at `begin`; reads ahead up to `likely_end`, further only if asked to. Throws Problem if `begin`
  // is not in the file.
  void start(int64_t begin, int64_t likely_end);
  int64_t position() const { return next_ - std::ssize(buffer_) + static_cast<int64_t>(begin_); }
  int64_t bytes_left() const { return file_.size_bytes() - position(); }
  // The next `count` bytes, fewer at the end of the file; valid until the next call.
  std::string_view peek(int64_t count);
  void skip(int64_t count) { begin_ += static_cast<size_t>(count); }

 private:
  const InputFile& file_;
  std::string buffer_;
  size_t begin_ = 0;  // of what has not been skipped, in buffer_
  int64_t next_ = 0;  // where to read on
  int64_t likely_end_ = 0;
};

// Memory that is not cleared, so that only written pages take physical memory.
class PageBuffer {
 public:
  std::span<char> resize(int64_t size_bytes);

 private:
  std::unique_ptr<char[]> bytes_;
  int64_t capacity_bytes_ = 0;
};

// Every function throws Error(kBadData) that names file, column and page if the file is damaged or uses what
// this reader does not know.
class ColumnReader {
 public:
  // Both must outlive the reader.
  ColumnReader(const InputFile& file, const Leaf& leaf);

  // Continues with the first value of a chunk.
  void open_chunk(const ColumnChunk& chunk);

  bool at_end() {
    if (at_ == count_) fill();
    return count_ == 0;
  }
  // Levels of the current value; the repetition level is 0 at the end of the chunk, as at the start of a row.
  int repetition_level() { return at_end() ? 0 : repetition_levels_[at_]; }
  int definition_level() {
    if (at_end()) fail_early_end();
    return definition_levels_[at_];
  }
  // Moves past a null.
  void skip_null() { ++at_; }
  // Moves past a value, which is not null; its bytes are valid until the next call of any function.
  RawValue take_value();

  int64_t bytes_read() const;  // of the chunk

 private:
  // One of the two encodings of levels.
  struct LevelDecoder {
    bool is_bit_packed = false;
    RleDecoder rle;
    BitPackedDecoder bit_packed;
    void read(uint8_t* levels, int64_t count, int max_level);
  };

  void fill();
  void load_page();
  PageHeader read_header();
  void load_data_page(const PageHeader& header, std::string_view body);
  void load_data_page_v2(const PageHeader& header, std::string_view body);
  void load_dictionary(const PageHeader& header, std::string_view body);
  LevelDecoder take_levels(Encoding encoding, int max_level, int64_t num_values,
                           std::string_view* page) const;
  std::string_view decompressed(std::string_view compressed, int64_t size_bytes);
  [[noreturn]] void fail_with(const Problem& problem) const;
  [[noreturn]] void fail_early_end() const;

  const InputFile& file_;
  const Leaf& leaf_;
  const PhysicalColumn column_;
  FileWindow window_;
  ColumnChunk chunk_;
  int64_t values_left_ = 0;  // in the chunk, after this page
  int64_t page_offset_ = 0;

  PageBuffer dictionary_bytes_;
  std::optional<std::vector<RawValue>> dictionary_;

  PageBuffer page_bytes_;
  int64_t page_values_left_ = 0;  // not yet in the batch
  LevelDecoder repetition_;
  LevelDecoder definition_;
  std::unique_ptr<ValueDecoder> values_;

  static constexpr size_t kBatch = 256;
  std::array<uint8_t, kBatch> repetition_levels_ = {};
  std::array<uint8_t, kBatch> definition_levels_ = {};
  size_t at_ = 0;
  size_t count_ = 0;
};

}  // namespace tessera::parquet
