// The ways in which documents become rows.
#pragma once

namespace tessera {

enum class Packing {
  kNone,      // one row per document, cut to max_length; no padding exists
  kIsolated,  // documents joined by EOS and cut to max_length; attention and targets stay inside a document
  kJoined,    // the same rows, but a row is one sequence: attention and targets cross documents
  // TRL 1.16's packings, 1000 documents at a time.
  kBestFit,       // bfd: documents cut to max_length, in rows by best_fit_decreasing(), isolated
  kBestFitSplit,  // bfd_split: the same for pieces of max_length tokens
  kWrapped,       // wrapped: as kJoined
  // LLaMA-Factory's packing (neat_packing), also 1000 documents at a time: rows of max_length - 1 tokens by
  // greedy_knapsack(), isolated; longer documents are cut.
  kKnapsack,
  kByRows,  // kIsolated for text files, kBestFit for rows of JSON files and tables
};

}  // namespace tessera
