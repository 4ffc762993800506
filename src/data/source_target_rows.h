// Rows of a model with an encoder and a decoder as two sequences of token ids: the source, then the decoder's
// start token and the target. The labels of the source and of the start token are ignored; the others are the
// target's, so that the shift of make_packed_batch() makes the decoder predict every token of the target from
// those before it, as T5ForConditionalGeneration of Transformers does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "data/cache/document_counts.h"
#include "data/cache/row_builder.h"
#include "data/row_options.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

struct TokenizedRow;

struct TextLimit {
  int64_t max_length;   // tokens, special ones included
  const char* setting;  // that sets it
  // The end-of-text token follows if the tokenizer adds none after a text, or adds nothing.
  bool ends_texts = true;
};

// Writes to *ids, which is empty, the ids of `text` with the tokenizer's special tokens, which remain where
// the text is cut; Transformers' truncation does the same. Returns the number of tokens cut off.
// Error(kBadConfig): the special tokens alone are longer.
int64_t encode_cut(const Tokenizer& tokenizer, std::string_view text, bool add_special_tokens,
                   const TextLimit& limit, std::vector<int32_t>* ids);

// Adds the target to a row whose ids are the source alone, at least one. `labels`: the target's ids, or
// kIgnoredLabel; a row in which all are ignored is one without a label, which RowBuilder drops.
void append_target(std::span<const int32_t> labels, const SourceTarget& options, TokenizedRow* row);

// Makes a row of token ids, cut if the options say so.
void make_source_target_row(std::span<const int32_t> ids, std::span<const int32_t> labels,
                            const SourceTarget& options, TokenizedRow* row);

// Rows of .safetensors files: "input_ids" [..., source length] and "labels" [..., target length], of any
// integer type and with the same leading axes, the labels padded with kIgnoredLabel; "attention_mask" has
// zeros for padding of input_ids. Rows without a label are dropped (counted). Reads at most max_rows rows.
// `progress` gets the bytes read so far. Errors (kBadData) name file, tensor, row and column.
DocumentCounts read_source_target_tensors(std::span<const std::filesystem::path> files, int64_t vocab_size,
                                          const SourceTarget& options, int64_t max_rows, const RowSink& sink,
                                          const std::function<void(int64_t)>& progress = {});

}  // namespace tessera
