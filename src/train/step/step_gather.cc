#include "train/step/step_gather.h"

#include <cmath>
#include <span>

#include "report/run_totals.h"

namespace tessera {

StepGather::StepGather(const World& world, bool has_disk, bool trains_apart)
    : parts(static_cast<size_t>(world.world_size)),
      stops(parts.size()),
      checkpoints(parts.size()),
      peaks(parts.size()),
      has_network_(world.num_nodes > 1),
      has_disk_(has_disk),
      num_teams_(trains_apart ? world.num_nodes : 1),
      messages_(parts.size()),
      ranks_(parts.size()) {}

StepMetrics StepGather::sums(int64_t num_targets) const {
  double loss_sum = 0, gradient_squares = 0;
  NetworkCounters network;
  DiskUse disk;
  StepMetrics metrics;
  for (const StepPart& part : parts) {
    loss_sum += part.loss_sum;
    gradient_squares += part.gradient_squares;
    metrics.num_tokens += part.num_tokens;
    network.add(part.network);
    const double share = 1 / static_cast<double>(parts.size());
    metrics.times.rows_s += share * part.rows_s;
    metrics.times.products_s += share * part.operations.products_s;
    metrics.times.attention_s += share * part.operations.attention_s;
    metrics.times.elementwise_s += share * part.operations.elementwise_s;
    metrics.times.wait_s += share * part.wait_s;
    disk.add(part.disk, share);
  }
  metrics.ranks = ranks_;
  metrics.loss = num_targets == 0 ? 0 : loss_sum / static_cast<double>(num_targets);
  metrics.grad_norm = std::abs(std::sqrt(gradient_squares / num_teams_));  // "nan", never "-nan"
  metrics.num_target_tokens = num_targets;
  if (has_disk_) metrics.disk = disk;
  if (has_network_) metrics.network = network_use(network, static_cast<int>(parts.size()));
  return metrics;
}

double StepGather::norm_for(const World& world) const {
  const auto team_size = static_cast<int>(parts.size()) / num_teams_;
  const int first = world.rank / team_size * team_size;
  double squares = 0;
  for (int rank = first; rank < first + team_size; ++rank)
    squares += parts[static_cast<size_t>(rank)].gradient_squares;
  return std::abs(std::sqrt(squares));
}

void StepGather::run(const StepPart& part, const StopAgreement::Share& stop,
                     const CheckpointShare& checkpoint, const JobPeak::Share& peak, Communicator& comm) {
  comm.all_gather(Message{part, stop, checkpoint, peak}, std::span(messages_), {"loss and gradient norm"});
  for (size_t rank = 0; rank < messages_.size(); ++rank) {
    const StepPart& of_rank = parts[rank] = messages_[rank].part;
    ranks_[rank] = {of_rank.num_tokens, of_rank.compute_s, of_rank.wait_s};
    stops[rank] = messages_[rank].stop;
    checkpoints[rank] = messages_[rank].checkpoint;
    peaks[rank] = messages_[rank].peak;
  }
}

}  // namespace tessera
