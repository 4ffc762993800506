// Which tokens of an encoder's rows are masked, and with what: the rule of DataCollatorForLanguageModeling of
// Transformers. A token that is not special becomes a target with mlm_probability; of the targets,
// mask_replace_prob become the mask token, random_replace_prob any token of the vocabulary, the others stay.
//
// As with the collator a row is masked anew each time it comes; but the numbers follow from seed, step, row
// and place alone, so that ranks, micro-batches and threads do not matter, and a resumed run draws the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "data/row_options.h"

namespace tessera {

// In place of a step, for evaluations, which can then be compared: a row's masks are always the same.
inline constexpr int64_t kNoStep = -1;

// Masks `ids`, the tokens of a row, and writes what they were where they are targets, kIgnoredLabel
// elsewhere. Returns the number of targets.
int64_t mask_tokens(const MaskingRule& rule, int64_t step, int64_t row, std::span<int32_t> ids,
                    std::vector<int32_t>* targets);
// The number of targets that mask_tokens() finds.
int64_t count_masked_tokens(const MaskingRule& rule, int64_t step, int64_t row, std::span<const int32_t> ids);

// Turns a row as it is kept (data/masked_rows.h) into what the model reads, and the target of every token.
// Returns the number of targets.
int64_t resolve_masked_row(const MaskingRule& rule, int64_t step, int64_t row, std::vector<int32_t>* ids,
                           std::vector<int32_t>* labels);

// The targets of a row in this step, as make_packed_batch() finds them. Errors: Dataset::read_row().
int64_t count_row_targets(const Dataset& dataset, int64_t step, int64_t row);

}  // namespace tessera
