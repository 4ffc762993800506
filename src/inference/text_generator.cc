#include "inference/text_generator.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/clock.h"

namespace tessera {
namespace {

// Returns the text of `root`, of any length, on every rank.
std::string text_of_rank(std::string text, int root, Communicator& comm) {
  const OpLabel label = {"generated text"};
  text.resize(comm.broadcast(text.size(), root, label));
  comm.broadcast_bytes(std::as_writable_bytes(std::span(text)), root, label);
  return text;
}

}  // namespace

TextGenerator::TextGenerator(const Tokenizer& tokenizer, TrainableModel& model, int64_t capacity,
                             const SamplingOptions& sampling, std::unordered_set<int64_t> ends)
    : tokenizer_(tokenizer),
      generator_(make_generator(model, capacity)),
      capacity_(capacity),
      sampling_(sampling),
      ends_(std::move(ends)) {}

void TextGenerator::reset() {
  generator_->reset();
  fed_.clear();
  num_sampled_ = 0;
}

std::span<const float> TextGenerator::feed_prompt(const std::vector<int32_t>& ids) {
  const bool goes_on = !generator_->reads_source() && fed_.size() < ids.size() &&
                       std::equal(fed_.begin(), fed_.end(), ids.begin());
  if (!goes_on) {
    generator_->reset();
    fed_.clear();
  }
  const std::span<const int32_t> rest = std::span(ids).subspan(fed_.size());
  fed_ = ids;
  return generator_->feed(rest);
}

Continuation TextGenerator::continue_text(std::vector<int32_t> ids, int64_t max_new_tokens,
                                          const std::function<void(const std::string&)>& show,
                                          const std::function<bool()>& stops) {
  StreamDecoder decoder(tokenizer_);
  Continuation done;
  const auto add = [&](const std::string& piece) {
    done.text += piece;
    if (show) show(piece);
  };
  const Stopwatch stopwatch;
  std::span<const float> logits = feed_prompt(ids);
  if (generator_->reads_source()) ids.clear();  // the text is the target alone
  done.prompt_s = stopwatch.seconds();
  while (done.num_tokens < max_new_tokens && !(stops && stops())) {
    if (done.num_tokens > 0) {
      logits = generator_->feed(std::span(&ids.back(), 1));
      fed_.push_back(ids.back());
    }
    const int32_t id = sample_token(logits, ids, sampling_, num_sampled_++, &scratch_);
    ++done.num_tokens;
    done.has_ended = ends_.contains(id);
    if (done.has_ended) break;
    ids.push_back(id);
    add(decoder.push(id));
    done.is_full = generator_->length() == capacity_ && done.num_tokens < max_new_tokens;
    if (done.is_full) break;
  }
  add(decoder.finish());
  return done;
}

int64_t continue_in_turn(TextGenerator& generator, const std::vector<std::vector<int32_t>>& prompts,
                         int64_t max_new_tokens, Communicator& comm,
                         const std::function<void(size_t number, const std::string& text)>& take) {
  const auto world_size = static_cast<size_t>(comm.world().world_size);
  const auto rank = static_cast<size_t>(comm.world().rank);
  int64_t num_full = 0;
  for (size_t first = 0; first < prompts.size(); first += world_size) {
    std::string own;
    if (first + rank < prompts.size()) {
      generator.reset();
      const Continuation done = generator.continue_text(prompts[first + rank], max_new_tokens);
      own = done.text;
      num_full += done.is_full ? 1 : 0;
    }
    const size_t last = std::min(first + world_size, prompts.size());
    for (size_t number = first; number < last; ++number) {
      const std::string text = text_of_rank(own, static_cast<int>(number - first), comm);
      if (rank == 0) take(number, text);
    }
  }
  return comm.sum(num_full, {"generated text"});
}

}  // namespace tessera
