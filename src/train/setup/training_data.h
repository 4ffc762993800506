// The datasets of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "data/dataset.h"
#include "formats/huggingface/model_config.h"
#include "platform/thread_pool.h"
#include "report/observer.h"
#include "settings/run_settings.h"
#include "tokenizer/tokenizer.h"
#include "weights/model_folder.h"

namespace tessera {

struct EvaluationData {
  std::string name;    // if there are several sets, otherwise ""
  std::string prefix;  // of its metrics: "eval", "eval_NAME"
  Dataset rows;
};

struct TrainingData {
  std::unique_ptr<const Tokenizer> tokenizer;  // null if all rows are token ids; used while rows are streamed
  int64_t row_limit = 0;                       // tokens
  Dataset train;
  std::vector<EvaluationData> evals;  // in the order in which they are evaluated
  // A chat template that was given, to be saved with the model, and the token that ends its answers.
  std::string chat_template;
  std::optional<int32_t> end_of_answer;
  std::optional<EosToken> eos_token;  // in place of the tokenizer's
  bool splits_documents = false;      // DataRecord

  // Sums over evals, and the longest of their rows.
  int64_t num_eval_rows() const;
  int64_t num_eval_tokens() const;
  int64_t max_eval_row_length() const;
};

// What the rows of a resumed run keep of the way in which they were made.
struct ResumedRows {
  bool splits_packed_rows = false;  // rows were held out for evaluation after packing, whatever the packing
  bool packs_in_order = false;      // DataSpec::packing_strategy in_order
};

// Reads, tokenizes and packs, or takes the rows from the cache; reports progress and logs the datasets'
// warnings.
TrainingData open_training_data(const RunSpec& spec, const ModelConfig& config, ThreadPool& pool,
                                Communicator& comm, TrainObserver& observer, const ResumedRows& resumed);

// The model's own unless another one was given.
std::filesystem::path tokenizer_folder(const ModelSource& model);

// Settings that make more rows out of the same dataset, ending in a comma; "" if there are none.
std::string ways_to_more_rows(const DataSpec& data);

}  // namespace tessera
