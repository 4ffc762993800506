#include "comm/ranks/verdict.h"

#include <set>

namespace tessera {

void Verdict::report(MemberId culprit, int reporting_node, const Failure& failure) {
  if (decided_) return;
  if (lost_ && culprit != lost_->culprit && reporting_node != lost_->node_rank) return;
  decided_ = failure;
}

void Verdict::lost(MemberId culprit, int node_rank, const Failure& failure) {
  if (decided_) return;
  if (!lost_) {
    lost_ = Lost{.culprit = culprit, .node_rank = node_rank, .failure = failure, .left = lost_grace_};
  } else if (culprit.is_agent && !lost_->culprit.is_agent && culprit.index == lost_->node_rank) {
    // Ranks end with their agent, and their connections may close first.
    lost_->culprit = culprit;
    lost_->failure = failure;
  }
}

void Verdict::silent(MemberId, const Failure& failure) {
  if (decided_ || lost_) return;
  decided_ = failure;
}

void Verdict::suspect(int by_rank, const Failure& suspicion) {
  if (decided_) return;
  if (suspicion.code != ExitCode::kTryAgain && !lost_) {
    decided_ = suspicion;
    return;
  }
  if (suspicions_.empty()) {
    first_suspecter_ = by_rank;
    suspicion_left_ = suspicion_grace_;
  }
  suspicions_.try_emplace(by_rank, suspicion);
}

void Verdict::advance(Duration elapsed) {
  if (decided_) return;
  if (lost_) {
    lost_->left -= elapsed;
    if (lost_->left.count() <= 0) decided_ = lost_->failure;
    return;
  }
  if (suspicions_.empty()) return;
  suspicion_left_ -= elapsed;
  if (suspicion_left_.count() <= 0) decide_among_suspects();
}

void Verdict::decide_among_suspects() {
  // Rank 0 waits for 1, 1 for 2: follow the chain from the first suspecter. A cycle ends where it began.
  std::set<int> seen;
  auto at = suspicions_.find(first_suspecter_);
  for (;;) {
    seen.insert(at->first);
    const auto next = suspicions_.find(at->second.rank);
    if (next == suspicions_.end() || seen.contains(next->first)) break;
    at = next;
  }
  decided_ = at->second;
}

}  // namespace tessera
