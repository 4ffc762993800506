// A file read once from its beginning, decompressed on the way.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace tessera {

class ByteStream {
 public:
  // Reads gzip (concatenated members) and zstd (concatenated and skippable frames) decompressed, recognised
  // by their first bytes whatever the file is called, and any other file as it is. Memory is bounded: zstd
  // windows of up to 128 MiB. Errors are those of InputFile; kBadData if a file called .gz or .zst is not,
  // and, from read(), if compressed data is damaged, cut short or followed by something else.
  static std::unique_ptr<ByteStream> open(const std::filesystem::path& path);
  virtual ~ByteStream() = default;

  // Reads up to destination.size() bytes and returns how many; 0 only at the end.
  virtual int64_t read(std::span<char> destination) = 0;
  // Bytes of the file, not of what they decompress to: for progress.
  virtual int64_t bytes_consumed() const = 0;
  virtual int64_t size_bytes() const = 0;
  // The path, for messages.
  virtual const std::string& name() const = 0;
};

}  // namespace tessera
