// Multiple-choice questions scored by the likelihood of their choices, as lm-evaluation-harness does
// (lm_eval/api/model.py, _encode_pair; lm_eval/api/task.py, ConfigurableTask.process_results).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "context/context_rank.h"
#include "model/trainable_model.h"
#include "report/evaluation_result.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// Questions from JSONL files, tokenized.
class ChoiceSet {
 public:
  // A line is {"context": text, "choices": [text, ...], "answer": index from 0 or the text of a choice};
  // other fields are ignored. A choice follows its context as it is; white space that ends the context
  // belongs to the choice, so that words are tokenized as in running text. An empty context is the
  // beginning-of-text token. Contexts that do not fit into max_length tokens lose their beginning.
  // Error(kNoInput, kBadData) in one line: file, line, expected, found.
  static ChoiceSet open(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                        bool add_special_tokens, int64_t max_length, int64_t vocab_size);

  int64_t num_questions() const { return std::ssize(questions_); }
  int64_t num_cut_contexts() const { return num_cut_contexts_; }
  // Says in a warning how many contexts were cut.
  std::string cut_contexts_text(int64_t max_length) const;
  int64_t max_row_length() const { return max_row_length_; }
  int64_t num_tokens() const { return num_tokens_; }  // of all rows
  // For reserving activations: limits of score_choices(max_rows, max_tokens).
  ActivationLimits limits(int64_t max_rows, int64_t max_tokens) const;

  // Collective: the ranks take batches of at most max_rows rows (a row is a context with one choice) and
  // max_tokens tokens in turn; a longer row forms its own batch. All get the overall result, bit-identical to
  // that of a single rank. `progress` and `context` as in take_in_turn().
  ChoiceResult score(TrainableModel& model, int64_t max_rows, int64_t max_tokens, Communicator& comm,
                     const std::function<bool(double fraction)>& progress = {},
                     ContextRank* context = nullptr) const;

 private:
  struct Row {
    std::vector<int32_t> ids;  // context and choice
    int64_t num_choice_tokens;
    int64_t num_characters;  // of the choice
  };
  struct Question {
    size_t first_row;
    size_t num_choices;
    size_t answer;
  };
  void add_row(const Tokenizer& tokenizer, bool add_special_tokens, int64_t max_length,
               const std::string& context, const std::string& choice, const std::string& where);
  void make_batch(const std::vector<int64_t>& rows, PackedBatch* batch) const;
  // Sets the accuracies; `losses` are the negated log-likelihoods of the rows.
  void count_correct(const std::vector<double>& losses, ChoiceResult* result) const;

  std::vector<Row> rows_;
  std::vector<Question> questions_;
  int64_t num_cut_contexts_ = 0;
  int64_t max_row_length_ = 0;
  int64_t num_tokens_ = 0;
};

}  // namespace tessera
