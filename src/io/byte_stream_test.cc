#include "io/byte_stream.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>

#include "expect_error.h"
#include "test_folder.h"

namespace tessera {
namespace {

std::string gzip(std::string_view text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

// A skippable frame with this content.
std::string skippable(std::string_view content) {
  std::string frame("\x53\x2a\x4d\x18", 4);
  for (int byte = 0; byte < 4; ++byte) frame += static_cast<char>(content.size() >> (8 * byte));
  return frame.append(content);
}

// Words, so that it compresses, with a few random bytes.
std::string make_text(int64_t size, unsigned seed) {
  std::minstd_rand random(seed);
  std::string text;
  while (std::ssize(text) < size) {
    text += random() % 3 == 0 ? "the quick brown fox " : "jumps ";
    text += static_cast<char>(random() % 256);
  }
  text.resize(static_cast<size_t>(size));
  return text;
}

std::string read_all(ByteStream& stream, size_t piece) {
  std::string all;
  std::string buffer(piece, '\0');
  while (const int64_t count = stream.read(buffer)) all.append(buffer, 0, static_cast<size_t>(count));
  return all;
}

class ByteStreamTest : public testing::Test {
 protected:
  void expect_text(std::string_view file_name, std::string_view content, std::string_view text) {
    const auto path = folder_.write(file_name, content);
    for (const size_t piece : {size_t{1} << 20, size_t{65536}, size_t{999}}) {
      const auto stream = ByteStream::open(path);
      EXPECT_EQ(stream->bytes_consumed(), 0);
      EXPECT_TRUE(read_all(*stream, piece) == text) << file_name << ", pieces of " << piece;
      EXPECT_EQ(stream->bytes_consumed(), std::ssize(content));
      EXPECT_EQ(stream->size_bytes(), std::ssize(content));
    }
  }
  void expect_refusal(std::string_view file_name, std::string_view content, const std::string& problem) {
    const auto path = folder_.write(file_name, content);
    expect_error(ExitCode::kBadData, {path.native(), problem},
                 [&] { read_all(*ByteStream::open(path), 65536); });
  }

  TestFolder folder_{memory_folder()};
};

TEST_F(ByteStreamTest, ReadsFilesOfAnySizeWhateverTheirCompression) {
  for (const int64_t size : {0, 1, 3, 4, 5, 1000, 65536, 262144, 3'000'001}) {
    const std::string text = make_text(size, static_cast<unsigned>(size));
    expect_text("plain.txt", text, text);
    expect_text("text.gz", gzip(text), text);
    expect_text("text.zst", zstd(text), text);
  }
}

TEST_F(ByteStreamTest, ReadsPartsOneAfterAnother) {
  const std::string first = make_text(700'000, 1);
  const std::string second = make_text(300'000, 2);
  expect_text("parts.gz", gzip(first) + gzip("") + gzip(second), first + second);
  expect_text("parts.zst",
              skippable("index") + zstd(first) + skippable(std::string(300'000, 'x')) + zstd(second),
              first + second);
}

TEST_F(ByteStreamTest, RecognisesCompressionByContent) {
  expect_text("rows.jsonl", gzip("{}\n"), "{}\n");
  expect_text("rows.csv", zstd("a,b\n"), "a,b\n");
  expect_refusal("rows.jsonl.gz", "{\"text\": 1}", "expected gzip data, as its name says, found '{\"te'");
  expect_refusal("rows.ZST", "", "expected zstd data, as its name says, found ''");
}

TEST_F(ByteStreamTest, RefusesDataThatIsCutShort) {
  const std::string text = make_text(1'000'000, 3);
  for (std::string compressed : {gzip(text), zstd(text)}) {
    const bool is_gzip = compressed.starts_with('\x1f');
    for (const size_t left : {size_t{5}, size_t{20}, compressed.size() / 2, compressed.size() - 1})
      expect_refusal(
          "text", compressed.substr(0, left),
          fmt::format("byte {} of {}: the {} data is cut short", left, left, is_gzip ? "gzip" : "zstd"));
  }
}

TEST_F(ByteStreamTest, RefusesDamagedData) {
  const std::string text = make_text(1'000'000, 4);
  std::string compressed = gzip(text);
  compressed[compressed.size() - 6] ^= 1;  // in the checksum
  expect_refusal("text.gz", compressed, "the gzip data is damaged: incorrect data check");
  compressed = zstd(text);
  compressed[5] ^= 0xff;
  std::fill_n(compressed.begin() + 100, 1000, '\x7f');
  expect_refusal("text.zst", compressed, "the zstd data is damaged: ");
}

TEST_F(ByteStreamTest, RefusesWindowsThatTakeTooMuchMemory) {
  // A frame header of unknown content size with windows of 128 and 256 MiB, and a raw block.
  const auto frame = [](int window) {
    return std::string("\x28\xb5\x2f\xfd\0", 5) + static_cast<char>(window) + std::string("\x21\0\0text", 7);
  };
  expect_text("text.zst", frame(17 << 3), "text");
  expect_refusal("text.zst", frame(18 << 3), "the zstd data needs a window of more than 128 MiB");
}

TEST_F(ByteStreamTest, RefusesWhatFollowsCompressedData) {
  expect_refusal("text.gz", gzip("text") + "trailing", "the gzip data is followed by something else");
  expect_refusal("text.gz", gzip("text") + std::string(512, '\0'),
                 "the gzip data is followed by something else");
  expect_refusal("text.zst", zstd("text") + "trailing", "the zstd data is followed by something else");
}

}  // namespace
}  // namespace tessera
