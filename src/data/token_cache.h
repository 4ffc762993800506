// The cache file of a dataset: its rows as token ids, ready to be read in place.
//
//   preamble   magic "TSRAROWS", u32 format version, u32 zero
//   records    one per row: ids (u16 when vocab_size <= 65536, else u32), labels (i32, only when the file has
//              labels), sequence lengths (u32, only when the row has more than one sequence)
//   index      16 bytes per row: u64 offset of the record in the file, u32 tokens, u32 targets
//   trailer    u64 values of CacheTrailer in order, u64 XXH3 of the trailer so far, magic "TSRAEND\n"
//
// Everything little-endian. A file appears under its name only when it is complete, and is never changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/content_hash.h"
#include "formats/file.h"
#include "platform/thread_pool.h"

namespace tessera {

inline constexpr uint32_t kTokenCacheVersion = 1;

// Counts of what was met while the rows were made.
struct CacheCounts {
  int64_t num_documents = 0;
  int64_t num_empty_documents = 0;
  int64_t num_invalid_documents = 0;
  int64_t num_cut_documents = 0;
  int64_t num_cut_tokens = 0;
};

struct CacheTrailer {
  uint64_t version = kTokenCacheVersion;
  Hash128 key;
  Hash128 records_hash;  // hash_hashes of the hashes of its chunks of kHashChunkBytes
  Hash128 index_hash;
  int64_t vocab_size = 0;
  int64_t has_labels = 0;  // 0 or 1
  int64_t records_bytes = 0;
  int64_t num_rows = 0;
  int64_t num_tokens = 0;
  int64_t num_targets = 0;
  int64_t max_row_length = 0;
  CacheCounts counts;
  uint64_t reserved = 0;
};

inline constexpr int64_t kCachePreambleBytes = 16;
inline constexpr int64_t kCacheTrailerBytes = 22 * 8;  // 20 values, checksum, magic

struct CacheIndexEntry {
  uint64_t offset_bytes;
  uint32_t num_tokens;
  uint32_t num_targets;
};
static_assert(sizeof(CacheIndexEntry) == 16);

int64_t cache_id_bytes(int64_t vocab_size);  // 2 or 4

std::vector<std::byte> encode_cache_trailer(const CacheTrailer& trailer);

// The trailer of a file of `file_bytes` bytes, every value checked against the others and the file's size.
// `preamble` and `trailer` are the file's first and last bytes. Error(kBadData) naming `origin` and the
// value.
CacheTrailer parse_cache_trailer(std::span<const std::byte> preamble, std::span<const std::byte> trailer,
                                 int64_t file_bytes, const std::string& origin);

// Checks the index against the trailer: every record in its place and of a possible size, totals agree.
// Error(kBadData).
void check_cache_index(const CacheTrailer& trailer, std::span<const CacheIndexEntry> index,
                       const std::string& origin);

// Labels of a row that are targets: in every sequence those behind its first token that are not
// kIgnoredLabel. Empty labels stand for ids (all count); empty sequence_lengths for one sequence.
int64_t count_targets(int64_t num_tokens, std::span<const int32_t> labels,
                      std::span<const int32_t> sequence_lengths);

// Writes a cache file, row by row. Holds 16 bytes per row and one chunk. Errors: kIoError.
class TokenCacheWriter {
 public:
  TokenCacheWriter(const std::filesystem::path& path, const Hash128& key, int64_t vocab_size,
                   bool has_labels);

  // ids: at least 1, in [0, vocab_size). labels: as many, only and always when has_labels. sequence_lengths:
  // with the sum of ids.size(), or empty for a row of one sequence.
  void append_row(std::span<const int32_t> ids, std::span<const int32_t> labels,
                  std::span<const int32_t> sequence_lengths);
  int64_t num_rows() const { return trailer_.num_rows; }
  int64_t num_targets() const { return trailer_.num_targets; }
  void commit(const CacheCounts& counts);

 private:
  void put(const void* data, size_t size_bytes);
  void flush_chunk();

  AtomicFile file_;
  CacheTrailer trailer_;
  std::vector<CacheIndexEntry> index_;
  std::vector<std::byte> chunk_;
  std::vector<Hash128> chunk_hashes_;
  std::vector<uint16_t> narrow_ids_;
};

// An open cache file. Safe from several threads.
class TokenCache {
 public:
  // Opens a file and checks all of it but, unless `pool` is given, the content of the records.
  // Error(kBadData) when it is damaged or has another key, kNoInput or kIoError when it cannot be read.
  static TokenCache open(const std::filesystem::path& path, const Hash128& key, ThreadPool* pool);

  const CacheTrailer& trailer() const { return trailer_; }
  const CacheIndexEntry& entry(int64_t row) const;
  // Replaces the vectors' content; labels are empty when the file has none. Ids, labels and lengths are
  // checked again, so that a file changed by another program cannot lead out of range.
  void read_row(int64_t row, std::vector<int32_t>* ids, std::vector<int32_t>* labels,
                std::vector<int32_t>* sequence_lengths) const;

 private:
  InputFile file_;
  CacheTrailer trailer_;
  std::vector<CacheIndexEntry> index_;
};

}  // namespace tessera
