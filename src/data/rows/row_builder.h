// Turns documents into rows, one by one or packed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "data/rows/token_cache.h"

namespace tessera {

// Takes a row: ids, labels (empty without labels), lengths of its sequences (empty for a single one).
using RowSink = std::function<void(std::span<const int32_t> ids, std::span<const int32_t> labels,
                                   std::span<const int32_t> sequence_lengths)>;

// With Packing::kNone document d becomes a row of min(len(d), max_length) tokens. Otherwise, with the stream
// S = d0 EOS d1 EOS ..., row r is S[r * max_length, (r + 1) * max_length); the shorter remainder becomes a
// row if it has a target. A document that already ends in EOS gets no second one, a complete one none at all.
class RowBuilder {
 public:
  // eos_id is required for packing documents that are not complete. Counts documents, those cut and their
  // tokens in *counts.
  RowBuilder(Packing packing, int64_t max_length, std::optional<int32_t> eos_id, bool has_labels,
             RowSink sink, CacheCounts* counts);

  // At least one id; labels as many as ids, or none for the ids themselves.
  void add_document(std::span<const int32_t> ids, std::span<const int32_t> labels = {},
                    bool is_complete = false);
  void finish();

  int64_t max_length() const { return static_cast<int64_t>(max_length_); }
  bool is_packing() const { return packing_ != Packing::kNone; }

 private:
  void add_to_stream(std::span<const int32_t> ids, std::span<const int32_t> labels);
  void end_sequence();
  void flush_row();

  Packing packing_;
  size_t max_length_;
  std::optional<int32_t> eos_id_;
  bool has_labels_;
  RowSink sink_;
  CacheCounts* counts_;
  std::vector<int32_t> row_;               // current row of the stream
  std::vector<int32_t> labels_;            // of row_, if rows have labels
  std::vector<int32_t> sequence_lengths_;  // kIsolated: of the finished sequences in row_
  size_t sequence_begin_ = 0;              // start of the open sequence in row_
};

}  // namespace tessera
