// The result of an evaluation.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// The loss of a model over a dataset.
struct EvalResult {
  // The mean over rows of the loss of each row's batch, as Transformers' Trainer reports it.
  double loss = 0;
  double loss_per_token = 0;  // sum of token losses / num_targets
  double perplexity = 0;      // exp(loss_per_token), infinite if that overflows
  int64_t num_rows = 0;
  int64_t num_tokens = 0;
  int64_t num_targets = 0;
  int64_t num_batches = 0;
  double runtime_s = 0;
  bool stopped = false;  // by the callback: the other fields are meaningless

  double tokens_per_second() const { return static_cast<double>(num_tokens) / runtime_s; }
};

// Accuracies over all questions, with the standard error of the mean: s / sqrt(n), s the sample's standard
// deviation; NaN for a single question.
struct ChoiceResult {
  int64_t num_questions = 0;
  double accuracy = 0;  // the likeliest choice is the answer
  double accuracy_stderr = 0;
  double accuracy_norm = 0;  // log-likelihoods divided by the characters of the choice, not a space before it
  double accuracy_norm_stderr = 0;
  // For each question, in order: the log-likelihood of every choice, and the index of the right one.
  struct Question {
    std::vector<double> log_likelihoods;
    int64_t answer = 0;
    int64_t likeliest = 0;
    int64_t likeliest_norm = 0;
  };
  std::vector<Question> questions;
  double runtime_s = 0;
  bool stopped = false;  // by the callback: the other fields are meaningless
};

}  // namespace tessera
