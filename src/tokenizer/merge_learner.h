// Learns merges from counted words, as the second half of training a tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct LearnedMerges {
  std::vector<std::string> tokens;                  // bytes of each id; the first 256 are the alphabet
  std::vector<std::pair<int32_t, int32_t>> merges;  // ids, in the order in which they were learned
};

// The pair of neighbouring tokens that occurs most often becomes a token, again and again, until there are
// `num_tokens` or no pair occurs twice. Among equals the smaller pair of ids is taken. Two ways to the same
// bytes are two merges and one token.
LearnedMerges learn_merges(const std::vector<std::pair<std::string, int64_t>>& words, int64_t num_tokens,
                           const std::function<void(double)>& progress = {});

}  // namespace tessera
