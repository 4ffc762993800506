#include "train/memory_plan.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/piece_codec.h"
#include "checkpoint/shared_export.h"
#include "train/peer_snapshots.h"
#include "train/sharded_parameters.h"
#include "zero/shard_plan.h"

namespace tessera {
namespace {

constexpr const char* kBaselineName = "resident before the model";

// Pages of the program and its libraries that are touched, and kernels that oneDNN makes, in the first step.
// Measured for one rank, and for each of four, which share the pages of files: 0.5 and 0 MiB for BF16 with
// AMX, 2.5 and 1 with AVX-512 BF16, 8 and 5 with AVX-512, 4 and 2 for F32.
constexpr int64_t kFirstUseBytes = 2 << 20;

constexpr int kMaxAdvisedNodes = 4096;

// Of one micro-batch: ids, positions and targets of PackedBatch, ids and labels of the row being read.
int64_t batch_bytes(const ActivationLimits& limits) {
  return (3 * limits.max_tokens + 2 * limits.max_sequence_length) * static_cast<int64_t>(sizeof(int32_t));
}

// "weights: complete (BF16)".
std::string full_name(const MemoryItem& item) {
  return fmt::format("{}: {}", memory_kind_name(item.kind), item.name);
}

int64_t bytes_of_node(const MemoryItem& item, int local_world_size) {
  return item.scope == MemoryScope::kRank ? item.size_bytes * local_world_size : item.size_bytes;
}

// "moments (F32) 12.0 GiB, ..."; the table has all of them.
std::string largest_items(MemoryPlan plan) {
  constexpr size_t kNumShown = 3;
  std::erase_if(plan.items, [](const MemoryItem& item) { return item.name == kBaselineName; });
  const auto size = [&](const MemoryItem& item) { return bytes_of_node(item, plan.local_world_size); };
  std::ranges::stable_sort(plan.items, std::greater(), size);
  if (plan.items.size() > kNumShown) plan.items.resize(kNumShown);
  std::vector<std::string> names;
  for (const MemoryItem& item : plan.items) names.push_back(full_name(item) + " " + format_bytes(size(item)));
  return fmt::format("{}", fmt::join(names, ", "));
}

int64_t bytes_of_scope(const MemoryPlan& plan, MemoryScope scope) {
  int64_t total = 0;
  for (const MemoryItem& item : plan.items) total += item.scope == scope ? item.size_bytes : 0;
  return total;
}

// Where not every rank has its own.
const char* scope_text(MemoryScope scope, const MemoryPlan& plan) {
  if (plan.local_world_size == 1 || scope == MemoryScope::kRank) return "";
  return scope == MemoryScope::kNode ? ", shared" : ", first rank";
}

// One line of the table. `node_bytes` of a node, of which a rank has an equal share.
struct TableLine {
  std::string kind;
  std::string name;
  int64_t node_bytes = 0;
  bool is_of_node = false;  // says nothing about rank and job
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
    add({}, fmt::format("  {:>10}  {:>10}  {:>10}", "a rank", "a node",
                        num_nodes == 1 ? "" : fmt::format("{} nodes", num_nodes)));
  }
  for (const TableLine& line : lines) {
    const std::string node = format_bytes(line.node_bytes);
    if (!many) {
      add(line, fmt::format("  {:>10}", node));
    } else if (line.is_of_node) {
      add(line, fmt::format("  {:>10}  {:>10}", "", node));
    } else {
      add(line, fmt::format("  {:>10}  {:>10}  {:>10}", format_bytes(line.node_bytes / local_world_size),
                            node, num_nodes == 1 ? "" : format_bytes(line.node_bytes * num_nodes)));
    }
  }
  // Empty columns leave spaces behind.
  std::string trimmed;
  for (const char c : text) {
    if (c == '\n') trimmed.erase(trimmed.find_last_not_of(' ') + 1);
    trimmed += c;
  }
  return trimmed;
}

int64_t largest_shard(const Model& model, const MemoryRequest& request) {
  const ZeroLayout layout = zero_layout(model.layout(), request.num_nodes, request.local_world_size);
  return ShardPlan(layout.groups, layout.alignment, layout.num_nodes, layout.local_world_size)
      .largest_shard();
}

// Each kept change is part of all that follow.
class AlternativeList {
 public:
  AlternativeList(const MemoryRequest& request, const MemoryChoices& choices)
      : request_(request), choices_(choices) {}

  void change_buffers() {
    if (request_.limits.pack_weights) {
      request_.limits.pack_weights = false;
      keep("pack_weights never");
    }
    if (request_.peer_snapshots) {
      request_.peer_snapshots = false;
      keep("peer_snapshot_steps 0");
    }
    if (choices_.micro_batches_per_pass > 1) {
      request_.zero.passes_per_step *= choices_.micro_batches_per_pass;
      set_limits(choices_.batch_size, request_.limits.max_sequence_length,
                 request_.limits.gradient_checkpointing);
      keep("merge_micro_batches never");
    }
  }

  // Between nodes.
  void change_sharding() {
    ZeroSettings& zero = request_.zero;
    if (zero.stage < 3) {
      zero.stage = 3;
      keep("zero_stage 3");
    }
    if (zero.schedule == GatherSchedule::kPerStep) {
      zero.schedule = GatherSchedule::kPerLayer;
      keep("gather_schedule per_layer");
    }
  }

  void change_rows() {
    const int64_t batch_size = choices_.batch_size;
    const int64_t num_passes = request_.zero.passes_per_step;
    const int64_t longest = request_.limits.max_sequence_length;
    const bool checkpointing = request_.limits.gradient_checkpointing;
    const std::string with_checkpointing = checkpointing ? "" : "gradient_checkpointing true and ";
    if (!checkpointing) {
      set_limits(batch_size, longest, true);
      offer("gradient_checkpointing true");
    }
    for (int64_t size = batch_size / 2; size >= 1; size /= 2) {
      const std::string change = fmt::format("per_device_train_batch_size {}", size);
      if (choices_.keeps_global_batch) {
        request_.zero.passes_per_step = (num_passes * batch_size + size - 1) / size;
      }
      set_limits(size, longest, checkpointing);
      offer(change);
      if (checkpointing) continue;
      set_limits(size, longest, true);
      offer(with_checkpointing + change);
    }
    for (int64_t length = longest / 2; length >= 64; length /= 2) {
      set_limits(1, length, true);
      offer(fmt::format("{}{}max_length {}", with_checkpointing,
                        batch_size == 1 ? "" : "per_device_train_batch_size 1 and ", length));
    }
  }

  std::vector<MemoryAlternative> take() { return std::move(list_); }

 private:
  void set_limits(int64_t batch_size, int64_t max_row_length, bool gradient_checkpointing) {
    const bool pack_weights = request_.limits.pack_weights;
    request_.limits = choices_.limits_for(batch_size, max_row_length, gradient_checkpointing);
    request_.limits.pack_weights = pack_weights;
  }

  void keep(const std::string& change) {
    offer(change);
    kept_ += change + " and ";
  }

  void offer(const std::string& change) { list_.push_back({kept_ + change, request_}); }

  MemoryRequest request_;
  const MemoryChoices& choices_;
  std::string kept_;
  std::vector<MemoryAlternative> list_;
};

}  // namespace

int64_t MemoryPlan::private_bytes() const { return bytes_of_scope(*this, MemoryScope::kRank); }

int64_t MemoryPlan::shared_bytes() const { return bytes_of_scope(*this, MemoryScope::kNode); }

int64_t MemoryPlan::node_bytes() const {
  return local_world_size * private_bytes() + bytes_of_scope(*this, MemoryScope::kFirstRank) + shared_bytes();
}

NodeMemory MemoryPlan::step_memory() const {
  NodeMemory memory;
  for (const MemoryItem& item : items) {
    if (item.use == MemoryUse::kSaving) continue;
    (item.scope == MemoryScope::kNode ? memory.shared_bytes : memory.private_bytes) +=
        bytes_of_node(item, local_world_size);
  }
  return memory;
}

ZeroLayout zero_layout(const ParameterLayout& layout, int num_nodes, int local_world_size) {
  ZeroLayout out;
  for (const ParameterLayout::Group& group : layout.groups()) out.groups.push_back({group.begin, group.end});
  out.alignment = kParameterAlignment;
  out.num_nodes = num_nodes;
  out.local_world_size = local_world_size;
  return out;
}

ZeroSettings zero_settings(const Model& model, const MemoryRequest& request) {
  ZeroSettings settings = request.zero;
  settings.weight_dtype = model.dtype();
  return settings;
}

bool can_keep_packed_weights(const Model& model, const MemoryRequest& request) {
  return !shards_weights(zero_layout(model.layout(), request.num_nodes, request.local_world_size),
                         zero_settings(model, request));
}

void check_packed_weights(const Model& model, const MemoryRequest& request) {
  if (!request.limits.pack_weights || can_keep_packed_weights(model, request)) return;
  fail(ExitCode::kBadConfig,
       "pack_weights always does not go with gather_schedule per_layer on {}: a layer's weights leave a "
       "node before they are used again, and would be packed for every use; take pack_weights auto or "
       "gather_schedule per_step",
       count_of(request.num_nodes, "node"));
}

MemoryPlan plan_memory(const Model& model, const MemoryRequest& request) {
  const ActivationBytes activations = model.activation_bytes(request.limits);
  MemoryPlan plan;
  plan.num_nodes = request.num_nodes;
  plan.local_world_size = request.local_world_size;
  plan.items = zero_memory_items(zero_layout(model.layout(), request.num_nodes, request.local_world_size),
                                 zero_settings(model, request));
  const auto add = [&](MemoryKind kind, const char* name, int64_t size_bytes,
                       MemoryScope scope = MemoryScope::kRank, MemoryUse use = MemoryUse::kStep) {
    if (size_bytes > 0) plan.items.push_back({kind, scope, name, size_bytes, use});
  };
  if (activations.packed_bytes > 0 && can_keep_packed_weights(model, request)) {
    const bool single = request.num_nodes * request.local_world_size == 1;
    plan.items.push_back({MemoryKind::kWeights, single ? MemoryScope::kRank : MemoryScope::kNode,
                          "packed for the products", activations.packed_bytes});
  }
  add(MemoryKind::kActivations, "kept for backward", activations.saved_bytes);
  add(MemoryKind::kActivations, "at work, logits included", activations.working_bytes);
  add(MemoryKind::kActivations, "workspace of the products", activations.workspace_bytes);
  add(MemoryKind::kBuffers, "micro-batch", batch_bytes(request.limits));
  add(MemoryKind::kBuffers, "writing weights", request.export_bytes,
      request.first_rank_exports ? MemoryScope::kFirstRank : MemoryScope::kRank, MemoryUse::kSaving);
  if (request.first_rank_exports) {
    add(MemoryKind::kBuffers, "exchange of masters", kExchangeBytes, MemoryScope::kNode, MemoryUse::kSaving);
  }
  add(MemoryKind::kBuffers, "checkpoint snapshot", request.snapshot_bytes, MemoryScope::kRank,
      MemoryUse::kSaving);
  if (request.peer_snapshots) {
    add(MemoryKind::kBuffers, "peer snapshots",
        request.local_world_size * peer_snapshot_bytes(largest_shard(model, request), request.num_nodes),
        MemoryScope::kNode);
    add(MemoryKind::kBuffers, "network, peer snapshots",
        request.num_nodes > 1 ? 2 * NetworkGroup::buffer_bytes(2, request.connections) : 0);
  }
  add(MemoryKind::kBuffers, "network", NetworkGroup::buffer_bytes(request.num_nodes, request.connections));
  add(MemoryKind::kProgram, "code and kernels, first use", kFirstUseBytes);
  add(MemoryKind::kProgram, kBaselineName, request.baseline_bytes);
  std::stable_sort(plan.items.begin(), plan.items.end(),
                   [](const MemoryItem& a, const MemoryItem& b) { return a.kind < b.kind; });
  return plan;
}

int64_t snapshot_bytes(const Model& model, const MemoryRequest& request, int64_t free_bytes) {
  // Of an element: the model's value, at most 4 more of the master, two moments.
  const int64_t element_bytes = dtype_bytes(model.dtype()) + 3 * dtype_bytes(DType::kF32);
  const int64_t room = (free_bytes - needed_bytes(model, request)) / request.local_world_size;
  return std::clamp<int64_t>(room / 2, 0, largest_shard(model, request) * element_bytes);
}

int64_t export_bytes(const ParameterLayout& layout, DType save_dtype, const MemoryRequest& request) {
  const bool is_single = request.num_nodes * request.local_world_size == 1;
  if (!is_single && !request.first_rank_exports) {
    return std::max(SharedExport::buffer_bytes(save_dtype),
                    encoded_sizes(kStatePieceElements, save_dtype).total_bytes);
  }
  constexpr int64_t kPieceBytes = 4 << 20;  // of write_safetensors
  int64_t largest = 0;
  for (const Parameter& parameter : layout.parameters()) largest = std::max(largest, parameter.num_elements);
  return kPieceBytes + std::min(largest, kPieceBytes / dtype_bytes(save_dtype)) * dtype_bytes(DType::kF32);
}

int64_t needed_bytes(const Model& model, const MemoryRequest& request) {
  return plan_memory(model, request).node_bytes() - request.local_world_size * request.baseline_bytes;
}

std::vector<MemoryAlternative> memory_alternatives(const MemoryRequest& request,
                                                   const MemoryChoices& choices) {
  AlternativeList list(request, choices);
  list.change_buffers();
  if (request.num_nodes > 1) list.change_sharding();
  list.change_rows();
  return list.take();
}

std::optional<int> nodes_that_fit(const Model& model, const MemoryRequest& request, int64_t free_bytes,
                                  int max_nodes) {
  const auto fits_on = [&](int nodes) {
    MemoryRequest larger = request;
    larger.num_nodes = nodes;
    if (nodes != request.num_nodes) {
      // Several ranks write through other buffers than one does. Those of float32 are the largest.
      larger.export_bytes = std::max(request.export_bytes, export_bytes(model.layout(), DType::kF32, larger));
    }
    return needed_bytes(model, larger) <= free_bytes;
  };
  // In doubling steps, then one by one between the last two.
  int below = request.num_nodes - 1;
  for (int nodes = request.num_nodes; below < max_nodes; nodes = std::min(2 * nodes, max_nodes)) {
    if (fits_on(nodes)) {
      do ++below;
      while (!fits_on(below));
      return below;
    }
    below = nodes;
  }
  return std::nullopt;
}

namespace {

// With every part of the model sharded over the nodes, and the weights there one layer after the other.
MemoryAlternative sharded(MemoryAlternative alternative) {
  const auto change = [&alternative](const char* text) {
    alternative.change += (alternative.change.empty() ? "" : " and ") + std::string(text);
  };
  MemoryRequest& request = alternative.request;
  if (std::exchange(request.limits.pack_weights, false)) change("pack_weights never");
  if (std::exchange(request.zero.stage, 3) < 3) change("zero_stage 3");
  if (std::exchange(request.zero.schedule, GatherSchedule::kPerLayer) != GatherSchedule::kPerLayer) {
    change("gather_schedule per_layer");
  }
  return alternative;
}

// "5 nodes of one rank would do with these settings", or with the first of the alternatives under which some
// number of nodes would; "" when none does.
std::string node_advice(const Model& model, const MemoryRequest& request, int64_t free_bytes,
                        const std::vector<MemoryAlternative>& alternatives) {
  std::vector<MemoryAlternative> candidates = {{"", request}, sharded({"", request})};
  for (const MemoryAlternative& alternative : alternatives) candidates.push_back(sharded(alternative));
  for (const MemoryAlternative& candidate : candidates) {
    const std::optional<int> nodes = nodes_that_fit(model, candidate.request, free_bytes, kMaxAdvisedNodes);
    if (!nodes) continue;
    return fmt::format(
        "{} nodes of {} would do with {}", format_count(*nodes),
        request.local_world_size == 1 ? "one rank" : fmt::format("{} ranks", request.local_world_size),
        candidate.change.empty() ? "these settings" : candidate.change);
  }
  return "";
}

// What would make it fit: settings, nodes.
std::string memory_advice(const Model& model, const MemoryRequest& request, int64_t free_bytes,
                          const std::vector<MemoryAlternative>& alternatives) {
  const std::string nodes = node_advice(model, request, free_bytes, alternatives);
  const auto fitting = std::find_if(alternatives.begin(), alternatives.end(), [&](const auto& alternative) {
    return needed_bytes(model, alternative.request) <= free_bytes;
  });
  if (fitting == alternatives.end() && nodes.empty()) {
    return "no setting and no number of nodes makes it fit: take a smaller model or machines with more "
           "memory";
  }
  if (fitting == alternatives.end()) {
    return fmt::format("no setting makes it fit on {}; {}",
                       request.num_nodes == 1 ? "one node" : fmt::format("{} nodes", request.num_nodes),
                       nodes);
  }
  return fmt::format("with {} it would take {}{}", fitting->change,
                     format_bytes(needed_bytes(model, fitting->request)), nodes.empty() ? "" : "; " + nodes);
}

}  // namespace

std::string memory_refusal(const Model& model, const MemoryRequest& request, int64_t free_bytes,
                           const std::vector<MemoryAlternative>& alternatives) {
  const int64_t needed = needed_bytes(model, request);
  if (needed <= free_bytes) return "";
  const bool single = request.num_nodes * request.local_world_size == 1;
  const std::string advice = memory_advice(model, request, free_bytes, alternatives);
  return fmt::format(
      "the run does not fit in memory: it takes {} more{}, {} are free; the largest items are {}; {}",
      format_bytes(needed), single ? "" : " on every node", format_bytes(free_bytes),
      largest_items(plan_memory(model, request)), advice);
}

void check_memory_fits(const Model& model, const MemoryRequest& request, int64_t free_bytes,
                       const std::vector<MemoryAlternative>& alternatives) {
  const std::string refusal = memory_refusal(model, request, free_bytes, alternatives);
  if (!refusal.empty()) fail(ExitCode::kBadConfig, "{}", refusal);
}

std::string memory_table(const MemoryPlan& plan, int64_t free_bytes) {
  const bool many = plan.num_nodes * plan.local_world_size > 1;
  std::vector<TableLine> lines;
  for (const MemoryItem& item : plan.items) {
    const std::string_view kind = memory_kind_name(item.kind);
    const bool repeated =
        !lines.empty() &&
        std::any_of(lines.begin(), lines.end(), [&](const TableLine& line) { return line.kind == kind; });
    lines.push_back({repeated ? "" : std::string(kind), item.name + scope_text(item.scope, plan),
                     bytes_of_node(item, plan.local_world_size)});
  }
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
  return text + line("a node", predicted.node_bytes(), measured.node_bytes());
}

std::string memory_json(const MemoryPlan& plan, const MeasuredMemory& measured) {
  using Json = nlohmann::ordered_json;
  Json items = Json::array();
  for (const MemoryItem& item : plan.items) {
    items.push_back({{"kind", memory_kind_name(item.kind)},
                     {"name", item.name},
                     {"scope", memory_scope_name(item.scope)},
                     {"use", memory_use_name(item.use)},
                     {"bytes", item.size_bytes}});
  }
  const NodeMemory step = plan.step_memory();
  const Json out = {{"num_nodes", plan.num_nodes},
                    {"local_world_size", plan.local_world_size},
                    {"predicted",
                     {{"node_bytes", step.node_bytes()},
                      {"private_bytes", step.private_bytes},
                      {"shared_bytes", step.shared_bytes},
                      {"saving_bytes", plan.node_bytes() - step.node_bytes()},
                      {"items", items}}},
                    {"measured",
                     {{"node_bytes", measured.node_bytes()},
                      {"private_bytes", measured.private_bytes},
                      {"shared_bytes", measured.shared_bytes},
                      {"loading_peak_bytes", measured.loading_peak_bytes}}}};
  return out.dump(2) + "\n";
}

}  // namespace tessera
