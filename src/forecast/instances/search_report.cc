#include "forecast/instances/search_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/text.h"
#include "forecast/instances/pareto.h"
#include "forecast/text/plan_text.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool is_within(const Combination& combination, const SearchView& view) {
  return combination.hours <= view.max_hours.value_or(INFINITY) &&
         money_of(combination, view) <= view.max_price.value_or(INFINITY);
}

std::vector<size_t> within_limits(const SearchResult& result, const SearchView& view) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < result.combinations.size(); ++i) {
    if (is_within(result.combinations[i], view)) indices.push_back(i);
  }
  return indices;
}

std::vector<Cost> costs_of(const SearchResult& result, const std::vector<size_t>& indices,
                           const SearchView& view) {
  std::vector<Cost> costs;
  for (const size_t i : indices) {
    costs.push_back({result.combinations[i].hours, money_of(result.combinations[i], view)});
  }
  return costs;
}

std::string in_gib(int64_t bytes) {
  const double gib = static_cast<double>(bytes) / (int64_t{1} << 30);
  if (gib < 1) return fmt::format("{:.2f}", gib);
  return gib < 100 ? three_digits(gib) : fmt::format("{:.0f}", gib);
}

// "4x2": nodes and ranks on each.
std::string ranks_text(const RunLayout& layout) {
  return fmt::format("{}x{}", layout.num_nodes, layout.local_world_size);
}

// "2", "3l" if weights are gathered layer by layer.
std::string zero_text(const RunLayout& layout) {
  return fmt::format("{}{}", layout.zero_stage, layout.schedule == GatherSchedule::kPerLayer ? "l" : "");
}

std::string table_line(const std::vector<std::string>& cells) {
  constexpr int kWidths[] = {15, 6, 4, 4, 5, 9, 7, 8, 6, 7};
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const int width = kWidths[i];
    line += i == 0 ? fmt::format("{:<{}}", cells[i], width) : fmt::format(" {:>{}}", cells[i], width);
  }
  return line + "\n";
}

std::string combination_line(const SearchResult& result, const Combination& each, const SearchView& view) {
  const Instance& instance = result.instances[each.instance];
  return table_line({instance.name, ranks_text(each.layout), zero_text(each.layout),
                     each.layout.gradient_checkpointing ? "yes" : "no",
                     std::to_string(each.layout.micro_batch_rows),
                     in_gib(result.used_bytes(each)) + "/" + in_gib(result.available_bytes(instance)),
                     three_digits(each.time.step_s()), three_digits(each.tokens_per_s),
                     three_digits(each.hours), three_digits(money_of(each, view))});
}

// `head` followed by the words, joined by ", ".
std::string listed(const std::string& head, std::vector<std::string> words) {
  for (size_t i = 0; i + 1 < words.size(); ++i) words[i] += ",";
  return wrapped(head, words, /*indent=*/4);
}

// Where and when the prices are from.
std::string price_text(const SearchResult& result, const SearchView& view) {
  std::set<std::string> origins;
  for (const Instance& instance : result.instances) {
    origins.insert(fmt::format("{} {} {}", instance.provider, instance.region, instance.date));
  }
  return listed(view.spot ? "prices   spot, estimated," : "prices   on demand,",
                {origins.begin(), origins.end()});
}

OrderedJson instance_json(const Instance& instance) {
  return {{"name", instance.name},
          {"provider", instance.provider},
          {"region", instance.region},
          {"date", instance.date},
          {"processor", instance.processor},
          {"vcpus", instance.num_vcpus},
          {"cores", instance.figures.num_cores},
          {"numa_nodes", instance.num_numa_nodes},
          {"memory_bytes", instance.memory_bytes},
          {"usable_bytes", instance.usable_bytes()},
          {"cards", instance.num_cards},
          {"card", instance.card.name},
          {"card_usable_bytes", instance.num_cards > 0 ? instance.card.usable_bytes() : 0},
          {"memory_gb_per_s", instance.figures.memory_gb_per_s},
          {"network_gbps", instance.figures.network_gbps},
          {"burst_gbps", instance.burst_gbps},
          {"efa_cards", instance.num_efa_cards},
          {"nvme_gb", instance.nvme_gb},
          {"usd_per_hour", instance.usd_per_hour},
          {"spot_share", instance.spot_share},
          {"unconfirmed", instance.estimates}};
}

OrderedJson combination_json(const SearchResult& result, const Combination& each) {
  const RunLayout& layout = each.layout;
  return {{"instance", result.instances[each.instance].name},
          {"num_nodes", layout.num_nodes},
          {"local_world_size", layout.local_world_size},
          {"num_threads", layout.num_threads},
          {"zero_stage", layout.zero_stage},
          {"gather_schedule", layout.schedule == GatherSchedule::kPerLayer ? "per_layer" : "per_step"},
          {"gradient_checkpointing", layout.gradient_checkpointing},
          {"per_device_train_batch_size", layout.micro_batch_rows},
          {"gradient_accumulation_steps", layout.accumulation},
          {"passes_per_step", each.passes_per_step},
          {"pack_weights", each.pack_weights},
          {"node_bytes", each.node_bytes},
          {"available_bytes", result.instances[each.instance].usable_bytes()},
          {"card_bytes", each.card_bytes},
          {"time", step_time_json(each.time)},
          {"tokens_per_s", each.tokens_per_s},
          {"hours", each.hours},
          {"usd", each.usd},
          {"spot_usd", each.spot_usd},
          {"kwh", each.kwh ? OrderedJson(*each.kwh) : OrderedJson()}};
}

}  // namespace

double money_of(const Combination& combination, const SearchView& view) {
  return view.spot ? combination.spot_usd : combination.usd;
}

std::vector<size_t> front_of(const SearchResult& result, const SearchView& view) {
  const std::vector<size_t> indices = within_limits(result, view);
  std::vector<size_t> front;
  for (const size_t i : pareto_front(costs_of(result, indices, view))) front.push_back(indices[i]);
  return front;
}

std::vector<size_t> ranked(const SearchResult& result, const SearchView& view) {
  std::vector<size_t> order =
      view.order == SearchOrder::kPareto ? front_of(result, view) : within_limits(result, view);
  const auto key = [&](size_t i) {
    const Combination& each = result.combinations[i];
    const double money = money_of(each, view);
    return view.order == SearchOrder::kPrice ? std::pair(money, each.hours) : std::pair(each.hours, money);
  };
  std::ranges::stable_sort(order, {}, key);
  if (std::ssize(order) > view.top) order.resize(static_cast<size_t>(view.top));
  return order;
}

std::optional<size_t> best_of(const SearchResult& result, const SearchView& view) {
  const std::vector<size_t> order = ranked(result, view);
  if (order.empty()) return std::nullopt;
  if (view.order != SearchOrder::kPareto) return order.front();
  return *std::ranges::min_element(order, {}, [&](size_t i) {
    return result.combinations[i].hours * money_of(result.combinations[i], view);
  });
}

std::string table_text(const SearchResult& result, const SearchView& view) {
  const JobSize& job = result.job;
  std::string text = fmt::format("model    {}\n", format_count(result.num_parameters, "parameter"));
  text += fmt::format("step     {} of at most {}\n", format_count(result.step_rows, "row"),
                      format_count(job.max_row_tokens, "token"));
  text += fmt::format("job      {}\n", job_text(job));
  text += price_text(result, view);
  const std::vector<size_t> order = ranked(result, view);
  if (order.empty()) return text;
  text += "\n" + table_line({"instance", "nodes", "zero", "ckpt", "rows", "GiB used", "step s", "tokens/s",
                             "hours", "USD"});
  for (const size_t i : order) text += combination_line(result, result.combinations[i], view);
  text += fmt::format(
      "nodes: x ranks on each; zero: stage, l gathers weights per layer; ckpt: gradient\n"
      "checkpointing; rows: of a micro-batch; GiB used: of a {}, of what it has\n",
      result.is_on_cards ? "card" : "node");
  return text;
}

std::string refusal_text(const SearchResult& result, const SearchView& view) {
  // By memory that is there; what is needed depends a little on the cores.
  struct Group {
    int64_t needed_bytes = 0;
    int num_nodes = 1;
    std::vector<std::string> names;
  };
  std::map<int64_t, Group> groups;
  std::map<std::string, std::vector<std::string>> without_layout;
  for (const Refusal& refusal : result.refusals) {
    const Instance& instance = result.instances[refusal.instance];
    if (refusal.needed_bytes == 0) {
      without_layout[refusal.why].push_back(instance.name);
      continue;
    }
    Group& group = groups[result.available_bytes(instance)];
    group.needed_bytes = std::max(group.needed_bytes, refusal.needed_bytes);
    group.num_nodes = refusal.num_nodes;
    group.names.push_back(instance.name);
  }
  std::string text;
  for (const auto& [usable_bytes, group] : groups) {
    text += listed(fmt::format("  {} of{} memory, {} needed on {}:", format_bytes(usable_bytes),
                               result.is_on_cards ? " a card's" : "", format_bytes(group.needed_bytes),
                               format_count(group.num_nodes, "node")),
                   group.names);
  }
  for (const auto& [why, names] : without_layout) text += listed(fmt::format("  {}:", why), names);
  const int64_t num_over = std::ssize(result.combinations) - std::ssize(within_limits(result, view));
  if (num_over > 0) {
    text += fmt::format("  above --max_hours or --max_price: {}\n", format_count(num_over, "combination"));
  }
  return text.empty() ? "" : "does not fit\n" + text;
}

std::string search_text(const SearchResult& result, const SearchView& view, const RunSpec& spec,
                        const ModelConfig& config, const std::string& commands) {
  std::string text = table_text(result, view);
  const std::string refusals = refusal_text(result, view);
  const std::optional<size_t> best = best_of(result, view);
  if (!best) return text + "\n" + refusals;
  const Combination& combination = result.combinations[*best];
  const Instance& instance = result.instances[combination.instance];
  const int num_nodes = combination.layout.num_nodes;
  text += fmt::format(
      "\nbest     {} of {}: {} hours\n         {} USD on demand, about {} as spot{}\n",
      format_count(num_nodes, "node"), instance.name, three_digits(combination.hours),
      three_digits(combination.usd), three_digits(combination.spot_usd),
      combination.kwh ? fmt::format(";\n         about {} kWh of processors", three_digits(*combination.kwh))
                      : "");
  text += fmt::format("time     {} s a step\n{}", three_digits(combination.time.step_s()),
                      indented(step_time_text(combination.time)));
  const MemoryPlan memory = memory_of(spec, config, result.job, instance, combination);
  text += "memory\n" + indented(memory_table(memory, result.available_bytes(instance)));
  text +=
      num_nodes > 1 ? "run      on every node, with its node_rank and the address of the first\n" : "run\n";
  text += indented(commands);
  return refusals.empty() ? text : text + "\n" + refusals;
}

std::string why_nothing_fits(const SearchResult& result, const SearchView& view) {
  if (best_of(result, view)) return "";
  if (!result.combinations.empty()) {
    const auto money = [&](const Combination& each) { return money_of(each, view); };
    return fmt::format(
        "no combination is within --max_hours and --max_price: the fastest takes {} hours, the cheapest {} "
        "USD",
        three_digits(std::ranges::min(result.combinations, {}, &Combination::hours).hours),
        three_digits(money(std::ranges::min(result.combinations, {}, money))));
  }
  int64_t needed = INT64_MAX, there = 0;
  std::set<std::string> reasons;
  for (const Refusal& refusal : result.refusals) {
    if (refusal.needed_bytes > 0) needed = std::min(needed, refusal.needed_bytes);
    there = std::max(there, result.available_bytes(result.instances[refusal.instance]));
    reasons.insert(refusal.why);
  }
  if (needed == INT64_MAX) {
    return fmt::format(
        "no instance type has a layout for the ranks asked for: {}: choose others with --nnodes and "
        "--nproc_per_node, or raise --global_batch_size if rows are too few",
        fmt::join(reasons, ", "));
  }
  return fmt::format(
      "the run fits on no instance type: a {} needs at least {}, the largest has {}: {}, or "
      "shorten --max_length",
      result.is_on_cards ? "card" : "node", format_bytes(needed), format_bytes(there),
      result.is_on_cards ? "use offload_param_device cpu" : "allow more with --max_nodes");
}

std::string search_json(const SearchResult& result, const SearchView& view, const std::string& command) {
  const std::vector<size_t> front = front_of(result, view);
  const std::optional<size_t> best = best_of(result, view);
  std::set<size_t> shown_instances;
  OrderedJson combinations = OrderedJson::array();
  for (const size_t i : within_limits(result, view)) {
    const Combination& each = result.combinations[i];
    shown_instances.insert(each.instance);
    combinations.push_back(combination_json(result, each));
    combinations.back()["is_on_front"] = std::ranges::find(front, i) != front.end();
    combinations.back()["is_best"] = best == i;
  }
  OrderedJson refusals = OrderedJson::array();
  for (const Refusal& refusal : result.refusals) {
    const Instance& instance = result.instances[refusal.instance];
    shown_instances.insert(refusal.instance);
    refusals.push_back({{"instance", instance.name},
                        {"num_nodes", refusal.num_nodes},
                        {"needed_bytes", refusal.needed_bytes},
                        {"available_bytes", instance.usable_bytes()}});
  }
  OrderedJson instances = OrderedJson::array();
  for (const size_t i : shown_instances) instances.push_back(instance_json(result.instances[i]));
  const OrderedJson out = {
      {"num_parameters", result.num_parameters},
      {"step_rows", result.step_rows},
      {"job", job_json(result.job)},
      {"num_tried", result.num_tried},
      {"instances", instances},
      {"combinations", combinations},
      {"refusals", refusals},
      {"best", best ? combination_json(result, result.combinations[*best]) : OrderedJson()},
      {"command", command}};
  return out.dump(2) + "\n";
}

}  // namespace tessera
