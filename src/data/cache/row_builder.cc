#include "data/cache/row_builder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/cache/document_groups.h"

namespace tessera {

RowBuilder::RowBuilder(Packing packing, int64_t max_length, bool has_labels, RowSink sink,
                       DocumentCounts* counts)
    : packing_(packing),
      max_length_(static_cast<size_t>(max_length)),
      has_labels_(has_labels),
      sink_(std::move(sink)),
      counts_(counts) {
  TESSERA_CHECK(max_length >= 2, "max_length={}", max_length);
}

void RowBuilder::add_document(std::span<const int32_t> ids, std::span<const int32_t> labels,
                              bool keeps_masked, std::span<const int32_t> sequence_lengths) {
  TESSERA_CHECK(!ids.empty() && (labels.empty() || labels.size() == ids.size()));
  if (labels.empty()) labels = ids;
  if (packing_ == Packing::kNone) {
    const size_t kept = std::min(ids.size(), max_length_);
    const bool is_cut = kept < ids.size();
    if ((is_cut || !keeps_masked) && is_masked(labels.first(kept))) {
      ++counts_->num_masked_rows;
      return;
    }
    ++counts_->num_documents;
    if (is_cut) {
      ++counts_->num_cut_documents;
      counts_->num_cut_tokens += static_cast<int64_t>(ids.size() - kept);
    }
    sink_(ids.first(kept), has_labels_ ? labels.first(kept) : labels.first(0),
          first_lengths(sequence_lengths, kept));
    return;
  }
  // The sequences of a packed row are packed anew, one by one.
  for (const int32_t length : sequence_lengths) {
    const auto count = static_cast<size_t>(length);
    add_document(ids.first(count), labels.first(count), keeps_masked);
    ids = ids.subspan(count);
    labels = labels.subspan(count);
  }
  if (!sequence_lengths.empty()) return;
  ++counts_->num_documents;
  if (packing_ == Packing::kBestFit || packing_ == Packing::kBestFitSplit || packing_ == Packing::kKnapsack) {
    keep_document(ids, labels);
  } else {
    add_to_stream(ids, labels);
    end_sequence();
  }
  // `datasets` maps this many rows at a time.
  constexpr int64_t kBatchDocuments = 1000;
  if (++num_in_batch_ == kBatchDocuments) end_batch();
}

// For kBestFitSplit, the pieces of a document become documents of their own.
void RowBuilder::keep_document(std::span<const int32_t> ids, std::span<const int32_t> labels) {
  kept_ids_.insert(kept_ids_.end(), ids.begin(), ids.end());
  if (has_labels_) kept_labels_.insert(kept_labels_.end(), labels.begin(), labels.end());
  size_t left = ids.size();
  const size_t room = packing_ == Packing::kKnapsack ? max_length_ - 1 : max_length_;
  if (packing_ != Packing::kBestFitSplit && left > room) {
    const size_t excess = left - room;
    ++counts_->num_cut_documents;
    counts_->num_cut_tokens += static_cast<int64_t>(excess);
    kept_ids_.resize(kept_ids_.size() - excess);
    if (has_labels_) kept_labels_.resize(kept_ids_.size());
    left = room;
  }
  for (; left > 0; left -= std::min(left, max_length_))
    kept_lengths_.push_back(static_cast<int64_t>(std::min(left, max_length_)));
}

void RowBuilder::end_batch() {
  num_in_batch_ = 0;
  if (packing_ == Packing::kWrapped && !row_.empty()) flush_row();
  if (kept_lengths_.empty()) return;
  std::vector<size_t> begins;
  size_t begin = 0;
  for (const int64_t length : kept_lengths_) {
    begins.push_back(begin);
    begin += static_cast<size_t>(length);
  }
  const auto max_length = static_cast<int64_t>(max_length_);
  for (const DocumentGroup& group : packing_ == Packing::kKnapsack
                                        ? greedy_knapsack(kept_lengths_, max_length - 1)
                                        : best_fit_decreasing(kept_lengths_, max_length)) {
    for (const int64_t document : group) {
      const auto at = static_cast<std::ptrdiff_t>(begins[static_cast<size_t>(document)]);
      const int64_t length = kept_lengths_[static_cast<size_t>(document)];
      row_.insert(row_.end(), kept_ids_.begin() + at, kept_ids_.begin() + at + length);
      if (has_labels_)
        labels_.insert(labels_.end(), kept_labels_.begin() + at, kept_labels_.begin() + at + length);
      sequence_lengths_.push_back(static_cast<int32_t>(length));
    }
    flush_row();
  }
  kept_ids_.clear();
  kept_labels_.clear();
  kept_lengths_.clear();
}

std::span<const int32_t> RowBuilder::first_lengths(std::span<const int32_t> lengths, size_t kept) {
  sequence_lengths_.clear();
  for (const int32_t length : lengths) {
    const auto part = std::min(static_cast<size_t>(length), kept);
    if (part > 0) sequence_lengths_.push_back(static_cast<int32_t>(part));
    kept -= part;
  }
  if (sequence_lengths_.size() == 1) sequence_lengths_.clear();
  return sequence_lengths_;
}

void RowBuilder::add_to_stream(std::span<const int32_t> ids, std::span<const int32_t> labels) {
  while (!ids.empty()) {
    const size_t part = std::min(ids.size(), max_length_ - row_.size());
    const auto end = static_cast<std::ptrdiff_t>(part);
    row_.insert(row_.end(), ids.begin(), ids.begin() + end);
    if (has_labels_) labels_.insert(labels_.end(), labels.begin(), labels.begin() + end);
    ids = ids.subspan(part);
    labels = labels.subspan(part);
    if (row_.size() == max_length_) {
      end_sequence();
      flush_row();
    }
  }
}

void RowBuilder::end_sequence() {
  if (sequence_begin_ == row_.size()) return;
  if (packing_ == Packing::kIsolated)
    sequence_lengths_.push_back(static_cast<int32_t>(row_.size() - sequence_begin_));
  sequence_begin_ = row_.size();
}

void RowBuilder::flush_row() {
  sink_(row_, labels_, sequence_lengths_);
  row_.clear();
  labels_.clear();
  sequence_lengths_.clear();
  sequence_begin_ = 0;
}

void RowBuilder::finish() {
  end_batch();
  end_sequence();
  if (!row_.empty() && count_targets(static_cast<int64_t>(row_.size()), labels_, sequence_lengths_) > 0)
    flush_row();
}

}  // namespace tessera
