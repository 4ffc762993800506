// Continues texts with a model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "comm/communicator.h"
#include "model/families/families.h"
#include "model/sampling.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

struct Continuation {
  std::string text;
  int64_t num_tokens = 0;  // with the one that ended it
  double prompt_s = 0;     // that the prompt took
  bool has_ended = false;  // at a token that ends texts
  bool is_full = false;    // the model has no more positions
};

class TextGenerator {
 public:
  // For texts of at most `capacity` tokens, prompts included, that end at any token of `ends`. Tokenizer and
  // model must outlive this.
  TextGenerator(const Tokenizer& tokenizer, TrainableModel& model, int64_t capacity,
                const SamplingOptions& sampling, std::unordered_set<int64_t> ends);

  // Continues a prompt of 1 to `capacity` tokens. `show` receives each piece of the text once it is final;
  // `stops` is asked before each token. A prompt that begins with all of the text before it is computed from
  // there on; the random numbers of one text follow those of the text before it.
  Continuation continue_text(std::vector<int32_t> ids, int64_t max_new_tokens,
                             const std::function<void(const std::string&)>& show = {},
                             const std::function<bool()>& stops = {});
  // Forgets the texts before: the next is continued as if it were the first.
  void reset();

 private:
  std::span<const float> feed_prompt(const std::vector<int32_t>& ids);

  const Tokenizer& tokenizer_;
  std::unique_ptr<TokenGenerator> generator_;
  int64_t capacity_;
  SamplingOptions sampling_;
  std::unordered_set<int64_t> ends_;
  std::vector<int32_t> fed_;  // what is in the generator's cache
  uint64_t num_sampled_ = 0;
  std::vector<float> scratch_;
};

// Collective: the ranks take the prompts in turn, each continued as if it were alone. On rank 0 `take`
// receives all continuations in order. Returns on every rank how many ran out of positions.
int64_t continue_in_turn(TextGenerator& generator, const std::vector<std::vector<int32_t>>& prompts,
                         int64_t max_new_tokens, Communicator& comm,
                         const std::function<void(size_t number, const std::string& text)>& take);

}  // namespace tessera
