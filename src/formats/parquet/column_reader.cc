#include "formats/parquet/column_reader.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "base/error.h"
#include "base/text.h"
#include "formats/parquet/page_codec.h"
#include "formats/parquet/problem.h"
#include "formats/parquet/thrift_reader.h"

namespace tessera::parquet {
namespace {

constexpr int64_t kReadBytes = int64_t{256} << 10;
// Page headers hold the smallest and the largest value of the page, which may be long strings.
constexpr int64_t kFirstHeaderBytes = 4096;
constexpr int64_t kMaxHeaderBytes = int64_t{16} << 20;

}  // namespace

void FileWindow::start(int64_t begin, int64_t likely_end) {
  if (begin < 0 || begin >= file_.size_bytes())
    reject("starts at byte {}, but the file has {}", begin, count_of(file_.size_bytes(), "byte"));
  buffer_.clear();
  begin_ = 0;
  next_ = begin;
  likely_end_ = likely_end;
}

std::string_view FileWindow::peek(int64_t count) {
  count = std::min(count, bytes_left());
  const int64_t available = std::ssize(buffer_) - static_cast<int64_t>(begin_);
  if (available < count) {
    buffer_.erase(0, begin_);
    begin_ = 0;
    const int64_t end = std::min(
        file_.size_bytes(), std::max(next_ + count - available, std::min(next_ + kReadBytes, likely_end_)));
    buffer_.resize(static_cast<size_t>(available + end - next_));
    file_.read_at(next_, std::as_writable_bytes(std::span(buffer_)).subspan(static_cast<size_t>(available)));
    next_ = end;
  }
  return std::string_view(buffer_).substr(begin_, static_cast<size_t>(count));
}

std::span<char> PageBuffer::resize(int64_t size_bytes) {
  if (size_bytes > capacity_bytes_) {
    bytes_.reset();
    bytes_.reset(new char[static_cast<size_t>(size_bytes)]);
    capacity_bytes_ = size_bytes;
  }
  return {bytes_.get(), static_cast<size_t>(size_bytes)};
}

void ColumnReader::LevelDecoder::read(uint8_t* levels, int64_t count, int max_level) {
  if (max_level == 0) return;
  if (is_bit_packed) {
    bit_packed.read(levels, count);
  } else {
    rle.read(levels, count);
  }
  const uint8_t highest = *std::max_element(levels, levels + count);
  if (highest > max_level) reject("a value has the level {}, expected at most {}", highest, max_level);
}

ColumnReader::ColumnReader(const InputFile& file, const Leaf& leaf)
    : file_(file), leaf_(leaf), column_{*leaf.element->type, leaf.element->type_length}, window_(file) {}

void ColumnReader::fail_with(const Problem& problem) const {
  fail(ExitCode::kBadData, "{}: column '{}': page at byte {}: {}", file_.path().native(),
       printable(leaf_.path), page_offset_, problem.what());
}

void ColumnReader::fail_early_end() const {
  fail(ExitCode::kBadData, "{}: column '{}': has only {} values, the rows of its row group need more",
       file_.path().native(), printable(leaf_.path), chunk_.num_values);
}

void ColumnReader::open_chunk(const ColumnChunk& chunk) {
  chunk_ = chunk;
  page_offset_ = chunk.first_page_offset;
  values_left_ = std::max<int64_t>(chunk.num_values, 0);
  page_values_left_ = 0;
  at_ = count_ = 0;
  values_.reset();
  dictionary_.reset();
  try {
    if (chunk.is_encrypted) reject("is encrypted, which is not supported: decrypt the file first");
    if (chunk.is_elsewhere) reject("its data is in another file, which is not supported");
    if (chunk.type != column_.type)
      reject("has the physical type {}, the schema says {}", static_cast<int>(chunk.type),
             static_cast<int>(column_.type));
    if (column_.type == PhysicalType::kFixedLenByteArray && column_.type_length == 0)
      reject("has values of 0 bytes");
    window_.start(chunk.first_page_offset,
                  chunk.first_page_offset + std::min(chunk.total_compressed_size, file_.size_bytes()));
  } catch (const Problem& problem) {
    fail_with(problem);
  }
}

int64_t ColumnReader::bytes_read() const { return window_.position() - chunk_.first_page_offset; }

RawValue ColumnReader::take_value() {
  ++at_;
  try {
    return values_->next();
  } catch (const Problem& problem) {
    fail_with(problem);
  }
}

void ColumnReader::fill() {
  at_ = count_ = 0;
  try {
    while (page_values_left_ == 0) {
      if (values_left_ == 0) return;
      load_page();
    }
    const int64_t count = std::min<int64_t>(kBatch, page_values_left_);
    repetition_.read(repetition_levels_.data(), count, leaf_.max_repetition_level);
    definition_.read(definition_levels_.data(), count, leaf_.max_definition_level);
    page_values_left_ -= count;
    count_ = static_cast<size_t>(count);
  } catch (const Problem& problem) {
    fail_with(problem);
  }
}

PageHeader ColumnReader::read_header() {
  page_offset_ = window_.position();
  for (int64_t size = kFirstHeaderBytes;; size *= 8) {
    try {
      int64_t header_bytes = 0;
      const PageHeader header = read_page_header(window_.peek(size), &header_bytes);
      window_.skip(header_bytes);
      return header;
    } catch (const ThriftTruncated&) {
      if (size >= std::min(window_.bytes_left(), kMaxHeaderBytes)) reject("the page header is damaged");
    }
  }
}

// Loads the next page of any type; a data page with values sets page_values_left_.
void ColumnReader::load_page() {
  values_.reset();
  const PageHeader header = read_header();
  if (header.compressed_size > window_.bytes_left())
    reject("claims {}, but the file ends after {}", count_of(header.compressed_size, "byte"),
           count_of(window_.bytes_left(), "byte"));
  const std::string_view body = window_.peek(header.compressed_size);
  window_.skip(header.compressed_size);
  if (header.crc) {
    const auto crc = static_cast<uint32_t>(
        crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size())));
    if (crc != *header.crc) reject("is damaged: its CRC-32 is {:08x}, expected {:08x}", crc, *header.crc);
  }
  switch (static_cast<PageType>(header.type)) {
    case PageType::kDictionary:
      return load_dictionary(header, body);
    case PageType::kData:
      return load_data_page(header, body);
    case PageType::kDataV2:
      return load_data_page_v2(header, body);
    default:
      return;  // an index, or of a type to come
  }
}

std::string_view ColumnReader::decompressed(std::string_view compressed, int64_t size_bytes) {
  check_codec(chunk_.codec, std::ssize(compressed), size_bytes);
  if (size_bytes == 0) return {};
  if (chunk_.codec == kUncompressed && std::ssize(compressed) == size_bytes) return compressed;
  const std::span<char> page = page_bytes_.resize(size_bytes);
  decompress_page(chunk_.codec, compressed, page);
  return {page.data(), page.size()};
}

void ColumnReader::load_dictionary(const PageHeader& header, std::string_view body) {
  if (dictionary_) reject("the column chunk has a second dictionary");
  if (header.encoding != Encoding::kPlain && header.encoding != Encoding::kPlainDictionary)
    reject("the encoding {} of a dictionary is not supported", static_cast<int>(header.encoding));
  check_codec(chunk_.codec, std::ssize(body), header.uncompressed_size);
  const std::span<char> bytes = dictionary_bytes_.resize(header.uncompressed_size);
  if (!bytes.empty()) decompress_page(chunk_.codec, body, bytes);
  dictionary_ = read_dictionary(column_, {bytes.data(), bytes.size()}, header.num_values);
}

ColumnReader::LevelDecoder ColumnReader::take_levels(Encoding encoding, int max_level, int64_t num_values,
                                                     std::string_view* page) const {
  LevelDecoder levels;
  if (max_level == 0) return levels;
  const int bit_width = std::bit_width(static_cast<unsigned>(max_level));
  size_t size = 0;
  if (encoding == Encoding::kBitPacked) {
    size = static_cast<size_t>((num_values * bit_width + 7) / 8);
  } else if (encoding == Encoding::kRle) {
    uint32_t stated = 0;
    if (page->size() < sizeof stated) reject("the page ends early: levels are missing");
    std::memcpy(&stated, page->data(), sizeof stated);
    page->remove_prefix(sizeof stated);
    size = stated;
  } else {
    reject("the encoding {} of levels is not supported", static_cast<int>(encoding));
  }
  if (size > page->size()) reject("the page ends early: levels are missing");
  levels.is_bit_packed = encoding == Encoding::kBitPacked;
  levels.bit_packed = BitPackedDecoder(page->substr(0, size), bit_width);
  levels.rle = RleDecoder(page->substr(0, size), bit_width);
  page->remove_prefix(size);
  return levels;
}

void ColumnReader::load_data_page(const PageHeader& header, std::string_view body) {
  if (header.num_values > values_left_)
    reject("has {} values, the column chunk has only {} left", header.num_values, values_left_);
  std::string_view page = decompressed(body, header.uncompressed_size);
  if (header.num_values == 0) return;
  repetition_ = take_levels(header.repetition_encoding, leaf_.max_repetition_level, header.num_values, &page);
  definition_ = take_levels(header.definition_encoding, leaf_.max_definition_level, header.num_values, &page);
  values_ = make_decoder(header.encoding, column_, page, dictionary_ ? &*dictionary_ : nullptr);
  page_values_left_ = header.num_values;
  values_left_ -= header.num_values;
}

// Levels come first, without their lengths and never compressed.
void ColumnReader::load_data_page_v2(const PageHeader& header, std::string_view body) {
  if (header.num_values > values_left_)
    reject("has {} values, the column chunk has only {} left", header.num_values, values_left_);
  const int64_t level_bytes = header.repetition_bytes + header.definition_bytes;
  if (level_bytes > std::min(header.compressed_size, header.uncompressed_size))
    reject("has {} of levels in {}", count_of(level_bytes, "byte"), count_of(header.compressed_size, "byte"));
  const auto rle = [](std::string_view bytes, int max_level) {
    LevelDecoder levels;
    levels.rle = RleDecoder(bytes, std::bit_width(static_cast<unsigned>(max_level)));
    return levels;
  };
  const auto repetition_bytes = static_cast<size_t>(header.repetition_bytes);
  const auto definition_bytes = static_cast<size_t>(header.definition_bytes);
  repetition_ = rle(body.substr(0, repetition_bytes), leaf_.max_repetition_level);
  definition_ = rle(body.substr(repetition_bytes, definition_bytes), leaf_.max_definition_level);
  const std::string_view stored = body.substr(repetition_bytes + definition_bytes);
  const std::string_view values =
      header.is_compressed ? decompressed(stored, header.uncompressed_size - level_bytes) : stored;
  values_ = make_decoder(header.encoding, column_, values, dictionary_ ? &*dictionary_ : nullptr);
  page_values_left_ = header.num_values;
  values_left_ -= header.num_values;
}

}  // namespace tessera::parquet
