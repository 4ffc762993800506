// Decides who failed first from the available evidence. Evidence differs in strength: a process that ended
// another or saw it end knows why; a lost connection shows that it ended, not why; and a member that times
// out waiting for another may only be the second in a chain. So weaker evidence waits briefly for stronger.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "comm/ranks/failure.h"

namespace tessera {

// A member of a job: a rank, or the agent of a node.
struct MemberId {
  bool is_agent = false;
  int index = 0;  // rank or node
  auto operator<=>(const MemberId&) const = default;
};

// advance() tells it the time, excluding time during which the process itself was stopped.
class Verdict {
 public:
  using Duration = std::chrono::duration<double>;

  Verdict(Duration lost_grace, Duration suspicion_grace)
      : lost_grace_(lost_grace), suspicion_grace_(suspicion_grace) {}

  // First-hand report by the member itself (reporting_node = -1) or by the agent of `reporting_node`. Final,
  // unless another member was lost before: whatever ends after the first culprit is a consequence. An agent,
  // however, knows which of its ranks was first.
  void report(MemberId culprit, int reporting_node, const Failure& failure);
  // The member's connection ended. Waits for a report about it, or for news that the agent of its node is
  // gone, which ends the node's ranks.
  void lost(MemberId culprit, int node_rank, const Failure& failure);
  // The member was silent for too long. Final, unless a member was lost before.
  void silent(MemberId culprit, const Failure& failure);
  // Rank `by_rank` timed out waiting. Waits for anything stronger; then blames the suspect that suspects no
  // other. A suspicion with a code other than kTryAgain reports a mismatch between ranks: final, unless a
  // member was lost before.
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
  std::map<int, Failure> suspicions_;  // by suspecting rank
  int first_suspecter_ = -1;
  Duration suspicion_left_{0};
};

}  // namespace tessera
