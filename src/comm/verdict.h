// Who failed first, from what is known of it. Evidence differs in worth: who ended a process or saw it end
// knows why; a lost connection says that, not why; and a member that waits in vain for another may only be
// the second in a chain. So weaker evidence waits a little for better.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "comm/failure.h"

namespace tessera {

// A member of a job: a rank, or the agent of a node.
struct MemberId {
  bool is_agent = false;
  int index = 0;  // rank or node
  auto operator<=>(const MemberId&) const = default;
};

// Time is told by advance(), which is not called for time the process stood still.
class Verdict {
 public:
  using Duration = std::chrono::duration<double>;

  Verdict(Duration lost_grace, Duration suspicion_grace)
      : lost_grace_(lost_grace), suspicion_grace_(suspicion_grace) {}

  // First-hand: by the member itself, or by the agent of `watched_node` (-1: by itself). Final, unless
  // another member was lost before: what ends after the first culprit is a consequence. But an agent knows
  // which of its ranks was first.
  void report(MemberId culprit, int watched_node, const Failure& failure);
  // Its connection ended. Waits for a report about it, or for news that the agent of its node is gone, which
  // ends the node's ranks.
  void lost(MemberId culprit, int node_rank, const Failure& failure);
  // Not heard of for too long. Final, unless a member was lost before.
  void silent(MemberId culprit, const Failure& failure);
  // `by` waits in vain. Waits for anything better; then counts the suspect that suspects nobody itself. A
  // suspicion with another code than kTryAgain is of ranks that were found at odds: final, unless a member
  // was lost before.
  void suspect(int by_rank, const Failure& suspicion);

  void advance(Duration elapsed);

  const std::optional<Failure>& decided() const { return decided_; }

 private:
  struct Lost {
    MemberId culprit;
    int node_rank;
    Failure failure;
    Duration left;
  };
  void decide_among_suspects();

  Duration lost_grace_;
  Duration suspicion_grace_;
  std::optional<Failure> decided_;
  std::optional<Lost> lost_;
  std::map<int, Failure> suspicions_;  // by rank of who suspects
  int first_suspecter_ = -1;
  Duration suspicion_left_{0};
};

}  // namespace tessera
