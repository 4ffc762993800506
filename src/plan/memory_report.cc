// The memory of a run as text and JSON.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "plan/memory_plan.h"

namespace tessera {
namespace {

// Non-empty for items that not every rank has its own copy of.
const char* scope_text(MemoryScope scope, const MemoryPlan& plan) {
  if (plan.local_world_size == 1 || scope == MemoryScope::kRank) return "";
  return scope == MemoryScope::kNode ? ", shared" : ", first rank";
}

// One line of the table. A rank has an equal share of `node_bytes`.
struct TableLine {
  std::string kind;
  std::string name;
  int64_t node_bytes = 0;
  bool is_of_node = false;  // the columns for rank and job stay empty
};

std::string table_text(const std::vector<TableLine>& lines, int num_nodes, int local_world_size) {
  const bool many = num_nodes * local_world_size > 1;
  size_t kind_width = 0, name_width = 0;
  for (const TableLine& line : lines) {
    kind_width = std::max(kind_width, line.kind.size());
    name_width = std::max(name_width, line.name.size());
  }
  std::string text;
  const auto add = [&](const TableLine& line, const std::string& columns) {
    text += fmt::format("{:<{}}  {:<{}}{}\n", line.kind, kind_width, line.name, name_width, columns);
  };
  if (many) {
    add({}, fmt::format("  {:>9}  {:>9}  {:>9}", "a rank", "a node",
                        num_nodes == 1 ? "" : fmt::format("{} nodes", num_nodes)));
  }
  for (const TableLine& line : lines) {
    const std::string node = format_bytes(line.node_bytes);
    if (!many) {
      add(line, fmt::format("  {:>9}", node));
    } else if (line.is_of_node) {
      add(line, fmt::format("  {:>9}  {:>9}", "", node));
    } else {
      add(line, fmt::format("  {:>9}  {:>9}  {:>9}", format_bytes(line.node_bytes / local_world_size), node,
                            num_nodes == 1 ? "" : format_bytes(line.node_bytes * num_nodes)));
    }
  }
  // Remove the spaces that empty columns leave.
  std::string trimmed;
  for (const char c : text) {
    if (c == '\n') trimmed.erase(trimmed.find_last_not_of(' ') + 1);
    trimmed += c;
  }
  return trimmed;
}

}  // namespace

std::string memory_table(const MemoryPlan& plan, int64_t free_bytes) {
  const bool many = plan.num_nodes * plan.local_world_size > 1;
  std::vector<TableLine> lines;
  const auto add_items = [&](bool on_device) {
    std::string_view last_kind;
    for (const MemoryItem& item : plan.items) {
      if (item.on_device != on_device) continue;
      const std::string_view kind = memory_kind_name(item.kind);
      lines.push_back({kind == last_kind ? "" : std::string(kind), item.name + scope_text(item.scope, plan),
                       plan.bytes_on_node(item)});
      last_kind = kind;
    }
  };
  if (!plan.device.empty()) {
    add_items(/*on_device=*/true);
    lines.push_back({"total", plan.device, plan.device_bytes()});
    lines.push_back({"free", plan.device, free_bytes, true});
    add_items(/*on_device=*/false);
    lines.push_back({"total", "host", plan.node_bytes()});
    return table_text(lines, plan.num_nodes, plan.local_world_size);
  }
  add_items(/*on_device=*/false);
  lines.push_back({"total", "", plan.node_bytes()});
  lines.push_back({"free", many ? "on this node" : "for this process", free_bytes, true});
  return table_text(lines, plan.num_nodes, plan.local_world_size);
}

std::string measured_table(const MemoryPlan& plan, const MeasuredMemory& measured) {
  const auto line = [](const char* name, int64_t predicted, int64_t found) {
    return fmt::format("{:<18}  {:>10}  {:>10}\n", name, format_bytes(predicted), format_bytes(found));
  };
  std::string text = fmt::format("{:<18}  {:>10}  {:>10}\n", "", "predicted", "measured");
  const NodeMemory predicted = plan.step_memory();
  if (predicted.shared_bytes > 0) {
    text += line("private, all ranks", predicted.private_bytes, measured.private_bytes);
    text += line("shared", predicted.shared_bytes, measured.shared_bytes);
  }
  if (!plan.device.empty()) text += line("card", plan.device_bytes(), measured.device_bytes);
  return text + line(plan.device.empty() ? "a node" : "host", predicted.node_bytes(), measured.node_bytes());
}

nlohmann::ordered_json memory_items_json(const MemoryPlan& plan) {
  nlohmann::ordered_json items = nlohmann::ordered_json::array();
  for (const MemoryItem& item : plan.items) {
    items.push_back({{"kind", memory_kind_name(item.kind)},
                     {"name", item.name},
                     {"scope", memory_scope_name(item.scope)},
                     {"use", memory_use_name(item.use)},
                     {"bytes", item.size_bytes}});
    if (item.on_device) items.back()["on_device"] = true;
  }
  return items;
}

std::string memory_json(const MemoryPlan& plan, const MeasuredMemory& measured) {
  const NodeMemory step = plan.step_memory();
  nlohmann::ordered_json out = {{"num_nodes", plan.num_nodes},
                                {"local_world_size", plan.local_world_size},
                                {"predicted",
                                 {{"node_bytes", step.node_bytes()},
                                  {"private_bytes", step.private_bytes},
                                  {"shared_bytes", step.shared_bytes},
                                  {"saving_bytes", plan.node_bytes() - step.node_bytes()},
                                  {"items", memory_items_json(plan)}}},
                                {"measured",
                                 {{"node_bytes", measured.node_bytes()},
                                  {"private_bytes", measured.private_bytes},
                                  {"shared_bytes", measured.shared_bytes},
                                  {"loading_peak_bytes", measured.loading_peak_bytes}}}};
  if (!plan.device.empty()) {
    out["device"] = plan.device;
    out["predicted"]["device_bytes"] = plan.device_bytes();
    out["measured"]["device_bytes"] = measured.device_bytes;
  }
  return out.dump(2) + "\n";
}

}  // namespace tessera
