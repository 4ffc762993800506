// Counts of a dataset's documents: kept, dropped or cut while its rows were built.
#pragma once

#include <cstdint>
#include <utility>

namespace tessera {

struct DocumentCounts {
  int64_t num_documents = 0;          // that became rows; for pre-tokenized files: rows
  int64_t num_empty_documents = 0;    // without any text or token: dropped
  int64_t num_invalid_documents = 0;  // not UTF-8: dropped (skip_invalid_utf8)
  int64_t num_bad_rows = 0;           // cannot be used otherwise: dropped (skip_bad_rows)
  int64_t num_masked_rows = 0;        // all labels ignored, perhaps since they were cut: dropped
  int64_t num_cut_documents = 0;      // longer than max_length: cut (never with packing)
  int64_t num_cut_tokens = 0;         // tokens dropped by cutting
  int64_t num_empty_texts = 0;        // among num_documents; a cache file says whether there are any
};

// The counts that the trailer of a cache file holds, in its order.
inline constexpr std::pair<const char*, int64_t DocumentCounts::*> kStoredCounts[] = {
    {"num_documents", &DocumentCounts::num_documents},
    {"num_empty_documents", &DocumentCounts::num_empty_documents},
    {"num_invalid_documents", &DocumentCounts::num_invalid_documents},
    {"num_bad_rows", &DocumentCounts::num_bad_rows},
    {"num_masked_rows", &DocumentCounts::num_masked_rows},
    {"num_cut_documents", &DocumentCounts::num_cut_documents},
    {"num_cut_tokens", &DocumentCounts::num_cut_tokens},
};

}  // namespace tessera
