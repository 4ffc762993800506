// Evaluation sets with names, as the dict of data sets that Hugging Face's Trainer takes for eval_dataset.
#pragma once

#include <string>
#include <vector>

#include "settings/run_settings.h"

namespace tessera {

struct EvaluationSet {
  std::string name;  // "" = the only one, without a name
  std::vector<std::string> sources;

  // The prefix of its metrics' names: "eval", or "eval_NAME".
  std::string prefix() const { return name.empty() ? "eval" : "eval_" + name; }
};

// The sets that entries of eval_dataset make up, in the order of their first source: all entries are
// NAME=SOURCE, or none is. A name may have several sources. A file that exists or a pattern with matches has
// no name, whatever it is called. Error(kBadConfig).
std::vector<EvaluationSet> evaluation_sets(const std::vector<std::string>& entries);

// An entry of eval_dataset without the name of its set.
std::string source_of_entry(const std::string& entry);

// A JSON object of sources by name, {"a": "a.jsonl", "b": ["b.jsonl", "c.jsonl"]}, as entries of
// eval_dataset, in its order. Error(kBadConfig) in one line that begins with `origin`.
std::vector<std::string> entries_of_sets(const std::string& object, const std::string& origin);

// Whether a word may be a metric of a set with a name: [eval_]NAME_loss, _loss_per_token or _perplexity.
bool may_be_metric_of_set(const std::string& word);

// Error(kBadConfig) if no evaluation of the run has metric_for_best_model; names those there are.
void check_metric(const RunSpec& spec, bool is_default);

}  // namespace tessera
