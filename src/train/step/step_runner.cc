#include "train/step/step_runner.h"

#include "base/clock.h"
#include "base/rng.h"
#include "context/slice_batch.h"
#include "report/run_phase.h"

namespace tessera {
namespace {

PassKind kind_of(int64_t pass, int64_t num_passes) {
  return pass + 1 == num_passes ? PassKind::kLastPass : PassKind::kPass;
}

}  // namespace

StepRunner::StepRunner(TrainableModel& model, ParameterStore& parameters, const Dataset& dataset,
                       Communicator& comm, ThreadPool& pool, StopAgreement& stop, ClockedOps& ops,
                       ContextRank* context, ExpertExchange* experts, const StepOptions& options)
    : model_(model),
      parameters_(parameters),
      dataset_(dataset),
      comm_(comm),
      pool_(pool),
      stop_(stop),
      ops_(ops),
      context_(context),
      experts_(experts),
      options_(options) {
  model_.call_between_layers([this](int64_t group, WeightUse use) {
    mark_layer(group, use);
    return continue_computing();
  });
  if (!options.neftune_noise_alpha) return;
  noise_.emplace(*options.neftune_noise_alpha, options.seed);
  model_.add_embedding_noise(
      [this](int64_t token, std::span<float> noise_D) { noise_->fill(token_of_rows(token), noise_D); });
}

// Group 0 is the embedding, the last one the final norm and the head.
void StepRunner::mark_layer(int64_t group, WeightUse use) {
  const int64_t num_layers = model_.config().num_hidden_layers;
  const bool is_forward = use == WeightUse::kForward;
  const char* what = group == 0           ? is_forward ? "forward, embedding" : "head and loss"
                     : group > num_layers ? "head and loss"
                     : is_forward         ? "forward"
                                          : "backward";
  comm_.position().mark(
      Activity::kWork,
      {.what = what, .number = step_, .layer = group > 0 && group <= num_layers ? group - 1 : -1});
}

// A step that has begun to update in its backward pass is completed.
bool StepRunner::continue_computing() {
  BackwardUpdate* update = parameters_.backward_update();
  if (update != nullptr && update->is_under_way()) return true;
  if (may_compute()) return true;
  if (update != nullptr) update->cancel();
  return false;
}

// Ranks that share rows or experts abandon a pass together: each needs what the others compute.
bool StepRunner::may_compute() {
  const bool is_wanted = stop_.continue_computing();
  if (!is_wanted && context_ != nullptr) context_->all_to_all().wish_to_abandon();
  if (!is_wanted && experts_ != nullptr) experts_->wish_to_abandon();
  return context_ != nullptr || experts_ != nullptr ? !has_abandoned() : is_wanted;
}

bool StepRunner::has_abandoned() {
  if (context_ != nullptr) return context_->all_to_all().is_abandoned();
  return experts_ != nullptr ? experts_->is_abandoned() : stop_.has_abandoned();
}

int64_t StepRunner::num_passes(const RowLists& passes) const {
  return passes.size() * team_size() / comm_.world().world_size;
}

std::span<const int64_t> StepRunner::rows_of(const RowLists& passes, int64_t pass) const {
  const int64_t num_teams = comm_.world().world_size / team_size();
  return passes[pass * num_teams + comm_.world().rank / team_size()];
}

void StepRunner::run_pass(const RowLists& passes, int64_t pass, PassKind kind, StepPart* part) {
  const WeightUpdate update = parameters_.begin_pass(pass == 0, kind);
  const std::span<const int64_t> rows = rows_of(passes, pass);
  if (rows.empty() || has_abandoned()) {
    model_.take_part_in_forward_backward(update.mode);
  } else {
    const Stopwatch time;
    make_packed_batch(dataset_, rows, step_ - 1, &batch_);
    part->rows_s += time.seconds();
    if (noise_) noise_->begin(step_, rows, dataset_, batch_);
    if (options_.lora_dropout > 0 || model_.config().dropout.any()) choose_dropout(rows);
    const auto label_smoothing = static_cast<float>(options_.label_smoothing);
    const PackedBatch& own = take_slice(context_, batch_);
    part->loss_sum +=
        loss_scale_ * model_.forward_backward(own, grad_scale_, label_smoothing, update).loss_sum;
    part->num_tokens += num_tokens_of_rows(context_, batch_);
    part->flops +=
        model_.flops(batch_.cu_seqlens, batch_.num_sources, batch_.num_targets).forward_backward() /
        static_cast<double>(team_size());
  }
  parameters_.end_pass();
}

// A token's number follows from seed, step, row and its place there: ranks and micro-batches do not matter.
void StepRunner::choose_dropout(std::span<const int64_t> rows) {
  const uint64_t seed = options_.seed ^ hash_name("lora_dropout");
  const auto first_of_row = [&](int64_t row) {
    const auto words = philox4x32(seed, static_cast<uint64_t>(row), static_cast<uint64_t>(step_));
    return static_cast<uint64_t>(words[0]) << 32 | words[1];
  };
  const auto append = [&](uint64_t first, int64_t count) {
    for (int64_t t = 0; t < count; ++t) dropout_tokens_.push_back(first + static_cast<uint64_t>(t));
  };
  dropout_tokens_.clear();
  if (batch_.num_sources == 0) {
    for (const int64_t row : rows) append(first_of_row(row), dataset_.row_length(row));
  } else {
    // A row's source comes with the others', its target later.
    const auto length = [&](size_t sequence) {
      return int64_t{batch_.cu_seqlens[sequence + 1]} - batch_.cu_seqlens[sequence];
    };
    for (size_t i = 0; i < rows.size(); ++i) append(first_of_row(rows[i]), length(i));
    for (size_t i = 0; i < rows.size(); ++i)
      append(first_of_row(rows[i]) + static_cast<uint64_t>(length(i)), length(rows.size() + i));
  }
  if (context_ != nullptr) {
    size_t num_own = 0;
    for (size_t t = static_cast<size_t>(token_of_rows(0)); t < dropout_tokens_.size();
         t += static_cast<size_t>(team_size())) {
      dropout_tokens_[num_own++] = dropout_tokens_[t];
    }
    // Tokens that are in no row are there, too.
    dropout_tokens_.resize(static_cast<size_t>(tokens_of_member(std::ssize(dropout_tokens_), team_size())));
  }
  model_.draw_dropout({seed, dropout_tokens_, static_cast<float>(options_.lora_dropout)});
}

// Computes the first pass for the first time, so that computing it again can be compared (replay_check.h).
void StepRunner::rehearse(const RowLists& passes) {
  const Stopwatch time;
  replay_.emplace(model_, pool_);
  StepPart ignored;
  run_pass(passes, 0, PassKind::kRehearsal, &ignored);
  replay_->repeat();
  rehearsal_s_ = time.seconds();
}

bool StepRunner::run_passes(const RowLists& passes, StepPart* part) {
  const int64_t count = num_passes(passes);
  const int64_t every = options_.replay_check_steps;
  rehearsal_s_ = 0;
  stop_.enter(StopAgreement::Phase::kPasses);
  if (every > 0 && step_ % every == 0) rehearse(passes);
  for (int64_t pass = 0; pass < count; ++pass) {
    if (pass > 0 && stop_.abandon_together(pass)) break;
    run_pass(passes, pass, kind_of(pass, count), part);
    if (replay_ && !stop_.has_abandoned()) replay_difference_ = replay_->difference();
    replay_.reset();
  }
  stop_.enter(StopAgreement::Phase::kOther);
  return stop_.agreed_signal() == 0;
}

StepPart StepRunner::run_again(const RowLists& passes) {
  const int64_t count = num_passes(passes);
  StepPart part;
  ops_.restart();
  for (int64_t pass = 0; pass < count; ++pass) run_pass(passes, pass, kind_of(pass, count), &part);
  part.gradient_squares = parameters_.gradient_squares();
  part.operations = ops_.take();
  return part;
}

std::optional<StepPart> StepRunner::run(int64_t step, const RowLists& passes, const LossDivisor& divisor) {
  const Stopwatch time;
  step_ = step + 1;
  grad_scale_ = 1.0f / static_cast<float>(divisor.targets);
  loss_scale_ = divisor.loss_scale;
  StepPart part;
  const double waited_before_s = comm_.waited_s();
  ops_.restart();
  if (!run_passes(passes, &part)) return std::nullopt;
  part.replay_differs = !replay_difference_.empty();
  mark_phase(comm_, "adding up the step", step_);
  part.gradient_squares = parameters_.gradient_squares();
  part.wait_s = comm_.waited_s() - waited_before_s;
  part.compute_s = time.seconds() - part.wait_s;
  part.operations = ops_.take();
  return part;
}

}  // namespace tessera
