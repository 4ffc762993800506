// Caches the ids of recent words: text repeats its words, and a lookup costs a tenth of the merges.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/memory.h"

namespace tessera {

// Fixed memory (2 MiB, about a core's L2 cache): two-way sets, the older entry is replaced. Not thread-safe.
class WordCache {
 public:
  static constexpr int64_t kMaxWordBytes = 31;
  static constexpr int64_t kMaxIds = 7;

  // The word's bytes, zero-padded, with its length in the last byte: equal keys mean equal words.
  using Key = std::array<uint64_t, 4>;

  struct alignas(64) Entry {
    Key key;
    uint32_t num_ids;
    std::array<int32_t, kMaxIds> ids;
  };
  static_assert(sizeof(Entry) == 64);

  // `word` has 1 to kMaxWordBytes bytes; `readable_bytes` bytes from its start may be read (the rest of the
  // text).
  static Key make_key(std::string_view word, int64_t readable_bytes) {
    Key key{};
    const size_t size = word.size();
    if (readable_bytes >= 32) {
      std::memcpy(key.data(), word.data(), 32);
      for (size_t i = 0; i < key.size(); ++i) {
        const size_t begin = i * 8;
        key[i] &= size >= begin + 8 ? ~uint64_t{0}
                  : size <= begin   ? 0
                                    : ~uint64_t{0} >> (64 - 8 * (size - begin));
      }
    } else {
      std::memcpy(key.data(), word.data(), size);
    }
    key[3] |= static_cast<uint64_t>(size) << 56;
    return key;
  }

  // nullptr if the word is not cached.
  const Entry* find(const Key& key) const {
    const Entry* set = set_of(key);
    if (set[0].key == key) return &set[0];
    if (set[1].key == key) return &set[1];
    return nullptr;
  }

  void insert(const Key& key, std::span<const int32_t> ids) {
    if (ids.size() > static_cast<size_t>(kMaxIds)) return;
    Entry* set = set_of(key);
    set[1] = set[0];
    set[0].key = key;
    set[0].num_ids = static_cast<uint32_t>(ids.size());
    std::memcpy(set[0].ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  static constexpr int kSetBits = 14;

  Entry* set_of(const Key& key) const {
    // Odd multipliers from the digits of the golden ratio, e and pi; the high bits of the product are well
    // mixed.
    uint64_t hash = key[0] * 0x9E3779B97F4A7C15u + key[1] * 0xB7E151628AED2A6Bu +
                    key[2] * 0x243F6A8885A308D3u + key[3] * 0xC2B2AE3D27D4EB4Fu;
    hash ^= hash >> 32;
    hash *= 0x9E3779B97F4A7C15u;
    return entries_.as<Entry>().data() + 2 * (hash >> (64 - kSetBits));
  }

  PageBuffer entries_{int64_t{2} * sizeof(Entry) << kSetBits};
};

}  // namespace tessera
