#include "report/speed_hint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace tessera {
namespace {

// The first step takes longer than others; its share must be small.
constexpr int64_t kMinHintSteps = 10;

// Shares of the time above which a part stands out.
constexpr double kMuchEvaluation = 0.2, kMuchSaving = 0.05, kMuchWaiting = 0.15, kMuchOptimizer = 0.25,
                 kMuchChoosing = 0.1;
// Below it, reading the weights costs about as much as multiplying by them (docs/performance.md).
constexpr int64_t kFewTokens = 512;
// Recomputation gives a step four thirds of the operations of forward and backward.
constexpr double kRecomputedShare = 0.25;

struct Hint {
  double gain;  // the share of the time that it could save at most: the largest one is shown
  std::string text;
};

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

// By what is waited for the most.
std::string disk_advice(const DiskUse& disk) {
  if (disk.inputs_wait_s > std::max(disk.state_wait_s, disk.weights_wait_s)) {
    return "mostly for inputs of layers: a faster disk, or gradient_checkpointing_mode full if they fit in "
           "memory";
  }
  return fmt::format(
      "mostly for {}: a faster disk, or more tokens in a step (a larger "
      "gradient_accumulation_steps) for each time {} moved",
      disk.state_wait_s > disk.weights_wait_s ? "the optimizer's state" : "weights of layers",
      disk.state_wait_s > disk.weights_wait_s ? "it is" : "they are");
}

void add_hints_between_steps(const SpeedInputs& inputs, double total_s, std::vector<Hint>* hints) {
  const RunTimes& times = inputs.times;
  const double evaluation = times.evaluation_s / total_s,
               saving = std::max(times.checkpoint_s, times.checkpoint_stall_s) / total_s,
               snapshots = times.snapshot_s / total_s;
  if (evaluation > kMuchEvaluation) {
    hints->push_back({evaluation / 2, fmt::format("evaluations take {} of the time: a larger eval_steps or a "
                                                  "smaller eval_dataset",
                                                  percent(evaluation))});
  }
  if (saving > kMuchSaving && !inputs.async_save) {
    hints->push_back(
        {saving, fmt::format("training waits for checkpoints {} of the time: async_save true writes "
                             "them while it continues",
                             percent(saving))});
  } else if (saving > kMuchSaving) {
    hints->push_back(
        {saving / 2, fmt::format("training waits for checkpoints {} of the time: a larger save_steps "
                                 "or a faster disk",
                                 percent(saving))});
  }
  if (snapshots > kMuchSaving) {
    hints->push_back({snapshots / 2, fmt::format("snapshots in memory take {} of the time: a larger "
                                                 "peer_snapshot_steps",
                                                 percent(snapshots))});
  }
}

void add_hints_within_steps(const SpeedInputs& inputs, double total_s, std::vector<Hint>* hints) {
  const StepTimes& steps = inputs.times.steps;
  const double computing = (steps.products_s + steps.attention_s + steps.elementwise_s) / total_s,
               waiting = steps.wait_s / total_s, optimizer = steps.optimizer_s / total_s,
               choosing = steps.rows_s / total_s;
  if (inputs.num_threads < inputs.num_cores) {
    hints->push_back(
        {1 - static_cast<double>(inputs.num_threads) / static_cast<double>(inputs.num_cores),
         fmt::format("num_threads {} leaves {} of {} cores idle: leave it out", inputs.num_threads,
                     inputs.num_cores - inputs.num_threads, inputs.num_cores)});
  }
  if (waiting > kMuchWaiting && inputs.num_nodes > 1) {
    hints->push_back(
        {waiting / 2, fmt::format("ranks wait {} of the time for the network and each other: a larger "
                                  "gradient_accumulation_steps sends no more for more tokens, fewer "
                                  "nodes send less",
                                  percent(waiting))});
  } else if (waiting > kMuchWaiting && inputs.world_size > 1) {
    hints->push_back(
        {waiting / 2, fmt::format("ranks wait {} of the time for each other: fewer ranks with more "
                                  "threads, or more rows in a step, which divide more evenly",
                                  percent(waiting))});
  }
  if (steps.disk_s > kMuchWaiting * total_s) {
    hints->push_back(
        {steps.disk_s / total_s / 2, fmt::format("steps wait {} of the time for the disk, {}",
                                                 percent(steps.disk_s / total_s), disk_advice(inputs.disk))});
  }
  if (inputs.gradient_checkpointing && inputs.fits_without_checkpointing) {
    hints->push_back(
        {kRecomputedShare * computing,
         fmt::format("memory suffices without gradient_checkpointing: false saves the second forward "
                     "pass, up to {} of the time",
                     percent(kRecomputedShare * computing))});
  }
  if (optimizer > kMuchOptimizer) {
    hints->push_back(
        {optimizer / 2, fmt::format("the optimizer takes {} of the time: more tokens in a step (a larger "
                                    "gradient_accumulation_steps) for each of its updates",
                                    percent(optimizer))});
  }
  if (choosing > kMuchChoosing) {
    hints->push_back(
        {choosing, fmt::format("choosing and reading rows takes {} of the time: a faster disk, or "
                               "without --streaming rows that are tokenized once",
                               percent(choosing))});
  }
}

}  // namespace

std::string speed_hint(const SpeedInputs& inputs) {
  const RunTimes& times = inputs.times;
  const double total_s = times.total_s;
  if (times.num_steps < kMinHintSteps || total_s <= 0) return "";
  std::vector<Hint> hints;
  add_hints_between_steps(inputs, total_s, &hints);
  add_hints_within_steps(inputs, total_s, &hints);
  if (!hints.empty()) return std::ranges::max_element(hints, {}, &Hint::gain)->text;

  const std::array<std::pair<double, const char*>, 3> operations = {
      {{times.steps.products_s, "products take"},
       {times.steps.attention_s, "attention takes"},
       {times.steps.elementwise_s, "element-wise operations take"}}};
  const auto& [seconds, what] = *std::ranges::max_element(operations);
  if (seconds <= 0) return "";
  const std::string most = fmt::format("{} {} of the time", what, percent(seconds / total_s));
  if (inputs.pass_tokens > 0 && inputs.pass_tokens < kFewTokens) {
    return fmt::format(
        "{}; a pass has {} tokens only: a larger per_device_train_batch_size multiplies each weight by "
        "more of them at once",
        most, inputs.pass_tokens);
  }
  return most + (inputs.mfu ? fmt::format(" at MFU {:.2f}", *inputs.mfu) : "") +
         ": the processor is the limit";
}

}  // namespace tessera
