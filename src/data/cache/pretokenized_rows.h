// Converts pre-tokenized safetensors files to rows of token ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "data/cache/row_builder.h"
#include "data/cache/token_cache.h"

namespace tessera {

// True if the file has a tensor of this name.
bool has_tensor(const std::filesystem::path& file, const std::string& name);
// True if any of the files has a tensor "labels", "completion_mask" or "assistant_masks".
// of_encoder: the files may also have token_type_ids.
bool any_has_labels(std::span<const std::filesystem::path> files, bool of_encoder = false);

// Reads "input_ids" of any integer type, [..., row length]: every row along the last axis, in order; "labels"
// of the same shape, ids or kIgnoredLabel, or else the ids where "completion_mask" (if it is read) and
// "assistant_masks" are 1; "position_ids" start again where a document begins; "attention_mask" is accepted
// if it masks nothing. If only some files have labels, the others use their ids as labels. Rows are cut to
// max_length (counted). Rows without a label after that are dropped (counted): with `drops_masked` all of
// them, otherwise those that were cut. Reads at most max_rows rows. `progress` gets the bytes read so far.
// Errors (kBadData) name file, tensor, row and column.
DocumentCounts read_pretokenized_rows(std::span<const std::filesystem::path> files, int64_t vocab_size,
                                      int64_t max_length, bool with_labels, bool reads_completion_mask,
                                      bool drops_masked, int64_t max_rows, const RowSink& sink,
                                      const std::function<void(int64_t)>& progress = {});

}  // namespace tessera
