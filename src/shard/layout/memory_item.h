// An entry in the memory ledger: its contents, its kind, and its holder.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

enum class MemoryKind { kWeights, kGradients, kOptimizer, kActivations, kBuffers, kProgram };

inline constexpr std::array kMemoryKinds = {MemoryKind::kWeights,   MemoryKind::kGradients,
                                            MemoryKind::kOptimizer, MemoryKind::kActivations,
                                            MemoryKind::kBuffers,   MemoryKind::kProgram};

std::string_view memory_kind_name(MemoryKind kind);  // "weights"

enum class MemoryScope {
  kRank,      // every rank has its own
  kNode,      // one copy mapped by all ranks of a node
  kFirstRank  // only the first rank of a node
};

std::string_view memory_scope_name(MemoryScope scope);  // "rank", "node", "first rank"

enum class MemoryUse {
  kStep,   // from the first step on
  kSaving  // once weights are saved
};

std::string_view memory_use_name(MemoryUse use);  // "step", "saving"

struct MemoryItem {
  MemoryKind kind = MemoryKind::kBuffers;
  MemoryScope scope = MemoryScope::kRank;
  std::string name;        // within its kind: "exp_avg, exp_avg_sq"
  int64_t size_bytes = 0;  // per rank or per node
  MemoryUse use = MemoryUse::kStep;
  bool on_device = false;  // in the memory of the model's device, which is not the host's
};

}  // namespace tessera
