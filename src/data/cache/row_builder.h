// Turns documents into rows, one by one or packed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/cache/packing.h"
#include "data/cache/token_cache.h"

namespace tessera {

// Takes a row: ids, labels (empty without labels), lengths of its sequences (empty for a single one).
using RowSink = std::function<void(std::span<const int32_t> ids, std::span<const int32_t> labels,
                                   std::span<const int32_t> sequence_lengths)>;

// Packing::kNone makes document d a row of min(len(d), max_length) tokens; one whose labels are then all
// ignored is dropped, as TRL's "Dropping fully masked examples". kIsolated, kJoined and kWrapped cut the
// stream S = d0 d1 ...: row r is S[r * max_length, (r + 1) * max_length); the shorter remainder becomes a row
// if it has a target, or in any case with kWrapped, whose streams have 1000 documents. kBestFit,
// kBestFitSplit and kKnapsack take 1000 documents at a time; a row has the documents of a DocumentGroup.
class RowBuilder {
 public:
  // Counts documents, those dropped, those cut and their tokens in *counts.
  RowBuilder(Packing packing, int64_t max_length, bool has_labels, RowSink sink, DocumentCounts* counts);

  // At least one id; as many labels as ids, or none if the ids are the labels; the lengths of the sequences
  // packed in it, or none for a single one. With keeps_masked, a document is dropped only if it is cut, as in
  // Trainer, which keeps rows of token ids without labels.
  void add_document(std::span<const int32_t> ids, std::span<const int32_t> labels = {},
                    bool keeps_masked = false, std::span<const int32_t> sequence_lengths = {});
  void finish();

  int64_t max_length() const { return static_cast<int64_t>(max_length_); }
  bool is_packing() const { return packing_ != Packing::kNone; }

 private:
  void add_to_stream(std::span<const int32_t> ids, std::span<const int32_t> labels);
  void end_sequence();
  // The lengths of the sequences in the first `kept` tokens; empty for one.
  std::span<const int32_t> first_lengths(std::span<const int32_t> lengths, size_t kept);
  void flush_row();
  void keep_document(std::span<const int32_t> ids, std::span<const int32_t> labels);
  // Ends what TRL packs together: makes rows of the documents that were kept.
  void end_batch();

  Packing packing_;
  size_t max_length_;
  bool has_labels_;
  RowSink sink_;
  DocumentCounts* counts_;
  std::vector<int32_t> row_;               // current row of the stream
  std::vector<int32_t> labels_;            // of row_, if rows have labels
  std::vector<int32_t> sequence_lengths_;  // kIsolated: of the finished sequences in row_; kNone: of a row
  size_t sequence_begin_ = 0;              // start of the open sequence in row_
  int64_t num_in_batch_ = 0;               // documents of the 1000 that TRL packs together
  std::vector<int32_t> kept_ids_;          // kBestFit: of these documents, one after the other
  std::vector<int32_t> kept_labels_;
  std::vector<int64_t> kept_lengths_;
};

}  // namespace tessera
