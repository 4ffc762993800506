// A training run as recorded: the lines of metrics.jsonl and events.jsonl, read from a run's folder or handed
// over while it runs. The page and the report show nothing else.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "monitor/records/rank_history.h"
#include "monitor/records/step_table.h"

namespace tessera {

// The number of a field; nullopt if there is none.
std::optional<double> number_in(const nlohmann::ordered_json& record, const char* name);

class RunRecords {
 public:
  // A line of metrics.jsonl. kBadData, without naming a file, if it is no object with a step.
  void add_step(const nlohmann::ordered_json& line);
  // A line of events.jsonl; kinds that the page does not show are ignored. kBadData, without naming a file,
  // if it is no object with a text "event".
  void add_event(const nlohmann::ordered_json& event);

  const StepTable& steps() const { return steps_; }
  StepTable& steps() { return steps_; }

  // Everything but the steps:
  //   start        the last start event; after a resume, of the last start
  //   num_starts   how often the run was started
  //   evaluations, checkpoints, messages    their events, the last kMaxEvents of each; a message has a level,
  //                "warning" or "error"
  //   memory, finish    their last events, null without
  //   ranks        RankHistory::json()
  //   num_steps, first_step, last_step
  nlohmann::ordered_json json() const;

  static constexpr size_t kMaxEvents = 2000;

 private:
  using Event = nlohmann::ordered_json;

  void append(std::deque<Event>* events, const Event& event);

  StepTable steps_;
  RankHistory ranks_;
  Event start_;
  Event memory_;
  Event finish_;
  int64_t num_starts_ = 0;
  std::deque<Event> evaluations_;
  std::deque<Event> checkpoints_;
  std::deque<Event> messages_;
};

// Calls `use` for every complete line of JSON that is not empty; a last line without its end is one that is
// being written, and ignored. kBadData, also what `use` throws, names `origin` and the line.
void for_each_record(std::istream& in, const std::string& origin,
                     const std::function<void(const nlohmann::ordered_json&)>& use);

// Reads `folder`, the output_dir of a run. A run from before there was events.jsonl is read from
// training_args.json, trainer_state.json and memory.json instead. A last line without its end is still being
// written, and ignored. Errors: kNoInput without metrics.jsonl; kBadData names the file and the line. With
// `until_step`, steps and events after it are left out.
RunRecords read_run_folder(const std::filesystem::path& folder, std::optional<int64_t> until_step = {});

// True if a run has written its metrics there.
bool is_run_folder(const std::filesystem::path& folder);

}  // namespace tessera
