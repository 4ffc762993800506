// Mutations of text formats for libFuzzer, from words and a seed in the target itself: no corpus or
// dictionary files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace tessera {

// One input in 64 starts again from `seed_text`; half of the others have a word put in or over what is there;
// the rest is left to libFuzzer.
inline size_t mutate_text(uint8_t* data, size_t size, size_t max_size, unsigned seed,
                          std::span<const char* const> words, std::string_view seed_text) {
  std::minstd_rand random(seed);
  const auto below = [&](size_t bound) { return static_cast<size_t>(random()) % bound; };
  if (size < 2 || below(64) == 0) {
    size = std::min(seed_text.size(), max_size);
    std::memcpy(data, seed_text.data(), size);
  }
  if (below(2) == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string text(reinterpret_cast<const char*>(data), size);
  const std::string_view word = words[below(words.size())];
  const size_t at = below(text.size() + 1);
  text.replace(at, below(2) == 0 ? 0 : std::min(word.size(), text.size() - at), word);
  size = std::min(text.size(), max_size);
  std::memcpy(data, text.data(), size);
  return size;
}

}  // namespace tessera
