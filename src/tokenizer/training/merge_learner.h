// Learns merges from word counts: the second half of training a tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct LearnedMerges {
  std::vector<std::string> tokens;                  // bytes of each id; the first 256 are the alphabet
  std::vector<std::pair<int32_t, int32_t>> merges;  // ids, in the order learned
};

// Repeatedly turns the most frequent pair of adjacent tokens into a token, until there are `num_tokens` or no
// pair occurs twice. Ties go to the smaller pair of ids. Two pairs that give the same bytes are two merges
// but one token.
LearnedMerges learn_merges(const std::vector<std::pair<std::string, int64_t>>& words, int64_t num_tokens,
                           const std::function<void(double)>& progress = {});

}  // namespace tessera
