#include "cluster/network/network_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/median.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kMaxColumns = 9;  // of 7 characters, next to 14 for the node

std::string node_name(const NetworkMatrix& matrix, int node) {
  return fmt::format("node {} ({})", node, matrix.hosts[static_cast<size_t>(node)]);
}

std::string link_name(const NetworkMatrix& matrix, int from, int to) {
  return fmt::format("{} to {}", node_name(matrix, from), node_name(matrix, to));
}

// The slow links and nodes of one figure; `to_shown` turns what is compared into what is shown.
void add_slow(const NetworkMatrix& matrix, const SlowLinks& slow, const std::string& suffix,
              const std::string& figure, double (*to_shown)(double), std::vector<NetworkFinding>* findings) {
  const double typical = to_shown(slow.typical);
  for (const SlowNode& node : slow.nodes) {
    const double value = to_shown(node.value);
    findings->push_back(
        {.kind = "slow_node" + suffix,
         .from = node.sends ? node.node : -1,
         .to = node.sends ? -1 : node.node,
         .value = value,
         .typical = typical,
         .message = fmt::format(
             "{} {} most others with {}, typical is {}: look at its interface, port and host",
             node_name(matrix, node.node), node.sends ? "sends to" : "receives from",
             fmt::format(fmt::runtime(figure), value), fmt::format(fmt::runtime(figure), typical))});
  }
  for (const SlowLink& link : slow.links) {
    const double value = to_shown(link.value);
    findings->push_back(
        {.kind = "slow_link" + suffix,
         .from = link.from,
         .to = link.to,
         .value = value,
         .typical = typical,
         .message = fmt::format("{}: {}, typical is {}", link_name(matrix, link.from, link.to),
                                fmt::format(fmt::runtime(figure), value),
                                fmt::format(fmt::runtime(figure), typical))});
  }
}

double same(double value) { return value; }
// Latencies are compared as rates.
double inverse(double value) { return value > 0 ? 1 / value : 0; }

std::string cell(double value) {
  if (value <= 0) return "-";
  return value < 10     ? fmt::format("{:.2f}", value)
         : value < 1000 ? fmt::format("{:.1f}", value)
                        : fmt::format("{:.0f}", value);
}

std::string name_cell(const NetworkMatrix& matrix, int node) {
  return fmt::format("{:>3} {:<10.10}", node, matrix.hosts[static_cast<size_t>(node)]);
}

std::string full_table(const NetworkMatrix& matrix, const LinkMatrix& values) {
  std::string text = fmt::format("{:<14}", "from \\ to");
  for (int to = 0; to < values.num_nodes(); ++to) text += fmt::format("{:>7}", to);
  text += "\n";
  for (int from = 0; from < values.num_nodes(); ++from) {
    text += name_cell(matrix, from);
    for (int to = 0; to < values.num_nodes(); ++to) text += fmt::format("{:>7}", cell(values.at(from, to)));
    text += "\n";
  }
  return text;
}

// Least and median of what a node sends and receives.
std::string node_table(const NetworkMatrix& matrix, const LinkMatrix& values) {
  std::string text =
      fmt::format("{:<14}{:>12}{:>12}{:>12}{:>12}\n", "node", "sends, min", "median", "gets, min", "median");
  for (int node = 0; node < values.num_nodes(); ++node) {
    text += name_cell(matrix, node);
    for (const bool sends : {true, false}) {
      std::vector<double> links;
      for (int other = 0; other < values.num_nodes(); ++other) {
        const double value = sends ? values.at(node, other) : values.at(other, node);
        if (value > 0) links.push_back(value);
      }
      text += fmt::format("{:>12}{:>12}", links.empty() ? "-" : cell(std::ranges::min(links)),
                          links.empty() ? "-" : cell(median(links)));
    }
    text += "\n";
  }
  return text;
}

void append_table(const NetworkMatrix& matrix, const LinkMatrix& values, const std::string& title,
                  std::string* text) {
  *text += title + "\n";
  *text += values.num_nodes() <= kMaxColumns ? full_table(matrix, values) : node_table(matrix, values);
}

bool is_measured(LinkMatrix values) { return std::ranges::max(values.values()) > 0; }

OrderedJson matrix_json(const LinkMatrix& values) {
  OrderedJson rows = OrderedJson::array();
  for (int from = 0; from < values.num_nodes(); ++from) {
    OrderedJson row = OrderedJson::array();
    for (int to = 0; to < values.num_nodes(); ++to) {
      row.push_back(values.at(from, to) > 0 ? OrderedJson(values.at(from, to)) : OrderedJson());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::vector<NetworkFinding> judge_network(const NetworkMatrix& matrix, const NetworkLimits& limits) {
  std::vector<NetworkFinding> findings;
  const int num_nodes = matrix.gbit_per_s.num_nodes();
  for (int from = 0; from < num_nodes; ++from) {
    for (int to = from + 1; to < num_nodes; ++to) {
      if (matrix.unreachable.at(from, to) + matrix.unreachable.at(to, from) == 0) continue;
      findings.push_back(
          {.kind = "unreachable",
           .from = from,
           .to = to,
           .message = link_name(matrix, from, to) +
                      ": no connection, or it broke: check network policies, security groups and routes"});
    }
  }
  add_slow(matrix, find_slow_links(matrix.gbit_per_s, limits.min_share, limits.min_gbit_per_s), "",
           "{:.3g} Gbit/s", same, &findings);
  add_slow(matrix, find_slow_links(rates_of_latencies(matrix.latency_us), 1 / kSlowLatencyFactor), "_latency",
           "{:.0f} us", inverse, &findings);
  return findings;
}

std::string network_text(const NetworkMatrix& matrix, const std::vector<NetworkFinding>& findings) {
  std::string text;
  append_table(matrix, matrix.gbit_per_s, "Gbit/s with Tessera's transport", &text);
  if (is_measured(matrix.tcp_gbit_per_s))
    append_table(matrix, matrix.tcp_gbit_per_s, "Gbit/s of one TCP flow", &text);
  append_table(matrix, matrix.latency_us, "Latency in microseconds", &text);
  for (const NetworkFinding& finding : findings) text += finding.message + "\n";
  if (findings.empty()) text += "no link is slower than the others\n";
  return text;
}

OrderedJson network_json(const NetworkMatrix& matrix, const std::vector<NetworkFinding>& findings) {
  OrderedJson list = OrderedJson::array();
  const auto node_or_null = [](int node) { return node < 0 ? OrderedJson() : OrderedJson(node); };
  for (const NetworkFinding& finding : findings) {
    list.push_back({{"kind", finding.kind},
                    {"from", node_or_null(finding.from)},
                    {"to", node_or_null(finding.to)},
                    {"value", finding.value},
                    {"typical", finding.typical},
                    {"message", finding.message}});
  }
  LinkMatrix answers = matrix.latency_us;  // a second
  for (double& value : answers.values()) value = inverse(value);
  return {{"ok", findings.empty()},
          {"hosts", matrix.hosts},
          {"typical",
           {{"gbit_per_s", find_slow_links(matrix.gbit_per_s, 1).typical},
            {"latency_us", inverse(find_slow_links(answers, 1).typical)}}},
          {"gbit_per_s", matrix_json(matrix.gbit_per_s)},
          {"tcp_gbit_per_s", matrix_json(matrix.tcp_gbit_per_s)},
          {"latency_us", matrix_json(matrix.latency_us)},
          {"findings", list}};
}

}  // namespace tessera
