#include "launch/job/rank_findings.h"

#include "base/error.h"
#include "platform/system.h"

namespace tessera {

RankFindings examine_ranks(const NodeProcessors& node, const std::vector<InterfaceAddress>& interfaces) {
  RankFindings f;
  f.auto_ranks = num_numa_nodes(node);
  const ProcessorAssignment assignment = assign_processors(node, f.auto_ranks);
  f.threads_per_rank = assignment.ranks.front().num_threads;
  f.processors_message = assignment.message;
  f.interfaces = interfaces;
  World world;
  world.num_nodes = 2;
  world.host = host_name();
  try {
    f.told = choose_local_address(world, "127.0.0.1", "", interfaces);
  } catch (const Error& error) {
    f.told_error = error.what();
  }
  f.open_files = open_file_limit();
  return f;
}

void examine_fabrics(RankFindings* findings) {
  try {
    findings->fabrics = list_fabrics();
  } catch (const Error& error) {
    findings->fabrics_error = error.what();
  }
}

}  // namespace tessera
