// Counts the words in files: the first half of training a tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "platform/thread_pool.h"

namespace tessera {

struct WordCounts {
  std::vector<std::pair<std::string, int64_t>> words;  // sorted by bytes
  int64_t input_bytes = 0;
  int64_t num_files = 0;
  int64_t num_files_skipped = 0;
};

// Words are split by the Llama 3 pattern. Holds one batch of text (64 MiB) and at most about `max_words`
// distinct words: beyond that the rarest are dropped. The result does not depend on the number of threads.
// `progress` gets a fraction in [0, 1].
WordCounts count_words(const std::vector<std::filesystem::path>& files, bool skip_invalid_utf8,
                       int64_t max_words, ThreadPool& pool, const std::function<void(double)>& progress);

// Where a text that has a continuation can be cut without splitting a word: after the last line break that is
// followed by a non-whitespace character. Failing that, before the last character.
int64_t cut_between_words(std::string_view text);

}  // namespace tessera
