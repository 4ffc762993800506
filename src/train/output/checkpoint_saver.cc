#include "train/output/checkpoint_saver.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/first_failure.h"

namespace tessera {
namespace {

const OpLabel kCheckpointLabel = {"checkpoint"};

}  // namespace

CheckpointSaver::CheckpointSaver(Communicator& comm, ThreadPool& pool, const StoreState& state,
                                 const WriteOptions& options)
    : comm_(&comm), pool_(&pool), state_(&state), options_(options) {}

CheckpointSaver::~CheckpointSaver() {
  writer_.reset();
  if (writing_ && is_root()) abandon_checkpoint(plan_);
  if (commit_.valid()) commit_.wait();
}

bool CheckpointSaver::begin(const CheckpointPlan& plan, RunRecord record,
                            std::function<void()> after_commit) {
  TESSERA_CHECK(!writing_ && !commit_.valid() && !outcome_, "a checkpoint is in progress");
  since_begin_ = Stopwatch();
  plan_ = plan;
  record_ = std::move(record);
  after_commit_ = std::move(after_commit);
  failure_.reset();
  settled_ = false;
  committing_ = {.use = {.step = record_.step, .folder = plan.folder}};

  const PatientScope patience(*comm_);
  const std::optional<Error> cause = outside_error([this] {
    if (is_root()) create_checkpoint(plan_);
  });
  if (const std::optional<RankError> told = first_error(*comm_, cause, kCheckpointLabel)) {
    committing_.error = cause ? cause->what() : told->message;
    if (is_root()) outcome_ = committing_;
    return false;
  }

  writing_ = true;
  try {
    writer_ = std::make_unique<CheckpointWriter>(
        plan_, state_->owned(),
        [state = state_](StateKind kind, int64_t begin, std::span<float> values) {
          state->read(kind, begin, values);
        },
        options_, *pool_, state_->stored_source());
  } catch (const Error& error) {
    failure_ = error;
    settled_ = true;
  }
  begin_s_ = since_begin_.seconds();
  return true;
}

void CheckpointSaver::before_change(ElementRange elements) {
  if (writer_) writer_->before_change(elements);
}

// Takes the writer's outcome, once.
void CheckpointSaver::settle() {
  if (settled_) return;
  try {
    writer_->wait();
  } catch (const Error& error) {
    failure_ = error;
  }
  settled_ = true;
}

CheckpointShare CheckpointSaver::share() {
  if (!writing_) return {};
  if (!settled_ && writer_->finished()) settle();
  if (!settled_) return {};
  if (failure_) return {.finished = true, .failed = true};
  const WriteReport report = writer_->report();
  if (report.write_s > 0) bytes_per_second_ = static_cast<double>(report.bytes) / report.write_s;
  return {.finished = true,
          .bytes = report.bytes,
          .shared_bytes = report.shared_bytes,
          .stall_s = begin_s_ + report.stall_s};
}

void CheckpointSaver::take_shares(std::span<const CheckpointShare> by_rank) {
  if (!writing_) return;
  if (std::ranges::any_of(by_rank, &CheckpointShare::failed)) {
    fail_together();
    return;
  }
  if (!std::ranges::all_of(by_rank, &CheckpointShare::finished)) return;
  writer_.reset();
  writing_ = false;
  committing_.use.bytes = 0;
  committing_.use.shared_bytes = 0;
  committing_.use.stall_s = 0;
  for (const CheckpointShare& share : by_rank) {
    committing_.use.bytes += share.bytes;
    committing_.use.shared_bytes += share.shared_bytes;
    committing_.use.stall_s += share.stall_s / static_cast<double>(by_rank.size());
  }
  if (is_root()) start_commit();
}

void CheckpointSaver::start_commit() {
  const UnpinnedScope unpinned(spare_cpus());
  commit_ = std::async(std::launch::async, [this] {
    commit_checkpoint(plan_, record_);
    committing_.use.write_s = since_begin_.seconds();
    if (after_commit_) after_commit_();
  });
}

void CheckpointSaver::fail_together() {
  writer_.reset();
  writing_ = false;
  // By now no rank has the files open.
  const std::optional<RankError> told = first_error(*comm_, failure_, kCheckpointLabel);
  TESSERA_CHECK(told.has_value(), "no rank has failed");
  if (is_root()) abandon_checkpoint(plan_);
  if (told->rank == comm_->world().rank && told->code != ExitCode::kIoError) throw *failure_;
  committing_.error = told->message;
  if (is_root()) outcome_ = committing_;
}

void CheckpointSaver::finish() {
  const Stopwatch waiting;
  const PatientScope patience(*comm_);
  if (writing_) {
    settle();
    take_shares(comm_->all_gather(share(), kCheckpointLabel));
  }
  const bool commits = commit_.valid();
  wait_for_commit();
  comm_->barrier(kCheckpointLabel);
  if (commits) outcome_->use.stall_s += waiting.seconds();
}

void CheckpointSaver::wait_for_commit() {
  if (!commit_.valid()) return;
  try {
    commit_.get();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kIoError) throw;
    committing_.error = error.what();
  }
  outcome_ = committing_;
}

std::optional<CheckpointOutcome> CheckpointSaver::take_outcome() {
  if (commit_.valid() && commit_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    wait_for_commit();
  }
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace tessera
