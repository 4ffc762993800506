#include "train/memory_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "optim/adamw.h"

namespace tessera {
namespace {

constexpr const char* kBaselineName = "program and row index (resident now)";

// Pages of the program and its libraries that are touched, and kernels that oneDNN makes, in the first step:
// measured as 3 to 9 MiB over dtypes and small models.
constexpr int64_t kFirstUseBytes = 6 << 20;

// Of one micro-batch: ids, positions and targets of PackedBatch, ids and labels of the row being read.
int64_t batch_bytes(const ActivationLimits& limits) {
  return (3 * limits.max_tokens + 2 * limits.max_sequence_length) * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace

int64_t needed_bytes(const Model& model, const MemoryRequest& request) {
  return plan_memory(model, request).total_bytes() - request.baseline_bytes;
}

int64_t MemoryPlan::total_bytes() const {
  int64_t total = 0;
  for (const MemoryItem& item : items) total += item.size_bytes;
  return total;
}

MemoryPlan plan_memory(const Model& model, const MemoryRequest& request) {
  const int64_t num_elements = model.layout().num_elements();
  const DType dtype = model.dtype();
  const int64_t moment_bytes = AdamW::state_bytes(num_elements, DType::kF32);
  const int64_t remainder_bytes = AdamW::state_bytes(num_elements, dtype) - moment_bytes;
  const ActivationBytes activations = model.activation_bytes(request.limits);
  MemoryPlan plan;
  plan.items = {{fmt::format("weights ({})", dtype_name(dtype)), num_elements * dtype_bytes(dtype)},
                {"gradients (F32)", num_elements * dtype_bytes(DType::kF32)},
                {"optimizer moments (F32)", moment_bytes},
                {"optimizer master remainder (U16)", remainder_bytes},
                {"activations kept for backward", activations.saved_bytes},
                {"activations at work, logits included", activations.working_bytes},
                {"workspace of the operations", activations.workspace_bytes},
                {"weights packed for the products", activations.packed_bytes},
                {"batch buffers", batch_bytes(request.limits)},
                {"writing weights", request.export_bytes},
                {"code touched and kernels made at first use", kFirstUseBytes},
                {kBaselineName, request.baseline_bytes}};
  std::erase_if(plan.items, [](const MemoryItem& item) { return item.size_bytes == 0; });
  return plan;
}

void check_memory_fits(const Model& model, const MemoryRequest& request, int64_t free_bytes,
                       const std::vector<MemoryAlternative>& alternatives) {
  const int64_t needed = needed_bytes(model, request);
  if (needed <= free_bytes) return;
  std::string kinds;
  for (const MemoryItem& item : plan_memory(model, request).items) {
    if (item.name != kBaselineName) kinds += fmt::format(", {} {}", item.name, format_bytes(item.size_bytes));
  }
  std::string advice = "no setting makes it fit: take a smaller model or a machine with more memory";
  for (const MemoryAlternative& alternative : alternatives) {
    MemoryRequest smaller = request;
    smaller.limits = alternative.limits;
    const int64_t bytes = needed_bytes(model, smaller);
    if (bytes > free_bytes) continue;
    advice = fmt::format("with {} it would take {}", alternative.change, format_bytes(bytes));
    break;
  }
  fail(ExitCode::kBadConfig, "the run does not fit in memory: it takes {} more, {} are free ({}); {}",
       format_bytes(needed), format_bytes(free_bytes), kinds.substr(2), advice);
}

std::string memory_table(const MemoryPlan& plan, int64_t free_bytes) {
  std::vector<MemoryItem> lines = plan.items;
  lines.push_back({"total", plan.total_bytes()});
  lines.push_back({"free for this process", free_bytes});
  size_t width = 0;
  for (const MemoryItem& line : lines) width = std::max(width, line.name.size());
  std::string text;
  for (const MemoryItem& line : lines) {
    text += fmt::format("{:<{}}  {:>10}\n", line.name, width, format_bytes(line.size_bytes));
  }
  return text;
}

}  // namespace tessera
