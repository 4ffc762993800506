#include "data/cache/token_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

// Values are copied from memory as they are.
static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kPreambleMagic = "TSRAROWS";
constexpr std::string_view kTrailerMagic = "TSRAEND\n";
constexpr int64_t kMaxNarrowVocab = int64_t{1} << 16;

// Calls visit(name, value) for the values of the trailer in file order.
template <typename Trailer, typename Visitor>
void for_each_value(Trailer& trailer, Visitor visit) {
  visit("version", trailer.version);
  visit("key", trailer.key.low);
  visit("key", trailer.key.high);
  visit("records_hash", trailer.records_hash.low);
  visit("records_hash", trailer.records_hash.high);
  visit("index_hash", trailer.index_hash.low);
  visit("index_hash", trailer.index_hash.high);
  visit("vocab_size", trailer.vocab_size);
  visit("has_labels", trailer.has_labels);
  visit("records_bytes", trailer.records_bytes);
  visit("num_rows", trailer.num_rows);
  visit("num_tokens", trailer.num_tokens);
  visit("num_targets", trailer.num_targets);
  visit("max_row_length", trailer.max_row_length);
  for (const auto& [name, count] : kStoredCounts) visit(name, trailer.counts.*count);
}

std::array<std::byte, kCachePreambleBytes> make_preamble() {
  std::array<std::byte, kCachePreambleBytes> bytes = {};
  std::memcpy(bytes.data(), kPreambleMagic.data(), kPreambleMagic.size());
  std::memcpy(bytes.data() + kPreambleMagic.size(), &kTokenCacheVersion, sizeof(kTokenCacheVersion));
  return bytes;
}

void append_bytes(const void* data, size_t size_bytes, std::vector<std::byte>* out) {
  const auto* bytes = static_cast<const std::byte*>(data);
  out->insert(out->end(), bytes, bytes + size_bytes);
}

template <typename... Args>
[[noreturn]] void damaged(const std::string& origin, fmt::format_string<Args...> format, Args&&... args) {
  fail(ExitCode::kBadData, "{}: damaged token cache: {}", origin,
       fmt::format(format, std::forward<Args>(args)...));
}

// Bytes of a record per token: id and label.
uint64_t token_bytes(const CacheTrailer& trailer) {
  return static_cast<uint64_t>(cache_id_bytes(trailer.vocab_size)) +
         (trailer.with_labels() ? sizeof(int32_t) : 0);
}

void check_values(const CacheTrailer& trailer, int64_t file_bytes, const std::string& origin) {
  constexpr int64_t kMax32 = std::numeric_limits<int32_t>::max();
  for_each_value(trailer, [&](const char* name, const auto& value) {
    if constexpr (std::is_signed_v<std::decay_t<decltype(value)>>) {
      if (value < 0) damaged(origin, "{}: expected at least 0, found {}", name, value);
    }
  });
  if (trailer.version != kTokenCacheVersion) {
    damaged(origin, "version: expected {}, found {}", kTokenCacheVersion, trailer.version);
  }
  if (trailer.has_labels > 3) damaged(origin, "has_labels: expected 0 to 3, found {}", trailer.has_labels);
  if (trailer.vocab_size < 1 || trailer.vocab_size > kMax32)
    damaged(origin, "vocab_size: expected 1 to 2^31 - 1, found {}", trailer.vocab_size);
  if (trailer.num_rows < 1) damaged(origin, "num_rows: expected at least 1, found {}", trailer.num_rows);
  if (trailer.max_row_length < 1 || trailer.max_row_length > kMax32)
    damaged(origin, "max_row_length: expected 1 to 2^31 - 1, found {}", trailer.max_row_length);
  // Checked in this order, no sum or product below can overflow: each is bounded by the file size first.
  const int64_t content_bytes = file_bytes - kCachePreambleBytes - kCacheTrailerBytes;
  constexpr auto kEntryBytes = static_cast<int64_t>(sizeof(CacheIndexEntry));
  if (trailer.num_rows > content_bytes / kEntryBytes ||
      trailer.records_bytes != content_bytes - trailer.num_rows * kEntryBytes) {
    damaged(origin, "the file has {} between preamble and trailer, expected {} of {}",
            count_of(content_bytes, "byte"), count_of(trailer.records_bytes, "byte"),
            count_of(trailer.num_rows, "row"));
  }
  if (trailer.num_tokens > trailer.records_bytes / static_cast<int64_t>(token_bytes(trailer)))
    damaged(origin, "num_tokens: no room for {} in {}", trailer.num_tokens,
            count_of(trailer.records_bytes, "byte"));
}

}  // namespace

int64_t cache_id_bytes(int64_t vocab_size) { return vocab_size <= kMaxNarrowVocab ? 2 : 4; }

std::vector<std::byte> encode_cache_trailer(const CacheTrailer& trailer) {
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<size_t>(kCacheTrailerBytes));
  for_each_value(trailer, [&](const char*, const auto& value) {
    static_assert(sizeof(value) == sizeof(uint64_t));
    append_bytes(&value, sizeof(value), &bytes);
  });
  const uint64_t checksum = hash_bytes(bytes).low;
  append_bytes(&checksum, sizeof(checksum), &bytes);
  append_bytes(kTrailerMagic.data(), kTrailerMagic.size(), &bytes);
  TESSERA_CHECK(static_cast<int64_t>(bytes.size()) == kCacheTrailerBytes, "{} bytes", bytes.size());
  return bytes;
}

CacheTrailer parse_cache_trailer(std::span<const std::byte> preamble, std::span<const std::byte> trailer,
                                 int64_t file_bytes, const std::string& origin) {
  if (file_bytes < kCachePreambleBytes + kCacheTrailerBytes) {
    damaged(origin, "expected at least {} bytes, found {}", kCachePreambleBytes + kCacheTrailerBytes,
            file_bytes);
  }
  TESSERA_CHECK(static_cast<int64_t>(preamble.size()) == kCachePreambleBytes &&
                static_cast<int64_t>(trailer.size()) == kCacheTrailerBytes);
  if (std::memcmp(preamble.data(), kPreambleMagic.data(), kPreambleMagic.size()) != 0)
    damaged(origin, "it does not start like a token cache");
  const auto expected_preamble = make_preamble();
  if (!std::equal(preamble.begin(), preamble.end(), expected_preamble.begin()))
    damaged(origin, "version: expected {}", kTokenCacheVersion);
  const std::span<const std::byte> values = trailer.first(trailer.size() - 16);
  if (std::memcmp(trailer.data() + trailer.size() - 8, kTrailerMagic.data(), kTrailerMagic.size()) != 0)
    damaged(origin, "it does not end like a token cache: truncated");
  uint64_t checksum = 0;
  std::memcpy(&checksum, trailer.data() + values.size(), sizeof(checksum));
  if (checksum != hash_bytes(values).low) damaged(origin, "wrong checksum of the trailer");
  CacheTrailer result;
  const std::byte* at = values.data();
  for_each_value(result, [&](const char*, auto& value) {
    std::memcpy(&value, at, sizeof(value));
    at += sizeof(value);
  });
  check_values(result, file_bytes, origin);
  return result;
}

void check_cache_index(const CacheTrailer& trailer, std::span<const CacheIndexEntry> index,
                       const std::string& origin) {
  TESSERA_CHECK(static_cast<int64_t>(index.size()) == trailer.num_rows, "{} entries", index.size());
  const uint64_t records_end = static_cast<uint64_t>(kCachePreambleBytes + trailer.records_bytes);
  uint64_t num_tokens = 0;
  uint64_t num_targets = 0;
  uint32_t max_row_length = 0;
  uint64_t expected_offset = static_cast<uint64_t>(kCachePreambleBytes);
  for (size_t row = 0; row < index.size(); ++row) {
    const CacheIndexEntry& entry = index[row];
    const uint64_t end = row + 1 < index.size() ? index[row + 1].offset_bytes : records_end;
    if (entry.offset_bytes != expected_offset || end < entry.offset_bytes || end > records_end)
      damaged(origin, "row {}: offset {} is not where the previous row ends", row, entry.offset_bytes);
    const uint64_t size_bytes = end - entry.offset_bytes;
    const uint64_t ids_and_labels = entry.num_tokens * token_bytes(trailer);
    if (entry.num_tokens < 1 || ids_and_labels > size_bytes || (size_bytes - ids_and_labels) % 4 != 0 ||
        size_bytes - ids_and_labels > uint64_t{entry.num_tokens} * 4 || size_bytes - ids_and_labels == 4) {
      damaged(origin, "row {}: {} cannot take {}", row, count_of(entry.num_tokens, "token"),
              count_of(static_cast<int64_t>(size_bytes), "byte"));
    }
    if (entry.num_targets >= entry.num_tokens)
      damaged(origin, "row {}: {} in {}", row, count_of(entry.num_targets, "target"),
              count_of(entry.num_tokens, "token"));
    num_tokens += entry.num_tokens;
    num_targets += entry.num_targets;
    max_row_length = std::max(max_row_length, entry.num_tokens);
    expected_offset = end;
  }
  if (num_tokens != static_cast<uint64_t>(trailer.num_tokens) ||
      num_targets != static_cast<uint64_t>(trailer.num_targets) ||
      max_row_length != static_cast<uint64_t>(trailer.max_row_length)) {
    damaged(origin, "its rows do not add up to {} and {}, longest row {}",
            count_of(trailer.num_tokens, "token"), count_of(trailer.num_targets, "target"),
            trailer.max_row_length);
  }
}

int64_t count_targets(int64_t num_tokens, std::span<const int32_t> labels,
                      std::span<const int32_t> sequence_lengths) {
  const auto num_sequences = std::max<int64_t>(1, static_cast<int64_t>(sequence_lengths.size()));
  if (labels.empty()) return num_tokens - num_sequences;
  int64_t count =
      static_cast<int64_t>(labels.size()) - std::count(labels.begin(), labels.end(), kIgnoredLabel);
  // The first label of a sequence is never a target.
  int64_t first = 0;
  for (int64_t i = 0; i < num_sequences; ++i) {
    if (labels[static_cast<size_t>(first)] != kIgnoredLabel) --count;
    if (!sequence_lengths.empty()) first += sequence_lengths[static_cast<size_t>(i)];
  }
  return count;
}

bool is_masked(std::span<const int32_t> labels) {
  return std::all_of(labels.begin(), labels.end(), [](int32_t label) { return label == kIgnoredLabel; });
}

TokenCacheWriter::TokenCacheWriter(const std::filesystem::path& path, const Hash128& key, int64_t vocab_size,
                                   bool has_labels)
    : file_(path) {
  trailer_.key = key;
  trailer_.vocab_size = vocab_size;
  trailer_.has_labels = has_labels ? 1 : 0;
  chunk_.reserve(static_cast<size_t>(kHashChunkBytes));
  file_.write(make_preamble());
}

void TokenCacheWriter::flush_chunk() {
  if (chunk_.empty()) return;
  chunk_hashes_.push_back(hash_bytes(chunk_));
  file_.write(chunk_);
  chunk_.clear();
}

void TokenCacheWriter::put(const void* data, size_t size_bytes) {
  trailer_.records_bytes += static_cast<int64_t>(size_bytes);
  const auto* bytes = static_cast<const std::byte*>(data);
  while (size_bytes > 0) {
    const size_t part = std::min(size_bytes, static_cast<size_t>(kHashChunkBytes) - chunk_.size());
    append_bytes(bytes, part, &chunk_);
    bytes += part;
    size_bytes -= part;
    if (static_cast<int64_t>(chunk_.size()) == kHashChunkBytes) flush_chunk();
  }
}

void TokenCacheWriter::append_row(std::span<const int32_t> ids, std::span<const int32_t> labels,
                                  std::span<const int32_t> sequence_lengths) {
  TESSERA_CHECK(!ids.empty() && labels.size() == (trailer_.with_labels() ? ids.size() : 0),
                "{} ids, {} labels", ids.size(), labels.size());
  const auto length = static_cast<int64_t>(ids.size());
  const int64_t num_targets = count_targets(length, labels, sequence_lengths);
  index_.push_back({static_cast<uint64_t>(kCachePreambleBytes + trailer_.records_bytes),
                    static_cast<uint32_t>(length), static_cast<uint32_t>(num_targets)});
  if (cache_id_bytes(trailer_.vocab_size) == 2) {
    narrow_ids_.assign(ids.begin(), ids.end());
    put(narrow_ids_.data(), narrow_ids_.size() * sizeof(uint16_t));
  } else {
    put(ids.data(), ids.size_bytes());
  }
  put(labels.data(), labels.size_bytes());
  if (sequence_lengths.size() > 1) put(sequence_lengths.data(), sequence_lengths.size_bytes());
  ++trailer_.num_rows;
  trailer_.num_tokens += length;
  trailer_.num_targets += num_targets;
  trailer_.max_row_length = std::max(trailer_.max_row_length, length);
}

void TokenCacheWriter::commit(const DocumentCounts& counts) {
  flush_chunk();
  const std::span<const std::byte> index_bytes = std::as_bytes(std::span(index_));
  trailer_.counts = counts;
  if (counts.num_empty_texts > 0) trailer_.has_labels |= CacheTrailer::kHasEmptyTexts;
  trailer_.records_hash = hash_hashes(chunk_hashes_);
  trailer_.index_hash = hash_bytes(index_bytes);
  file_.write(index_bytes);
  file_.write(encode_cache_trailer(trailer_));
  file_.commit();
}

TokenCache TokenCache::open(const std::filesystem::path& path, const Hash128& key, ThreadPool* pool) {
  TokenCache cache;
  cache.file_ = InputFile::open(path);
  const std::string origin = path.string();
  const int64_t file_bytes = cache.file_.size_bytes();
  std::array<std::byte, kCachePreambleBytes> preamble = {};
  std::array<std::byte, kCacheTrailerBytes> trailer = {};
  if (file_bytes >= kCachePreambleBytes + kCacheTrailerBytes) {
    cache.file_.read_at(0, preamble);
    cache.file_.read_at(file_bytes - kCacheTrailerBytes, trailer);
  }
  cache.trailer_ = parse_cache_trailer(preamble, trailer, file_bytes, origin);
  if (cache.trailer_.key != key)
    damaged(origin, "key: expected {}, found {}", key.hex(), cache.trailer_.key.hex());
  cache.index_.resize(static_cast<size_t>(cache.trailer_.num_rows));
  const int64_t records_end = kCachePreambleBytes + cache.trailer_.records_bytes;
  cache.file_.read_at(records_end, std::as_writable_bytes(std::span(cache.index_)));
  if (hash_bytes(std::as_bytes(std::span(cache.index_))) != cache.trailer_.index_hash)
    damaged(origin, "wrong checksum of the index");
  check_cache_index(cache.trailer_, cache.index_, origin);
  if (pool != nullptr) {
    const FileRange records = {path, kCachePreambleBytes, records_end};
    if (hash_file_ranges({&records, 1}, *pool).front() != cache.trailer_.records_hash)
      damaged(origin, "wrong checksum of the rows");
  }
  return cache;
}

const CacheIndexEntry& TokenCache::entry(int64_t row) const {
  TESSERA_CHECK(0 <= row && row < trailer_.num_rows, "row {} of {}", row, trailer_.num_rows);
  return index_[static_cast<size_t>(row)];
}

void TokenCache::read_row(int64_t row, std::vector<int32_t>* ids, std::vector<int32_t>* labels,
                          std::vector<int32_t>* sequence_lengths) const {
  const CacheIndexEntry& place = entry(row);
  const auto begin = static_cast<int64_t>(place.offset_bytes);
  const int64_t end = row + 1 < trailer_.num_rows ? static_cast<int64_t>(entry(row + 1).offset_bytes)
                                                  : kCachePreambleBytes + trailer_.records_bytes;
  thread_local std::vector<std::byte> record;  // keeps its memory from row to row
  record.resize(static_cast<size_t>(end - begin));
  file_.read_at(begin, record);
  const size_t length = place.num_tokens;
  const std::byte* at = record.data();
  const auto take = [&at](size_t count, std::vector<int32_t>* out) {
    out->resize(count);
    if (count > 0) std::memcpy(out->data(), at, count * sizeof(int32_t));
    at += count * sizeof(int32_t);
  };
  if (cache_id_bytes(trailer_.vocab_size) == 2) {
    ids->resize(length);
    for (size_t i = 0; i < length; ++i, at += sizeof(uint16_t)) {
      uint16_t id;
      std::memcpy(&id, at, sizeof(id));
      (*ids)[i] = id;
    }
  } else {
    take(length, ids);
  }
  take(trailer_.with_labels() ? length : 0, labels);
  take(static_cast<size_t>(record.data() + record.size() - at) / sizeof(int32_t), sequence_lengths);
  if (sequence_lengths->empty()) sequence_lengths->push_back(static_cast<int32_t>(length));

  const auto vocab_size = static_cast<int32_t>(trailer_.vocab_size);
  const auto is_id = [&](int32_t id) { return 0 <= id && id < vocab_size; };
  const auto is_label = [&](int32_t label) { return label == kIgnoredLabel || is_id(label); };
  const auto is_length = [&](int32_t n) { return 1 <= n && n <= static_cast<int32_t>(length); };
  if (!std::all_of(ids->begin(), ids->end(), is_id) ||
      !std::all_of(labels->begin(), labels->end(), is_label) ||
      !std::all_of(sequence_lengths->begin(), sequence_lengths->end(), is_length) ||
      std::accumulate(sequence_lengths->begin(), sequence_lengths->end(), int64_t{0}) !=
          static_cast<int64_t>(length)) {
    fail(ExitCode::kBadData, "{}: row {}: the token cache was changed while in use: start the run again",
         file_.path().string(), row);
  }
}

}  // namespace tessera
