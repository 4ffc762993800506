#include "monitor/records/run_records.h"

#include <fstream>
#include <istream>
#include <optional>

#include "base/error.h"
#include "base/json_value.h"
#include "formats/json.h"
#include "formats/json_problem.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Even a line with the times of 65,536 ranks is far shorter.
constexpr size_t kMaxLineBytes = size_t{4} << 20;

// Adds the events that events.jsonl would have, from the files that runs have always written.
void add_events_of_older_files(const fs::path& folder, RunRecords* run) {
  const Json arguments = parse_json_file_if_any(folder / "training_args.json");
  const Json state = parse_json_file_if_any(folder / "trainer_state.json");
  nlohmann::ordered_json start = {{"event", "start"}};
  if (!arguments.empty()) start["arguments"] = arguments;
  if (const auto found = state.find("max_steps"); found != state.end() && found->is_number())
    start["max_steps"] = *found;
  nlohmann::ordered_json memory = parse_json_file_if_any(folder / "memory.json");
  if (const auto nodes = number_in(memory, "num_nodes")) start["num_nodes"] = *nodes;
  if (const auto ranks = number_in(memory, "local_world_size"))
    start["world_size"] = *ranks * number_in(memory, "num_nodes").value_or(1);
  run->add_event(start);
  if (memory.is_object() && !memory.empty()) {
    memory["event"] = "memory";
    run->add_event(memory);
  }
  const auto history = state.find("log_history");
  if (history == state.end() || !history->is_array()) return;
  for (const Json& entry : *history) {
    nlohmann::ordered_json event = entry;
    if (!event.is_object()) continue;
    if (event.contains("eval_loss")) {
      event["event"] = "evaluation";
      run->add_event(event);
    } else if (const auto runtime_s = number_in(event, "train_runtime")) {
      event["event"] = "finish";
      event["runtime_s"] = *runtime_s;
      run->add_event(event);
    }
  }
}

// The checkpoint that a step found complete, for runs whose events do not tell.
void add_checkpoint_of_step(const nlohmann::ordered_json& step, RunRecords* run) {
  const auto of_step = number_in(step, "checkpoint_step");
  if (!of_step) return;
  nlohmann::ordered_json event = {{"event", "checkpoint"}, {"step", *of_step}};
  for (const char* name : {"bytes", "shared_bytes", "write_s", "stall_s"}) {
    if (const auto value = number_in(step, (std::string("checkpoint_") + name).c_str())) event[name] = *value;
  }
  run->add_event(event);
}

}  // namespace

std::optional<double> number_in(const nlohmann::ordered_json& record, const char* name) {
  const auto found = record.find(name);
  if (found == record.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

void for_each_record(std::istream& in, const std::string& origin,
                     const std::function<void(const nlohmann::ordered_json&)>& use) {
  int64_t number = 0;
  const auto fail_line = [&](const std::string& what) {
    fail(ExitCode::kBadData, "{}: line {}: {}; the file is damaged: remove the line", origin, number, what);
  };
  std::string buffer(kMaxLineBytes + 1, '\0');  // and the end of the line
  while (in.getline(buffer.data(), std::ssize(buffer))) {
    ++number;
    if (in.eof()) return;  // without its newline: being written
    const std::string_view line(buffer.data(), static_cast<size_t>(in.gcount()) - 1);
    if (line.empty()) continue;
    const auto record = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_discarded()) {
      const std::optional<JsonProblem> problem = find_json_problem(line);
      fail_line(problem ? fmt::format("column {}: {}", problem->column, problem->what) : "not JSON");
    }
    try {
      use(record);
    } catch (const Error& error) {
      fail_line(error.what());
    }
  }
  if (in.bad()) fail(ExitCode::kIoError, "{}: reading failed", origin);
  ++number;
  if (!in.eof()) fail_line(fmt::format("expected at most {} bytes, found more", kMaxLineBytes));
}

void RunRecords::add_step(const nlohmann::ordered_json& line) {
  const auto step = line.is_object() ? line.find("step") : line.end();
  constexpr double kMaxStep = 9e15;  // doubles count exactly up to there
  if (!line.is_object() || step == line.end() || !step->is_number_integer() || step->get<double>() < 0 ||
      step->get<double>() > kMaxStep)
    fail(ExitCode::kBadData, "expected an object with a field 'step', found {}", found_text(line));
  steps_.add(line);
  const auto ranks = line.find("rank_compute_s");
  if (ranks == line.end() || !ranks->is_array()) return;
  constexpr size_t kMaxShownRanks = 65'536;
  if (ranks->size() > kMaxShownRanks)
    fail(ExitCode::kBadData, "expected at most {} ranks, found {}", kMaxShownRanks, ranks->size());
  std::vector<double> compute_s;
  for (const auto& value : *ranks) compute_s.push_back(value.is_number() ? value.get<double>() : 0);
  ranks_.add(step->get<int64_t>(), compute_s);
}

void RunRecords::append(std::deque<Event>* events, const Event& event) {
  events->push_back(event);
  if (events->size() > kMaxEvents) events->pop_front();
}

void RunRecords::add_event(const Event& event) {
  const auto kind = event.is_object() ? event.find("event") : event.end();
  if (!event.is_object() || kind == event.end() || !kind->is_string())
    fail(ExitCode::kBadData, "expected an object with a text 'event', found {}", found_text(event));
  const auto& name = kind->get_ref<const std::string&>();
  if (name == "start") {
    start_ = event;
    finish_ = nullptr;
    ++num_starts_;
  } else if (name == "evaluation") {
    append(&evaluations_, event);
  } else if (name == "checkpoint") {
    append(&checkpoints_, event);
  } else if (name == "checkpoint_failed" || name == "warning" || name == "error") {
    Event message = event;
    message["level"] = name == "warning" ? "warning" : "error";
    append(&messages_, message);
  } else if (name == "memory") {
    memory_ = event;
  } else if (name == "finish") {
    finish_ = event;
  }
}

nlohmann::ordered_json RunRecords::json() const {
  return {{"start", start_},
          {"num_starts", num_starts_},
          {"evaluations", evaluations_},
          {"checkpoints", checkpoints_},
          {"messages", messages_},
          {"memory", memory_},
          {"finish", finish_},
          {"ranks", ranks_.json()},
          {"num_steps", steps_.num_rows()},
          {"first_step", steps_.first_step()},
          {"last_step", steps_.last_step()}};
}

bool is_run_folder(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / "metrics.jsonl", ignored);
}

RunRecords read_run_folder(const fs::path& folder, std::optional<int64_t> until_step) {
  if (!is_run_folder(folder)) {
    fail(ExitCode::kNoInput, "{}: expected the output_dir of a training run, found no metrics.jsonl",
         folder.string());
  }
  RunRecords run;
  const auto is_after = [&](const nlohmann::ordered_json& record) {
    return until_step && number_in(record, "step").value_or(0) > static_cast<double>(*until_step);
  };
  const auto read_file = [&](const char* name, const auto& use) {
    std::ifstream in(folder / name, std::ios::binary);
    if (!in) fail(ExitCode::kNoInput, "cannot open {}", (folder / name).string());
    for_each_record(in, (folder / name).string(), use);
  };
  const bool has_events = fs::exists(folder / "events.jsonl");
  read_file("metrics.jsonl", [&](const nlohmann::ordered_json& line) {
    if (is_after(line)) return;
    run.add_step(line);
    if (!has_events) add_checkpoint_of_step(line, &run);
  });
  if (!has_events) {
    add_events_of_older_files(folder, &run);
    return run;
  }
  read_file("events.jsonl", [&](const nlohmann::ordered_json& event) {
    if (!is_after(event)) run.add_event(event);
  });
  return run;
}

}  // namespace tessera
