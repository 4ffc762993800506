// Copies of the ranks' state in memory: making them, and going on from them.
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_files.h"
#include "train/trainer.h"

namespace tessera {

namespace fs = std::filesystem;

void Trainer::open_snapshots() {
  if (args_.peer_snapshot_steps == 0) return;
  const std::string job = fmt::format("{}\n{}", world().run_id, fs::absolute(args_.output_dir).native());
  snapshots_.emplace(*comm_, *pool_, job);
}

// What a former start of this job has left in memory continues whatever that start began with.
bool Trainer::resume_from_memory(const std::optional<fs::path>& newest) {
  if (!snapshots_ || world().restart_count == 0) return false;
  const HeldSearch search = snapshots_->find();
  if (!search.found) {
    if (is_root()) {
      log_warning("no state in memory is whole: {}; what is on disk counts", search.problem);
    }
    return false;
  }
  const int64_t step = search.found->id.step;
  const int64_t saved = newest ? parse_checkpoint_name(newest->filename().native()).value_or(-1) : -1;
  if (saved > step) {
    if (is_root()) log_info("{} is newer than step {} in memory", newest->string(), step);
    return false;
  }
  if (is_root() && !search.problem.empty()) log_info("in memory, {}", search.problem);
  const std::string origin = fmt::format("step {} in memory", step);
  const HeldTexts texts = snapshots_->texts(*search.found);
  resume_ = ResumePoint{{},
                        search.found,
                        parse_training_record(texts.run, origin),
                        parse_log_history(texts.log_history, origin)};
  last_saved_step_ = saved;
  return true;
}

void Trainer::take_snapshot() {
  const NetworkMeterPause pause(network_meter_);
  const Stopwatch time;
  SnapshotTexts texts;
  std::string run;
  if (is_root()) {
    update_record();
    run = training_record_json(record_);
    texts = {run, history_text_.of(state_.log_history)};
  }
  snapshots_->write(state_.global_step, texts);
  snapshot_s_ = time.seconds();
}

}  // namespace tessera
