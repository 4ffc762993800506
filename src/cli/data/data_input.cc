#include "cli/data/data_input.h"

#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "cli/command.h"
#include "data/masked_rows.h"
#include "data/row_building.h"
#include "formats/huggingface/model_config.h"
#include "settings/compat/compat_flags.h"
#include "settings/derived.h"
#include "settings/fields/fields.h"
#include "settings/run/seq2seq_settings.h"

namespace tessera {

void DataInput::declare_flags(FlagTable* table) {
  common_fields().add(table, "dataset", &dataset);
  common_fields().add(table, "model", &model);
  common_fields().add(table, "tokenizer", &tokenizer);
  Flag& length_flag = declare_max_length(table, &max_length);
  length_flag.help = "Tokens per row, as for `train`. none truncates nothing.";
  length_flag.aliases.push_back("cutoff_len");
  common_fields().add(table, "packing", &packing);
  add_field(table, "packing_strategy", &packing_strategy);
  add_field(table, "packing_cross_document_attention", &packing_cross_document_attention);
  declare_compat_flag(table, "truncation_mode");
  declare_data_flags(table, &data);
}

OpenData open_data(const DataInput& input) {
  if (input.model.empty() && input.tokenizer.empty())
    fail(ExitCode::kUsage, "--model is missing: name a model folder, or a tokenizer's with --tokenizer");
  const std::string folder = input.tokenizer.empty() ? input.model : input.tokenizer;
  check_joined(input.packing_strategy, input.packing_cross_document_attention, input.packing);
  OpenData open;
  open.options = dataset_options(input.data, input.dataset, folder);
  open.options.drops_masked_ids = input.max_length.value_or(kMaxRowLength) != kMaxRowLength;
  std::optional<ModelConfig> config;
  if (!input.model.empty()) config = read_model_config(input.model);
  if (input.packing) open.options.packing = Packing::kByRows;
  fit_rows_to_model(input.data, config, RowUse::kTraining, input.max_length, &open.options);
  open.plan = plan_rows(open.options.sources, open.options);
  for (const std::string& line : open.plan.remarks) log_warning("{}", line);
  open.packing = packing_of(
      open.plan, packing_by_strategy(input.packing_strategy, input.packing_cross_document_attention));
  if (open.plan.needs_tokenizer()) open.tokenizer = Tokenizer::open(folder);
  if (open.options.masking && !open.tokenizer) open.tokenizer = Tokenizer::open_if_any(folder);
  if (!config) {
    open.vocab_size = open.tokenizer ? open.tokenizer->vocab_size() : Tokenizer::open(folder).vocab_size();
  } else {
    open.vocab_size = config->vocab_size;
  }
  if (open.options.masking) {
    MaskingRule& rule = *open.options.masking;
    name_masking_tokens(open.tokenizer ? &*open.tokenizer : nullptr, open.vocab_size, &rule);
    if (open.plan.needs_tokenizer()) check_can_mask(rule, open.plan.files.front().path.string());
  }
  if (!open.options.source_target && !open.options.masking) {
    const int64_t num_positions =
        config ? config->max_position_embeddings : std::numeric_limits<int64_t>::max();
    open.options.max_length = input.max_length.value_or(default_row_limit(num_positions));
  }
  open.max_length = shown_max_length(open.options);
  return open;
}

}  // namespace tessera
