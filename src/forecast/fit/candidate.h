// The choices of a run per parameter: what it keeps in memory or on a disk, when it updates, and what it
// recomputes. `tessera plan --disk`, `tessera train --fit` and the advice of a run that does not fit search
// them.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "settings/spec_variants.h"

namespace tessera {

enum class FitAxis : size_t { kOptimizer, kState, kWeights, kUpdate, kActivations, kBase };
inline constexpr size_t kNumFitAxes = 6;

// A candidate, with the names of its choices in tables ("given" if the settings fix an axis), and the
// distance of its numbers from the exact ones: rounded weights beside adapters, rounded moments, another norm
// for clipping, compared in this order. 0 means no difference but the rounding of sums.
struct NamedCandidate {
  FitCandidate candidate;
  std::array<std::string, kNumFitAxes> words;
  std::array<int, 3> changes = {};

  const std::string& word(FitAxis axis) const { return words[static_cast<size_t>(axis)]; }
};

// The candidates that change nothing that was given, the simplest first. `spec` must be resolved.
std::vector<NamedCandidate> candidates_of(const RunSpec& spec);

// The settings in which the candidate differs from `spec`: "--optim adamw_8bit".
std::vector<std::string> candidate_flags(const RunSpec& spec, const FitCandidate& candidate);

}  // namespace tessera
