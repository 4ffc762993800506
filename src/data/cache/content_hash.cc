#include "data/cache/content_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "io/file.h"

namespace tessera {

std::string Hash128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Hash128 hash_bytes(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

Hash128 hash_text(std::string_view text) { return hash_bytes(std::as_bytes(std::span(text))); }

Hash128 hash_hashes(std::span<const Hash128> hashes) { return hash_bytes(std::as_bytes(hashes)); }

std::vector<Hash128> hash_file_ranges(std::span<const FileRange> ranges, ThreadPool& pool) {
  struct Chunk {
    size_t range;
    int64_t begin_bytes;
    int64_t size_bytes;
  };
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (int64_t begin = ranges[i].begin_bytes; begin < ranges[i].end_bytes; begin += kHashChunkBytes) {
      chunks.push_back({i, begin, std::min(kHashChunkBytes, ranges[i].end_bytes - begin)});
    }
  }
  std::vector<Hash128> chunk_hashes(chunks.size());
  std::vector<std::vector<std::byte>> buffers(static_cast<size_t>(pool.num_threads()));
  pool.parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t index) {
    const Chunk& chunk = chunks[static_cast<size_t>(index)];
    std::vector<std::byte>& buffer = buffers[static_cast<size_t>(ThreadPool::thread_index())];
    buffer.resize(static_cast<size_t>(chunk.size_bytes));
    InputFile::open(ranges[chunk.range].file).read_at(chunk.begin_bytes, buffer);
    chunk_hashes[static_cast<size_t>(index)] = hash_bytes(buffer);
  });
  std::vector<Hash128> hashes(ranges.size());
  size_t begin = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    size_t end = begin;
    while (end < chunks.size() && chunks[end].range == i) ++end;
    hashes[i] = hash_hashes(std::span(chunk_hashes).subspan(begin, end - begin));
    begin = end;
  }
  return hashes;
}

}  // namespace tessera
