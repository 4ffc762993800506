// Settings of rows for models with an encoder and a decoder, by the names of Transformers' examples
// run_summarization.py and run_translation.py.
#pragma once

#include <cstdint>
#include <optional>

#include "data/dataset.h"
#include "formats/huggingface/model_config.h"
#include "settings/run/data_settings.h"

namespace tessera {

enum class RowUse { kTraining, kEvaluation };

// The most tokens of a source and its target, which the model sees. Error(kBadConfig): there is a max_length.
int64_t source_target_limit(const SourceTargetArguments& given, std::optional<int64_t> max_length);

// Makes the rows of `options`, whose sources, packing and streaming are set, those of the model: a source and
// its target if it has an encoder and a decoder, rows with masked tokens if it is an encoder alone
// (masking_settings.h), otherwise they stay as they are. Without a config (a
// tokenizer alone) the model is a decoder. `max_length` is the user's. Error(kBadConfig): settings that this
// kind of model does not have, or that contradict each other.
void fit_rows_to_model(const DataArguments& data, const std::optional<ModelConfig>& config, RowUse use,
                       std::optional<int64_t> max_length, DatasetOptions* options);

}  // namespace tessera
