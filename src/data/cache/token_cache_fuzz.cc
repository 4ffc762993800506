// Opening a token cache and reading its rows must give rows within the vocabulary or Error(kBadData) for any
// bytes. The input is a file; if the first byte is odd, its magic numbers and checksums are repaired first,
// so that the checks after them are reached.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/cache/token_cache.h"
#include "io/file.h"
#include "support/fuzz_support.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

using Bytes = std::vector<std::byte>;

constexpr auto kPreamble = static_cast<size_t>(kCachePreambleBytes);
constexpr auto kTrailer = static_cast<size_t>(kCacheTrailerBytes);
// Offsets of values in the trailer.
constexpr size_t kVersionAt = 0;
constexpr size_t kRecordsHashAt = 24;
constexpr size_t kIndexHashAt = 40;
constexpr size_t kNumRowsAt = 80;
constexpr size_t kChecksumAt = 160;

uint64_t value_at(const Bytes& file, size_t at) {
  uint64_t value;
  std::memcpy(&value, file.data() + at, sizeof(value));
  return value;
}

void repair(Bytes* file) {
  if (file->size() < kPreamble + kTrailer) return;
  std::memcpy(file->data(), "TSRAROWS\x02\0\0\0\0\0\0\0", kPreamble);
  const size_t trailer = file->size() - kTrailer;
  const size_t content_bytes = trailer - kPreamble;
  const uint64_t num_rows = value_at(*file, trailer + kNumRowsAt);
  if (num_rows > content_bytes / sizeof(CacheIndexEntry)) return;
  const size_t index = trailer - num_rows * sizeof(CacheIndexEntry);
  const std::span<const std::byte> all = *file;
  const Hash128 index_hash = hash_bytes(all.subspan(index, trailer - index));
  std::vector<Hash128> chunks;
  for (size_t begin = kPreamble; begin < index; begin += static_cast<size_t>(kHashChunkBytes)) {
    chunks.push_back(
        hash_bytes(all.subspan(begin, std::min(index - begin, static_cast<size_t>(kHashChunkBytes)))));
  }
  const Hash128 records_hash = hash_hashes(chunks);
  const uint64_t version = kTokenCacheVersion;
  std::byte* const values = file->data() + trailer;
  std::memcpy(values + kVersionAt, &version, sizeof(version));
  std::memcpy(values + kRecordsHashAt, &records_hash, sizeof(records_hash));
  std::memcpy(values + kIndexHashAt, &index_hash, sizeof(index_hash));
  const uint64_t checksum = hash_bytes({values, kChecksumAt}).low;
  std::memcpy(values + kChecksumAt, &checksum, sizeof(checksum));
  std::memcpy(values + kChecksumAt + sizeof(checksum), "TSRAEND\n", 8);
}

// A file with two rows, preceded by a first byte that has it repaired.
std::string make_seed(int64_t vocab_size, bool has_labels) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("tessera-fuzz-{}", ::getpid());
  {
    TokenCacheWriter writer(path, {1, 2}, vocab_size, has_labels);
    const std::array<int32_t, 5> ids = {0, 3, 1, 9, 2}, labels = {0, 3, -100, 9, 2};
    const std::array<int32_t, 2> lengths = {2, 3};
    const auto labels_of = [&](size_t count) { return std::span(labels).first(has_labels ? count : 0); };
    writer.append_row(ids, labels_of(5), lengths);
    writer.append_row(std::span(ids).first(1), labels_of(1), {});
    writer.commit({});
  }
  const std::string file = read_text_file(path);
  std::filesystem::remove(path);
  return "\x01" + file;
}

std::vector<std::string> seeds() {
  return {make_seed(10, false), make_seed(10, true), make_seed(100'000, false)};
}

void read_all_rows(const TokenCache& cache) {
  const CacheTrailer& trailer = cache.trailer();
  std::vector<int32_t> ids, labels, lengths;
  int64_t num_tokens = 0;
  for (int64_t row = 0; row < trailer.num_rows; ++row) {
    try {
      cache.read_row(row, &ids, &labels, &lengths);
    } catch (const Error& error) {
      check_refusal(error, ExitCode::kBadData);
      ids.resize(cache.entry(row).num_tokens);
    }
    num_tokens += static_cast<int64_t>(ids.size());
  }
  TESSERA_CHECK(num_tokens == trailer.num_tokens);
}

void check(std::string_view input) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(input));
  Bytes file(bytes.begin() + 1, bytes.end());
  if (input[0] % 2 == 1) repair(&file);
  static const int fd = ::memfd_create("cache", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  static ThreadPool pool(1);
  TESSERA_CHECK(fd >= 0 && ::ftruncate(fd, 0) == 0 &&
                ::pwrite(fd, file.data(), file.size(), 0) == static_cast<ssize_t>(file.size()));
  Hash128 key;
  if (file.size() >= kPreamble + kTrailer)
    std::memcpy(&key, file.data() + file.size() - kTrailer + 8, sizeof(key));
  read_all_rows(TokenCache::open(path, key, &pool));
}

}  // namespace
}  // namespace tessera

TESSERA_FUZZ("", tessera::seeds(), tessera::check, tessera::ExitCode::kBadData)
