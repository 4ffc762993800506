#include "train/step/step_rows.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"
#include "data/rows/token_masks.h"
#include "plan/passes.h"

namespace tessera {

StepRows::StepRows(const Dataset& dataset, const BatchPlanOptions& options, int64_t world_size,
                   int64_t num_teams)
    : dataset_(dataset),
      options_(options),
      batches_(options),
      world_size_(world_size),
      num_teams_(num_teams),
      dealer_(dealing(), team_size(), 1),
      team_passes_(static_cast<size_t>(num_teams)) {}

void StepRows::set_micro_batches_per_pass(int64_t count) {
  micro_batches_per_pass_ = count;
  dealer_ = RowDealer(dealing(), team_size(), count);
}

bool StepRows::wait_for_rows(int64_t step, const std::function<bool()>& gives_up) const {
  constexpr std::chrono::milliseconds kPoll(20);
  const RowSupply* supply = options_.supply;
  if (supply == nullptr) return true;
  const int64_t step_rows = global_batch_rows(options_);
  const int64_t first = step * step_rows / supply->block_rows();
  const int64_t last = ((step + 1) * step_rows - 1) / supply->block_rows();
  supply->release_before(first);
  for (int64_t block = first; block <= last; ++block) {
    for (; !supply->find_block(block); std::this_thread::sleep_for(kPoll)) {
      if (gives_up()) return false;
    }
  }
  return true;
}

const RowLists& StepRows::passes_of_step(int64_t step) {
  if (world_size_ == 1) {
    batches_.rows_of_step(step, &passes_);
    passes_.merge(micro_batches_per_pass_);
    return passes_;
  }
  batches_.rows_of_step(step, &micro_batches_);
  if (num_teams_ > 1) {
    deal_to_teams();
    return passes_;
  }
  dealer_.deal(
      micro_batches_, [this](int64_t row) { return dataset_.row_length(row); }, &passes_);
  return passes_;
}

void StepRows::select_team(int64_t team) {
  of_team_.clear();
  for (int64_t first = team * team_size(); first < micro_batches_.size(); first += world_size_) {
    for (int64_t rank = 0; rank < team_size(); ++rank) {
      for (const int64_t row : micro_batches_[first + rank]) of_team_.push_back(row);
      of_team_.end_list();
    }
  }
}

void StepRows::deal_to_teams() {
  for (int64_t team = 0; team < num_teams_; ++team) {
    select_team(team);
    RowLists& passes = team_passes_[static_cast<size_t>(team)];
    if (team_size() == 1) {
      std::swap(passes, of_team_);
      passes.merge(micro_batches_per_pass_);
    } else {
      dealer_.deal(
          of_team_, [this](int64_t row) { return dataset_.row_length(row); }, &passes);
    }
  }
  passes_.clear();
  for (int64_t first = 0; first < team_passes_.front().size(); first += team_size()) {
    for (const RowLists& passes : team_passes_) {
      for (int64_t rank = 0; rank < team_size(); ++rank) {
        for (const int64_t row : passes[first + rank]) passes_.push_back(row);
        passes_.end_list();
      }
    }
  }
}

int64_t StepRows::count_targets_of(int64_t step, std::span<const int64_t> rows) const {
  int64_t num_targets = 0;
  for (const int64_t row : rows) num_targets += count_row_targets(dataset_, step, row);
  return num_targets;
}

int64_t StepRows::count_targets(int64_t step, const RowLists& passes) const {
  return count_targets_of(step, passes.all_rows());
}

int64_t StepRows::count_targets_of_team(int64_t step, const RowLists& passes, int64_t team) const {
  int64_t num_targets = 0;
  for (int64_t list = 0; list < passes.size(); ++list) {
    if (list % world_size_ / team_size() == team) num_targets += count_targets_of(step, passes[list]);
  }
  return num_targets;
}

// Without shuffling all epochs are alike, unless they take different rows of a mixture.
int64_t StepRows::largest_pass(int64_t num_steps) {
  // Rows that are not there yet may all be as long as rows can be.
  if (options_.supply != nullptr)
    return micro_batch_rows(options_) * micro_batches_per_pass_ * dataset_.max_row_length();
  StepSurvey survey;
  survey.num_steps = options_.shuffle || options_.mixture.size() > 1
                         ? num_steps
                         : std::min(num_steps, batches_.steps_per_epoch());
  survey.step_rows = global_batch_rows(options_);
  survey.max_pass_rows = micro_batch_rows(options_) * micro_batches_per_pass_;
  survey.num_rows = dataset_.num_rows();
  survey.max_row_length = dataset_.max_row_length();
  survey.row_length = [this](int64_t row) { return dataset_.row_length(row); };
  survey.largest_pass_of = [this](int64_t step) {
    const RowLists& passes = passes_of_step(step);
    int64_t largest = 0;
    for (int64_t pass = 0; pass < passes.size(); ++pass) {
      int64_t num_tokens = 0;
      for (const int64_t row : passes[pass]) num_tokens += dataset_.row_length(row);
      largest = std::max(largest, num_tokens);
    }
    return largest;
  };
  return tessera::largest_pass(survey);
}

}  // namespace tessera
