// Rows of an encoder, which predicts tokens in their own places. The targets of PackedBatch are labels of the
// next token, so a row of token ids is kept with one token more, and its labels one place further on:
//
//   ids     x0    x1  ...  x(n-1)    0
//   labels  -100  l0  ...  l(n-2)    l(n-1)
//
// A row without labels that is kept among rows with labels has its own ids as labels and 0 in place of the
// first -100, which is no target in any case: its tokens are masked when it is used (rows/token_masks.h). So
// are those of texts, which are kept as they are, without labels.
//
// Where the model has several token types, that of a token is kept with its id, as id + type * vocab_size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "data/cache/document_counts.h"
#include "data/cache/row_builder.h"
#include "data/dataset.h"
#include "data/row_options.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

struct TokenizedRow;

// The label in place of the first -100 of a row that is masked when it is used.
inline constexpr int32_t kMaskedWhenUsed = 0;

// Makes the rows of `options`, whose sources and packing are set, those of an encoder, of at most
// `max_length` tokens, which is the rule's, too.
void use_masked_rows(MaskingRule rule, int64_t max_length, DatasetOptions* options);

// Tells the rule which token masks, which are special, as get_special_tokens_mask() of Transformers counts
// them (those that the tokenizer names, and its other special added tokens), and how many ids there are.
// `tokenizer` may be null. Error(kBadConfig): the mask token is not below vocab_size.
void name_masking_tokens(const Tokenizer* tokenizer, int64_t vocab_size, MaskingRule* rule);

// Error(kBadConfig) that begins with `where`, unless the rule has a mask token: the rows have no labels.
void check_can_mask(const MaskingRule& rule, const std::string& where);

// Makes a row of token ids, cut to rule.max_length; without ids it stays empty. Error(kBadConfig): there are
// no labels, and nothing to mask tokens with.
void make_masked_row(std::span<const int32_t> ids, std::span<const int32_t> labels, const MaskingRule& rule,
                     TokenizedRow* row);

// Adds the types of its tokens to a row of make_masked_row(), as many as it had ids, or none. `where`: the
// field, for Error(kBadData): a type that the model does not have.
void add_token_types(std::span<const int32_t> types, const MaskingRule& rule, const std::string& where,
                     TokenizedRow* row);

// The number of different ids of rows as they are kept. Error(kBadConfig): too many.
int64_t num_kept_ids(int64_t vocab_size, const MaskingRule* rule);
// The ids of a row as they are kept, in *memory if they are others.
std::span<const int32_t> kept_ids(const TokenizedRow& row, int64_t vocab_size, std::vector<int32_t>* memory);
// Takes the types out of kept ids again; no types if all are 0.
void split_token_types(int64_t vocab_size, std::vector<int32_t>* ids, std::vector<int32_t>* types);

// Rows of .safetensors files: "input_ids" [..., row length], optionally "labels" of the same shape, ids or
// kIgnoredLabel, "token_type_ids", and "attention_mask" with zeros for padding; all of any integer type. With
// `has_labels` they are kept as above, otherwise no file has labels. Reads at most max_rows rows. `progress`
// gets the bytes read so far. Errors (kBadData) name file, tensor, row and column.
DocumentCounts read_masked_tensors(std::span<const std::filesystem::path> files, int64_t vocab_size,
                                   const MaskingRule& rule, bool has_labels, int64_t max_rows,
                                   const RowSink& sink, const std::function<void(int64_t)>& progress = {});

}  // namespace tessera
