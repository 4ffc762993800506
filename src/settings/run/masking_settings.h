// Settings of masked language modelling, by the names of Transformers' run_mlm.py and
// DataCollatorForLanguageModeling, and what a model is trained on, `stage` of LLaMA-Factory.
#pragma once

#include <cstdint>
#include <optional>

#include "data/dataset.h"
#include "formats/huggingface/model_config.h"
#include "settings/run/data_settings.h"

namespace tessera {

// Makes the rows of `options`, whose sources and packing are set, those of the encoder `config`, whose tokens
// are masked. `max_length` is the user's; without it rows have as many tokens as the model has positions.
// Error(kBadConfig): another stage, settings that encoders do not have, rows longer than the table of
// positions, shares that are none.
void fit_rows_to_encoder(const DataArguments& data, const ModelConfig& config,
                         std::optional<int64_t> max_length, DatasetOptions* options);

// Error(kBadConfig): settings of masked tokens, for a model that is no encoder, or (`has_model` false) none.
void refuse_masking(const DataArguments& data, bool has_model);

}  // namespace tessera
