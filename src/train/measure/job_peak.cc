#include "train/measure/job_peak.h"

#include "report/run_phase.h"

namespace tessera {

JobPeak::JobPeak(bool measures, Ops& ops, ThreadPool& pool, DType dtype, Communicator& comm) : comm_(comm) {
  if (measures && ops.device().own_memory()) {
    peak_.emplace(ops, dtype);
  } else if (measures) {
    peak_.emplace(pool, dtype);
  }
  const bool has_peak = peak_ && peak_->best();
  // 0 stands for none.
  for (const double tflops : comm.all_gather(has_peak ? peak_->best_tflops() : 0.0, {"arithmetic peak"})) {
    if (tflops == 0) {
      peak_.reset();
      return;
    }
    tflops_ += tflops;
  }
  at_start_ = peak_->best();
  at_start_->tflops = tflops_;
}

JobPeak::Share JobPeak::share() const {
  if (!peak_) return {};
  return {peak_->best_tflops(), comm_.world().rank == 0 && peak_->is_due()};
}

void JobPeak::take_shares(std::span<const Share> by_rank) {
  tflops_ = 0;
  for (const Share& share : by_rank) tflops_ += share.tflops;
  is_due_ = by_rank[0].is_due;
}

// On all ranks at the same time, so that no step waits for a rank that measures.
void JobPeak::measure_if_due(int64_t step) {
  if (!is_due_) return;
  mark_phase(comm_, "measuring the arithmetic peak", step);
  peak_->measure_again();
}

std::optional<BestPeak> JobPeak::best() const {
  if (!peak_) return std::nullopt;
  return BestPeak{tflops_, peak_->num_measurements()};
}

std::optional<double> JobPeak::share_of_peak(double tflops) const {
  if (!peak_) return std::nullopt;
  return tflops / tflops_;
}

}  // namespace tessera
