#include "shard/update/update_rule.h"

namespace tessera {

void GroupUpdate::run(int64_t group, int64_t next, const OptimizerStep& step,
                      const ChangeHook& before_change) const {
  for (const Part& own : {plan.part(group, rank), plan.expert_part(group, rank)}) {
    if (before_change && own.size() > 0) before_change({own.begin, own.end});
  }
  const auto first = [&](int64_t of) { return first_range[static_cast<size_t>(of)]; };
  state.announce(first(next), first(next + 1));
  state.update(first(group), first(group + 1), step);
  weights.written(group);
}

void UpdateAfterStep::update(const OptimizerStep& step, const ChangeHook& before_change) {
  const int64_t num_groups = group_update_.num_groups();
  for (int64_t group = 0; group < num_groups; ++group) {
    group_update_.run(group, (group + 1) % num_groups, step, before_change);
    group_update_.weights.updated(group);
  }
}

}  // namespace tessera
