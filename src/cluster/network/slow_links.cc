#include "cluster/network/slow_links.h"

#include <algorithm>
#include <optional>

#include "base/median.h"

namespace tessera {
namespace {

double typical_link(const LinkMatrix& speeds) {
  std::vector<double> best;
  for (int node = 0; node < speeds.num_nodes(); ++node) {
    double fastest = 0;
    for (int other = 0; other < speeds.num_nodes(); ++other) {
      fastest = std::max({fastest, speeds.at(node, other), speeds.at(other, node)});
    }
    if (fastest > 0) best.push_back(fastest);
  }
  return best.empty() ? 0 : median(std::move(best));
}

struct Candidate {
  SlowNode node;
  double share = 0;  // of its measured links in that direction
};

// The direction of the node if its slow links outnumber the others.
std::optional<Candidate> candidate(const LinkMatrix& speeds, const std::vector<SlowLink>& slow, int node,
                                   bool sends) {
  std::vector<double> values;
  for (const SlowLink& link : slow) {
    if ((sends ? link.from : link.to) == node) values.push_back(link.value);
  }
  int64_t measured = 0;
  for (int other = 0; other < speeds.num_nodes(); ++other) {
    measured += (sends ? speeds.at(node, other) : speeds.at(other, node)) > 0;
  }
  const auto num_slow = std::ssize(values);
  if (num_slow < 2 || 2 * num_slow <= measured) return std::nullopt;
  return Candidate{{node, sends, median(std::move(values))},
                   static_cast<double>(num_slow) / static_cast<double>(measured)};
}

}  // namespace

std::vector<SlowLink> links_below(const LinkMatrix& speeds, double min_share, double min_value) {
  const double limit = std::max(min_share * typical_link(speeds), min_value);
  std::vector<SlowLink> links;
  for (int from = 0; from < speeds.num_nodes(); ++from) {
    for (int to = 0; to < speeds.num_nodes(); ++to) {
      const double value = speeds.at(from, to);
      if (value > 0 && value < limit) links.push_back({from, to, value});
    }
  }
  return links;
}

LinkMatrix rates_of_latencies(const LinkMatrix& latency_us) {
  constexpr double kMinSlowUs = 500;
  LinkMatrix rates = latency_us;
  for (double& value : rates.values()) {
    if (value > 0) value = 1 / std::max(value, kMinSlowUs / kSlowLatencyFactor);
  }
  return rates;
}

SlowLinks find_slow_links(const LinkMatrix& speeds, double min_share, double min_value) {
  SlowLinks found;
  found.typical = typical_link(speeds);
  found.links = links_below(speeds, min_share, min_value);
  // Two slow receivers make many senders look slow as well: the node that explains the most goes first, and
  // takes its links along.
  for (;;) {
    std::optional<Candidate> best;
    for (int node = 0; node < speeds.num_nodes(); ++node) {
      for (const bool sends : {true, false}) {
        const auto next = candidate(speeds, found.links, node, sends);
        if (next && (!best || next->share > best->share)) best = next;
      }
    }
    if (!best) break;
    found.nodes.push_back(best->node);
    std::erase_if(found.links, [&](const SlowLink& link) {
      return (best->node.sends ? link.from : link.to) == best->node.node;
    });
  }
  std::ranges::stable_sort(found.nodes, {}, &SlowNode::value);
  std::ranges::stable_sort(found.links, {}, &SlowLink::value);
  return found;
}

int num_rounds(int num_nodes) { return num_nodes < 2 ? 0 : num_nodes - 1 + num_nodes % 2; }

// The circle method: all but the last of an even number of nodes turn in a circle.
int partner_of(int node, int round, int num_nodes) {
  const int turning = num_nodes - 1 + num_nodes % 2;  // with an odd number, the last one is nobody
  int partner = turning;
  if (node != turning) {
    partner = (round - node % turning + turning) % turning;
    if (partner == node) partner = turning;
  } else {
    // 2 i = round modulo the odd number `turning`.
    partner = (round % 2 == 0 ? round : round + turning) / 2 % turning;
  }
  return partner < num_nodes ? partner : -1;
}

}  // namespace tessera
