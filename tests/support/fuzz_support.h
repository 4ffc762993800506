// The harness of the fuzz targets: TESSERA_FUZZ is all that a target needs of libFuzzer. Mutations start from
// inputs that the target makes itself, so that no corpus or dictionary files are needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace tessera {

// A refusal is one line of valid UTF-8 with exit code `code`.
inline void check_refusal(const Error& error, ExitCode code) {
  const std::string_view message = error.what();
  if (error.code() == code && is_valid_utf8(message) && message.find('\n') == std::string_view::npos) return;
  std::fprintf(stderr, "exit code %d: %s\n", static_cast<int>(error.code()), error.what());
  std::abort();
}

// One input in 64 restarts from one of `seeds`; libFuzzer mutates the rest.
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

// One input in 64 restarts from `seed_text`; in half of the others a word is inserted or overwrites existing
// bytes; libFuzzer mutates the rest.
template <typename Words>
size_t mutate_text(uint8_t* data, size_t size, size_t max_size, unsigned seed, const Words& words,
                   std::string_view seed_text) {
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

// Words for mutate_text(), separated by spaces and newlines; ␠ and ␤ stand for one inside a word.
inline std::vector<std::string> fuzz_words(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    std::string word(text.substr(0, text.find_first_of(" \n")));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    for (const auto& [mark, character] : {std::pair("␠", " "), {"␤", "\n"}}) {
      for (size_t at = 0; (at = word.find(mark)) != std::string::npos;) word.replace(at, 3, character);
    }
    if (!word.empty()) words.push_back(std::move(word));
  }
  return words;
}

inline std::vector<std::string> fuzz_seeds(std::string_view seed) { return {std::string(seed)}; }
template <typename Seeds>
std::vector<std::string> fuzz_seeds(const Seeds& seeds) requires requires {
  std::size(seeds);
} &&(!std::is_convertible_v<const Seeds&, std::string_view>) {
  return {std::begin(seeds), std::end(seeds)};
}

inline size_t fuzz_mutate(uint8_t* data, size_t size, size_t max_size, unsigned seed,
                          const std::vector<std::string>& words, const std::vector<std::string>& seeds) {
  if (words.empty()) return mutate_bytes(data, size, max_size, seed, seeds);
  return mutate_text(data, size, max_size, seed, words, seeds[seed % seeds.size()]);
}

// Refusals by check(input) need one of the exit codes. Errors that begin with "again" are findings: what was
// read is written and read again with that name.
template <typename Check>
int fuzz_check(const Check& check, std::string_view input, std::initializer_list<ExitCode> codes) {
  if (input.empty()) return 0;
  try {
    check(input);
  } catch (const Error& error) {
    TESSERA_CHECK(!std::string_view(error.what()).starts_with("again"), "{}", error.what());
    const bool is_known = std::find(codes.begin(), codes.end(), error.code()) != codes.end();
    check_refusal(error, is_known ? error.code() : *codes.begin());
  }
  return 0;
}

}  // namespace tessera

// A target: check(std::string_view) of mutations of `seeds` (a text, or several) with words of `words` (see
// fuzz_words(); "" for bytes that are not text), and the exit codes of refusals.
#define TESSERA_FUZZ(words, seeds, check, ...)                                                            \
  extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) { \
    static const std::vector<std::string> all_words = tessera::fuzz_words(words);                         \
    static const std::vector<std::string> all_seeds = tessera::fuzz_seeds(seeds);                         \
    return tessera::fuzz_mutate(data, size, max_size, seed, all_words, all_seeds);                        \
  }                                                                                                       \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {                               \
    return tessera::fuzz_check(check, {reinterpret_cast<const char*>(data), size}, {__VA_ARGS__});        \
  }
