#include "io/byte_stream.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr int64_t kInputBytes = int64_t{256} << 10;

class FileStream : public ByteStream {
 public:
  explicit FileStream(InputFile file) : file_(std::move(file)) {}

  int64_t read(std::span<char> destination) override {
    const int64_t count = std::min(std::ssize(destination), size_bytes() - at_);
    file_.read_at(at_, std::as_writable_bytes(destination.first(static_cast<size_t>(count))));
    at_ += count;
    return count;
  }
  int64_t bytes_consumed() const override { return at_; }
  int64_t size_bytes() const override { return file_.size_bytes(); }
  const std::string& name() const override { return file_.path().native(); }

 private:
  InputFile file_;
  int64_t at_ = 0;
};

// The part that both decompressors share: the input, and its end.
class DecompressedStream : public ByteStream {
 public:
  DecompressedStream(InputFile file, const char* format)
      : source_(std::move(file)), format_(format), buffer_(kInputBytes, '\0') {}

  int64_t read(std::span<char> destination) override {
    if (destination.empty()) return 0;
    for (;;) {
      // A full destination may have left output in the decompressor.
      if (input_.empty() && (is_between_parts_ || !is_full_)) {
        input_ = std::string_view(buffer_).substr(0, static_cast<size_t>(source_.read(buffer_)));
        if (input_.empty() && is_between_parts_) return 0;
        if (input_.empty()) fail_here("is cut short: expected more data");
      }
      const int64_t count = decompress(destination);
      is_full_ = count == std::ssize(destination);
      if (count > 0) return count;
    }
  }
  int64_t bytes_consumed() const override { return source_.bytes_consumed() - std::ssize(input_); }
  int64_t size_bytes() const override { return source_.size_bytes(); }
  const std::string& name() const override { return source_.name(); }

 protected:
  // Takes bytes from input_ and writes to the destination; returns how many it wrote. Sets is_between_parts_.
  virtual int64_t decompress(std::span<char> destination) = 0;

  [[noreturn]] void fail_damaged(const char* reason, bool is_at_start) const {
    if (is_at_start) fail_here("is followed by something else");
    fail_here(fmt::format("is damaged: {}", reason));
  }
  [[noreturn]] void fail_here(std::string_view problem) const {
    fail(ExitCode::kBadData, "{}: byte {} of {}: the {} data {}", name(), bytes_consumed(), size_bytes(),
         format_, problem);
  }

  std::string_view input_;
  bool is_between_parts_ = false;  // at the end of a member or frame: the file may end here

 private:
  FileStream source_;
  const char* format_;
  std::string buffer_;
  bool is_full_ = false;
};

class GzipStream : public DecompressedStream {
 public:
  explicit GzipStream(InputFile file) : DecompressedStream(std::move(file), "gzip") {
    // 16: a gzip header.
    if (inflateInit2(&inflate_, MAX_WBITS + 16) != Z_OK) fail_here("cannot be read: zlib has no memory");
  }
  ~GzipStream() override { inflateEnd(&inflate_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

 protected:
  int64_t decompress(std::span<char> destination) override {
    const bool is_at_start = is_between_parts_;
    if (is_at_start) inflateReset(&inflate_);
    inflate_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input_.data()));
    inflate_.avail_in = static_cast<uInt>(input_.size());
    inflate_.next_out = reinterpret_cast<Bytef*>(destination.data());
    const size_t room = std::min(destination.size(), kMaxTransferBytes);
    inflate_.avail_out = static_cast<uInt>(room);
    const int status = inflate(&inflate_, Z_NO_FLUSH);
    input_.remove_prefix(input_.size() - inflate_.avail_in);
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
      fail_damaged(inflate_.msg != nullptr ? inflate_.msg : "not deflate", is_at_start);
    is_between_parts_ = status == Z_STREAM_END;
    return static_cast<int64_t>(room - inflate_.avail_out);
  }

 private:
  z_stream inflate_ = {};
};

class ZstdStream : public DecompressedStream {
 public:
  explicit ZstdStream(InputFile file)
      : DecompressedStream(std::move(file), "zstd"), context_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
    if (context_ == nullptr) fail_here("cannot be read: libzstd has no memory");
  }

 protected:
  int64_t decompress(std::span<char> destination) override {
    ZSTD_inBuffer in = {input_.data(), input_.size(), 0};
    ZSTD_outBuffer out = {destination.data(), destination.size(), 0};
    const size_t status = ZSTD_decompressStream(context_.get(), &out, &in);
    input_.remove_prefix(in.pos);
    if (ZSTD_getErrorCode(status) == ZSTD_error_frameParameter_windowTooLarge) {
      fail_here(
          "needs a window of more than 128 MiB, as that of zstd --long=31 does: compress it again with a "
          "smaller one (zstd -dc --long=31 FILE | zstd -o OTHER.zst)");
    }
    if (ZSTD_isError(status) != 0) fail_damaged(ZSTD_getErrorName(status), is_between_parts_);
    is_between_parts_ = status == 0;
    return static_cast<int64_t>(out.pos);
  }

 private:
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context_;
};

bool is_gzip(std::string_view head) { return head.starts_with("\x1f\x8b"); }

// A frame or a skippable frame.
bool is_zstd(std::string_view head) {
  return head.starts_with("\x28\xb5\x2f\xfd") ||
         (head.size() == 4 && (head[0] & 0xf0) == 0x50 && head.substr(1) == "\x2a\x4d\x18");
}

}  // namespace

std::unique_ptr<ByteStream> ByteStream::open(const std::filesystem::path& path) {
  InputFile file = InputFile::open(path);
  std::string head(static_cast<size_t>(std::min<int64_t>(4, file.size_bytes())), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  if (is_gzip(head)) return std::make_unique<GzipStream>(std::move(file));
  if (is_zstd(head)) return std::make_unique<ZstdStream>(std::move(file));
  const std::string extension = lower_case(path.extension().native());
  if (extension == ".gz" || extension == ".zst")
    fail(ExitCode::kBadData,
         "{}: expected {} data, as its name says, found '{}': rename it if it is not compressed",
         path.native(), extension == ".gz" ? "gzip" : "zstd", printable(head));
  return std::make_unique<FileStream>(std::move(file));
}

}  // namespace tessera
