// Entries of log_history with the names and the counting of Hugging Face's Trainer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/trainable_model.h"
#include "report/evaluation_result.h"
#include "report/progress.h"
#include "report/trainer_state.h"

namespace tessera {

// Hugging Face's floating_point_ops: 6 per token and parameter outside the input embeddings, forward and
// backward.
double floating_point_ops(const TrainableModel& model, int64_t num_tokens);

// eval_loss_per_token and eval_perplexity, its exponential, are not Hugging Face's, whose example scripts
// compute exp(eval_loss) afterwards.
// `prefix` is "eval", or "eval_NAME" of one of several sets.
LogEntry evaluation_entry(const std::string& prefix, const EvalResult& result);
// Accuracies of choices have the names eval_choices_accuracy, _stderr, _norm and _norm_stderr; a single
// question has no standard errors. They come before the speed of the evaluation, if the entry has one.
void add_choices(const ChoiceResult& choices, LogEntry* entry);
// At the end of a run that has read num_samples rows in all.
LogEntry final_entry(const Progress& progress, double num_samples, double runtime_s);

// The entries of all its sets are there together, once the last is evaluated.
bool has_evaluation(const std::vector<LogEntry>& log_history, int64_t step);

}  // namespace tessera
