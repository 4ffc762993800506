#include "data/rows/row_builder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tessera {

RowBuilder::RowBuilder(Packing packing, int64_t max_length, bool has_labels, RowSink sink,
                       CacheCounts* counts)
    : packing_(packing),
      max_length_(static_cast<size_t>(max_length)),
      has_labels_(has_labels),
      sink_(std::move(sink)),
      counts_(counts) {
  TESSERA_CHECK(max_length >= 2, "max_length={}", max_length);
}

void RowBuilder::add_document(std::span<const int32_t> ids, std::span<const int32_t> labels,
                              bool keeps_masked) {
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
    sink_(ids.first(kept), has_labels_ ? labels.first(kept) : labels.first(0), {});
    return;
  }
  ++counts_->num_documents;
  add_to_stream(ids, labels);
  end_sequence();
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
  end_sequence();
  if (!row_.empty() && count_targets(static_cast<int64_t>(row_.size()), labels_, sequence_lengths_) > 0)
    flush_row();
}

}  // namespace tessera
