// What fuzz targets share: mutations for libFuzzer that start from inputs which the target itself makes, so
// that there are no corpus or dictionary files, and what a refusal must look like.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace tessera {

// One line of UTF-8 under that code.
inline void check_refusal(const Error& error, ExitCode code) {
  const std::string_view message = error.what();
  if (error.code() == code && is_valid_utf8(message) && message.find('\n') == std::string_view::npos) return;
  std::fprintf(stderr, "exit code %d: %s\n", static_cast<int>(error.code()), error.what());
  std::abort();
}

// One input in 64 starts again from one of `seeds`; the rest is left to libFuzzer.
inline size_t mutate_bytes(uint8_t* data, size_t size, size_t max_size, unsigned seed,
                           std::span<const std::string> seeds) {
  std::minstd_rand random(seed);
  if (size < 2 || random() % 64 == 0) {
    const std::string& start = seeds[random() % seeds.size()];
    size = std::min(start.size(), max_size);
    std::memcpy(data, start.data(), size);
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

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
