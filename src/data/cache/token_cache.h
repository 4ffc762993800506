// The cache file of a dataset: its rows as token ids, ready to be read in place.
//
//   preamble   magic "TSRAROWS", u32 format version, u32 zero
//   records    one per row: ids (u16 when vocab_size <= 65536, else u32), labels (i32, only when the file has
//              labels), sequence lengths (u32, only when the row has more than one sequence)
//   index      16 bytes per row: u64 offset of the record in the file, u32 tokens, u32 targets
//   trailer    u64 values of CacheTrailer in order, u64 XXH3 of the trailer so far, magic "TSRAEND\n"
//
// Everything is little-endian. A file appears under its name only once it is complete, and never changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/cache/content_hash.h"
#include "data/cache/document_counts.h"
#include "io/file.h"
#include "platform/thread_pool.h"

namespace tessera {

inline constexpr uint32_t kTokenCacheVersion = 3;

struct CacheTrailer {
  uint64_t version = kTokenCacheVersion;
  Hash128 key;
  Hash128 records_hash;  // hash_hashes of the hashes of its chunks of kHashChunkBytes
  Hash128 index_hash;
  int64_t vocab_size = 0;
  int64_t has_labels = 0;  // 0 or 1, and kHasEmptyTexts
  int64_t records_bytes = 0;
  int64_t num_rows = 0;
  int64_t num_tokens = 0;
  int64_t num_targets = 0;
  int64_t max_row_length = 0;
  DocumentCounts counts;

  // Rows of the end-of-text token alone, of an empty text.
  static constexpr int64_t kHasEmptyTexts = 2;
  bool with_labels() const { return (has_labels & 1) != 0; }
  bool has_empty_texts() const { return (has_labels & kHasEmptyTexts) != 0; }
};

inline constexpr int64_t kCachePreambleBytes = 16;
inline constexpr int64_t kCacheTrailerBytes = 23 * 8;  // 21 values, checksum, magic

struct CacheIndexEntry {
  uint64_t offset_bytes;
  uint32_t num_tokens;
  uint32_t num_targets;
};
static_assert(sizeof(CacheIndexEntry) == 16);

int64_t cache_id_bytes(int64_t vocab_size);  // 2 or 4

std::vector<std::byte> encode_cache_trailer(const CacheTrailer& trailer);

// Parses the trailer of a file of `file_bytes` bytes and checks every value against the others and the file
// size. `preamble` and `trailer` are the file's first and last bytes. Error(kBadData) naming `origin` and the
// value.
CacheTrailer parse_cache_trailer(std::span<const std::byte> preamble, std::span<const std::byte> trailer,
                                 int64_t file_bytes, const std::string& origin);

// Checks the index against the trailer: every record is where it should be and has a possible size, and the
// totals agree. Error(kBadData).
void check_cache_index(const CacheTrailer& trailer, std::span<const CacheIndexEntry> index,
                       const std::string& origin);

// Labels of a row that are targets: in every sequence those after its first token that are not kIgnoredLabel.
// Empty labels mean the ids (all count), empty sequence_lengths a single sequence.
int64_t count_targets(int64_t num_tokens, std::span<const int32_t> labels,
                      std::span<const int32_t> sequence_lengths);

// Whether all labels are kIgnoredLabel, the first one of the row included.
bool is_masked(std::span<const int32_t> labels);

// Writes a cache file, row by row. Holds 16 bytes per row and one chunk. Errors: kIoError.
class TokenCacheWriter {
 public:
  TokenCacheWriter(const std::filesystem::path& path, const Hash128& key, int64_t vocab_size,
                   bool has_labels);

  // ids: at least 1, in [0, vocab_size). labels: as many as ids if has_labels, otherwise empty.
  // sequence_lengths: adding up to ids.size(), or empty for a single sequence.
  void append_row(std::span<const int32_t> ids, std::span<const int32_t> labels,
                  std::span<const int32_t> sequence_lengths);
  bool has_labels() const { return trailer_.with_labels(); }
  int64_t num_rows() const { return trailer_.num_rows; }
  int64_t num_targets() const { return trailer_.num_targets; }
  void commit(const DocumentCounts& counts);

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

// An open cache file. Thread-safe.
class TokenCache {
 public:
  // Opens a file and checks it; verifies the records' checksums only if `pool` is given. Error(kBadData) if
  // it is damaged or has a different key, kNoInput or kIoError if it cannot be read.
  static TokenCache open(const std::filesystem::path& path, const Hash128& key, ThreadPool* pool);

  const CacheTrailer& trailer() const { return trailer_; }
  const CacheIndexEntry& entry(int64_t row) const;
  // Overwrites the vectors; labels are empty if the file has none. Ids, labels and lengths are checked again,
  // so that a file modified by another program cannot cause out-of-range accesses.
  void read_row(int64_t row, std::vector<int32_t>* ids, std::vector<int32_t>* labels,
                std::vector<int32_t>* sequence_lengths) const;

 private:
  InputFile file_;
  CacheTrailer trailer_;
  std::vector<CacheIndexEntry> index_;
};

}  // namespace tessera
