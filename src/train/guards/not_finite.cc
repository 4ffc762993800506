#include "train/guards/not_finite.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "data/rows/batch_plan.h"
#include "shard/layout/first_not_finite.h"

namespace tessera {
namespace {

constexpr size_t kMaxNamed = 8;

// The first part of the model that yields a non-finite value in one forward pass.
class FirstPart {
 public:
  FirstPart(TrainableModel& model, const ContextRank* context) : model_(model) {
    model_.watch_layers([this, context](int64_t layer, const char* part, ConstTensorView values_TD) {
      if (!name_.empty()) return;
      if (const std::optional<int64_t> at = first_not_finite(values_TD)) {
        const std::string of_layer = layer < 0 ? "" : fmt::format("layer {} ", layer);
        const int64_t token = *at / values_TD.dim(1);
        name_ =
            fmt::format("{}{} at token {}", of_layer, part, context ? context->token_of_rows(token) : token);
      }
    });
  }
  ~FirstPart() { model_.watch_layers({}); }
  FirstPart(const FirstPart&) = delete;
  FirstPart& operator=(const FirstPart&) = delete;

  void clear() { name_.clear(); }
  // For a row whose loss is not finite.
  std::string name() const { return name_.empty() ? "the loss itself" : name_; }

 private:
  TrainableModel& model_;
  std::string name_;
};

struct RepeatedRows {
  std::vector<int64_t> bad;
  std::string part;  // of the first bad row
};

// Every rank takes part in as many passes as the rank with the most rows needs.
RepeatedRows repeat_rows(TrainableModel& model, const Dataset& dataset, const NotFiniteStep& step,
                         int64_t num_passes, ContextRank* context) {
  const std::span<const int64_t> rows = step.rows;
  RepeatedRows repeated;
  FirstPart first_part(model, context);
  PackedBatch batch;
  for (int64_t pass = 0; pass < num_passes; ++pass) {
    if (pass >= std::ssize(rows)) {
      model.take_part_in_forward();
      continue;
    }
    const int64_t row = rows[static_cast<size_t>(pass)];
    make_packed_batch(dataset, {&row, 1}, step.step, &batch);
    first_part.clear();
    if (std::isfinite(model.forward_loss(take_slice(context, batch)).loss_sum)) continue;
    if (repeated.bad.empty()) repeated.part = first_part.name();
    repeated.bad.push_back(row);
  }
  return repeated;
}

std::string describe_self(Communicator& comm) {
  const World& world = comm.world();
  return world.is_single() ? "" : describe_rank(world.rank, world.host) + ": ";
}

// "" = this rank has found nothing.
std::string describe(const RepeatedRows& repeated, const NotFiniteStep& step, Communicator& comm) {
  const std::string self = describe_self(comm);
  if (!repeated.bad.empty()) {
    const auto num_named = std::min(kMaxNamed, repeated.bad.size());
    return fmt::format("{}the loss of row{} {}{} (from 0) is not finite again, first in {}", self,
                       repeated.bad.size() > 1 ? "s" : "",
                       fmt::join(std::span(repeated.bad).first(num_named), ", "),
                       repeated.bad.size() > num_named ? ", ..." : "", repeated.part);
  }
  if (!step.loss_is_finite) {
    return fmt::format(
        "{}the loss of its rows is finite when they are computed again: memory or processor of this machine "
        "may be at fault",
        self);
  }
  if (!step.gradient.empty()) {
    return fmt::format("{}all losses are finite, the gradient of {} is not", self, step.gradient);
  }
  return "";
}

}  // namespace

// Rows tell more than gradients, which are sums over ranks: a rank that can name rows reports first.
std::string find_not_finite(TrainableModel& model, const Dataset& dataset, const NotFiniteStep& step,
                            Communicator& comm, ContextRank* context) {
  const World& world = comm.world();
  const int64_t num_passes = comm.max(std::ssize(step.rows), {"search for what is not finite"});
  const RepeatedRows repeated = repeat_rows(model, dataset, step, num_passes, context);
  std::string line = describe(repeated, step, comm);
  if (!world.is_single()) {
    const bool knows_rows = !repeated.bad.empty() || !step.loss_is_finite;
    const std::vector<int> worth = comm.all_gather(knows_rows     ? 2
                                                   : line.empty() ? 0
                                                                  : 1,
                                                   {"search for what is not finite"});
    const auto speaker = static_cast<int>(std::ranges::max_element(worth) - worth.begin());
    line = comm.broadcast_text(line, speaker, {"what is not finite"});
  }
  return line.empty() ? "losses and gradients are finite when checked again: memory or processor of a "
                        "machine may be at fault"
                      : line;
}

}  // namespace tessera
