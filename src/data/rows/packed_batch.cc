#include <limits>
#include <span>

#include "base/error.h"
#include "base/text.h"
#include "data/rows/batch_plan.h"
#include "data/rows/token_masks.h"

namespace tessera {
namespace {

// Appends one sequence: the target of position t is the label of t + 1; the last position has none.
void append_sequence(std::span<const int32_t> ids, std::span<const int32_t> labels, PackedBatch* batch) {
  for (size_t t = 0; t < ids.size(); ++t) {
    const int32_t target = t + 1 < ids.size() ? labels[t + 1] : kIgnoredLabel;
    batch->input_ids.push_back(ids[t]);
    batch->positions.push_back(static_cast<int32_t>(t));
    batch->targets.push_back(target);
    if (target != kIgnoredLabel) ++batch->num_targets;
  }
  batch->cu_seqlens.push_back(static_cast<int32_t>(batch->input_ids.size()));
}

// Appends the first sequence of every row, or the second one without its last token, which predicts nothing:
// no token of the model is spent on it.
void append_side(const Dataset& dataset, std::span<const int64_t> rows, bool is_target, Dataset::Row* row,
                 PackedBatch* batch) {
  for (const int64_t number : rows) {
    dataset.read_row(number, row);
    const std::span<const int32_t> ids = row->input_ids, labels = row->labels;
    if (row->sequence_lengths.size() != 2 || row->sequence_lengths[1] < 2 || labels.empty())
      fail(ExitCode::kBadData, "row {}: expected a source and a target", number);
    const auto source_length = static_cast<size_t>(row->sequence_lengths[0]);
    if (!is_target) {
      append_sequence(ids.first(source_length), labels.first(source_length), batch);
      continue;
    }
    append_sequence(ids.subspan(source_length), labels.subspan(source_length), batch);
    batch->input_ids.pop_back();
    batch->positions.pop_back();
    batch->targets.pop_back();
    --batch->cu_seqlens.back();
  }
}

// Appends the rows of an encoder, whose targets are in place.
void append_masked_rows(const Dataset& dataset, std::span<const int64_t> rows, int64_t step,
                        Dataset::Row* row, PackedBatch* batch) {
  for (const int64_t number : rows) {
    dataset.read_row(number, row);
    batch->num_targets += resolve_masked_row(*dataset.masking(), step, number, &row->input_ids, &row->labels);
    batch->input_ids.insert(batch->input_ids.end(), row->input_ids.begin(), row->input_ids.end());
    batch->targets.insert(batch->targets.end(), row->labels.begin(), row->labels.end());
    if (!row->token_types.empty()) {
      // The types of the rows so far, which are 0 if there were none; a row may be kept with one token more.
      batch->token_types.resize(batch->input_ids.size() - row->input_ids.size());
      batch->token_types.insert(batch->token_types.end(), row->token_types.begin(), row->token_types.end());
      batch->token_types.resize(batch->input_ids.size());
    }
    // One sequence, but for packed texts, which have no token more.
    if (row->sequence_lengths.size() == 1)
      row->sequence_lengths[0] = static_cast<int32_t>(row->input_ids.size());
    for (const int32_t length : row->sequence_lengths) {
      for (int32_t t = 0; t < length; ++t) batch->positions.push_back(t);
      batch->cu_seqlens.push_back(static_cast<int32_t>(batch->positions.size()));
    }
  }
  if (!batch->token_types.empty()) batch->token_types.resize(batch->input_ids.size());
}

}  // namespace

void make_packed_batch(const Dataset& dataset, std::span<const int64_t> rows, int64_t step,
                       PackedBatch* batch) {
  int64_t num_tokens = 0;
  for (const int64_t row : rows) num_tokens += dataset.row_length(row);
  if (num_tokens > std::numeric_limits<int32_t>::max()) {
    fail(ExitCode::kBadConfig,
         "a micro-batch of {} has {} tokens, but the limit is 2^31 - 1: use a smaller batch size",
         count_of(std::ssize(rows), "row"), num_tokens);
  }
  batch->input_ids.clear();
  batch->positions.clear();
  batch->targets.clear();
  batch->token_types.clear();
  batch->cu_seqlens.assign(1, 0);
  batch->num_targets = 0;
  thread_local Dataset::Row row;  // keeps its memory from batch to batch
  batch->num_sources = dataset.has_sources() ? std::ssize(rows) : 0;
  if (dataset.has_sources()) {
    append_side(dataset, rows, /*is_target=*/false, &row, batch);
    append_side(dataset, rows, /*is_target=*/true, &row, batch);
    return;
  }
  if (dataset.masking() != nullptr) return append_masked_rows(dataset, rows, step, &row, batch);
  for (const int64_t number : rows) {
    dataset.read_row(number, &row);
    const std::span<const int32_t> ids = row.input_ids;
    const std::span<const int32_t> labels = row.labels.empty() ? row.input_ids : row.labels;
    size_t begin = 0;
    for (const int32_t length : row.sequence_lengths) {
      const auto count = static_cast<size_t>(length);
      append_sequence(ids.subspan(begin, count), labels.subspan(begin, count), batch);
      begin += count;
    }
  }
}

}  // namespace tessera
