#include "formats/parquet/page_codec.h"

#include <brotli/decode.h>
#include <lz4.h>
#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include <cstring>
#include <memory>

#include "formats/parquet/problem.h"

namespace tessera::parquet {
namespace {

enum Codec : int32_t { kSnappy = 1, kGzip = 2, kLzo = 3, kBrotli = 4, kLz4 = 5, kZstd = 6, kLz4Raw = 7 };

const char* codec_name(int32_t codec) {
  constexpr const char* kNames[] = {"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO",
                                    "BROTLI",       "LZ4",    "ZSTD", "LZ4_RAW"};
  return codec >= 0 && codec <= kLz4Raw ? kNames[codec] : "an unknown codec";
}

// The most bytes that one compressed byte stands for, rounded up: a copy of snappy makes 64 bytes of 3, a
// symbol of deflate 258 bytes of 2 bits, a byte of lz4 255 bytes, a block of zstd 128 KiB of 4 bytes.
int64_t max_ratio(int32_t codec) {
  switch (codec) {
    case kUncompressed:
      return 1;
    case kSnappy:
      return 22;
    case kGzip:
      return 1033;
    case kLz4:
    case kLz4Raw:
      return 256;
    default:
      return 32768;  // of brotli an estimate, which the allowance below makes safe for small pages
  }
}
// A few bytes of brotli make a metablock of 16 MiB.
constexpr int64_t kAllowanceBytes = int64_t{16} << 20;
// Writers make pages of about 1 MiB, some of 100 MB, and one long value makes a page as long as it.
constexpr int64_t kMaxPageBytes = int64_t{512} << 20;

[[noreturn]] void reject_damaged(int32_t codec) { reject("the {} data is damaged", codec_name(codec)); }

void check_size(int32_t codec, size_t found, size_t expected) {
  if (found != expected)
    reject("the {} data decompresses to {} bytes, the page header says {}", codec_name(codec), found,
           expected);
}

void gunzip(std::string_view compressed, std::span<char> page) {
  z_stream stream = {};
  // 32: a gzip or a zlib header.
  if (inflateInit2(&stream, MAX_WBITS + 32) != Z_OK) reject("zlib cannot be initialised");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> owner(&stream, inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  stream.next_out = reinterpret_cast<Bytef*>(page.data());
  stream.avail_out = static_cast<uInt>(page.size());
  // Some writers concatenate members.
  while (inflate(&stream, Z_FINISH) == Z_STREAM_END) {
    if (stream.avail_in == 0) return check_size(kGzip, page.size() - stream.avail_out, page.size());
    if (inflateReset(&stream) != Z_OK) break;
  }
  reject_damaged(kGzip);
}

uint32_t read_big_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
  return value;
}

// Hadoop's framing: blocks of their decompressed size, then pieces of their compressed size, both 4 bytes big
// endian. False if the data does not have it.
bool decompress_hadoop_lz4(std::string_view compressed, std::span<char> page) {
  size_t done = 0;
  while (!compressed.empty()) {
    if (compressed.size() < 4) return false;
    const size_t block_end = done + read_big_endian(compressed);
    compressed.remove_prefix(4);
    if (block_end > page.size()) return false;
    while (done < block_end) {
      if (compressed.size() < 4) return false;
      const size_t piece = read_big_endian(compressed);
      compressed.remove_prefix(4);
      if (piece > compressed.size()) return false;
      const int made = LZ4_decompress_safe(compressed.data(), page.data() + done, static_cast<int>(piece),
                                           static_cast<int>(block_end - done));
      if (made <= 0) return false;
      done += static_cast<size_t>(made);
      compressed.remove_prefix(piece);
    }
  }
  return done == page.size();
}

void decompress_lz4(int32_t codec, std::string_view compressed, std::span<char> page) {
  // The deprecated codec LZ4 has been written with Hadoop's framing and without.
  if (codec == kLz4 && decompress_hadoop_lz4(compressed, page)) return;
  const int made = LZ4_decompress_safe(compressed.data(), page.data(), static_cast<int>(compressed.size()),
                                       static_cast<int>(page.size()));
  if (made < 0) reject_damaged(codec);
  check_size(codec, static_cast<size_t>(made), page.size());
}

void decompress_snappy(std::string_view compressed, std::span<char> page) {
  size_t size = 0;
  if (!snappy::GetUncompressedLength(compressed.data(), compressed.size(), &size)) reject_damaged(kSnappy);
  check_size(kSnappy, size, page.size());
  if (!snappy::RawUncompress(compressed.data(), compressed.size(), page.data())) reject_damaged(kSnappy);
}

void decompress_zstd(std::string_view compressed, std::span<char> page) {
  thread_local const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                                ZSTD_freeDCtx);
  const size_t size =
      ZSTD_decompressDCtx(context.get(), page.data(), page.size(), compressed.data(), compressed.size());
  if (ZSTD_isError(size) != 0) reject("the ZSTD data is damaged: {}", ZSTD_getErrorName(size));
  check_size(kZstd, size, page.size());
}

void decompress_brotli(std::string_view compressed, std::span<char> page) {
  size_t size = page.size();
  const BrotliDecoderResult result =
      BrotliDecoderDecompress(compressed.size(), reinterpret_cast<const uint8_t*>(compressed.data()), &size,
                              reinterpret_cast<uint8_t*>(page.data()));
  if (result != BROTLI_DECODER_RESULT_SUCCESS) reject_damaged(kBrotli);
  check_size(kBrotli, size, page.size());
}

}  // namespace

void check_codec(int32_t codec, int64_t compressed_size, int64_t uncompressed_size) {
  if (codec < kUncompressed || codec > kLz4Raw || codec == kLzo)
    reject(
        "compressed with {} (codec {}), which is not supported: expected UNCOMPRESSED, SNAPPY, GZIP, ZSTD, "
        "LZ4_RAW, LZ4 or BROTLI",
        codec_name(codec), codec);
  if (uncompressed_size > compressed_size * max_ratio(codec) + kAllowanceBytes)
    reject("claims to be {} bytes of {} that decompress to {}, which is not believable", compressed_size,
           codec_name(codec), uncompressed_size);
  if (uncompressed_size > kMaxPageBytes)
    reject("decompresses to {} bytes, expected at most {} in a page: write the file with smaller pages",
           uncompressed_size, kMaxPageBytes);
}

void decompress_page(int32_t codec, std::string_view compressed, std::span<char> page) {
  switch (codec) {
    case kUncompressed:
      check_size(codec, compressed.size(), page.size());
      if (!page.empty()) std::memcpy(page.data(), compressed.data(), page.size());
      return;
    case kSnappy:
      return decompress_snappy(compressed, page);
    case kGzip:
      return gunzip(compressed, page);
    case kZstd:
      return decompress_zstd(compressed, page);
    case kLz4:
    case kLz4Raw:
      return decompress_lz4(codec, compressed, page);
    case kBrotli:
      return decompress_brotli(compressed, page);
    default:
      reject("compressed with {} (codec {})", codec_name(codec), codec);
  }
}

}  // namespace tessera::parquet
