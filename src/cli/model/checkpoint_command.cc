#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/checkpoint_reader.h"
#include "cli/command.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kColumns = 80;
constexpr int64_t kBarColumns = 24;

bool is_checkpoint(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "tessera", error);
}

// The checkpoints in an output folder, or the folder itself if it is one. Error(kNoInput) if there is none.
std::vector<CheckpointEntry> checkpoints_at(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    const bool is_hidden = error && error != std::errc::no_such_file_or_directory;
    fail(ExitCode::kNoInput, "{}: {}", folder.native(),
         is_hidden ? "cannot open the folder: " + error.message() : "no such folder");
  }
  if (!is_checkpoint(folder)) {
    std::vector<CheckpointEntry> entries = list_checkpoints(folder);
    if (entries.empty()) {
      fail(ExitCode::kNoInput,
           "{}: no checkpoints: expected folders checkpoint-N or a folder with tessera/ in it",
           folder.native());
    }
    return entries;
  }
  return {describe_checkpoint(folder)};
}

std::string name_of(const CheckpointEntry& entry) {
  const fs::path name = entry.folder.filename();
  return name.empty() ? entry.folder.parent_path().filename().native() : name.native();
}

std::string line_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

class CheckpointListCommand : public Command {
 public:
  std::string name() const override { return "checkpoint list"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "path", &folder_);
    declare(table, "json", &json_);
  }

  void run(FlagTable*) override {
    const std::vector<CheckpointEntry> entries = checkpoints_at(folder_);
    if (!json_) print("{:<28} {:>6} {:>12}  {}\n", "checkpoint", "ranks", "size", "model");
    for (const CheckpointEntry& entry : entries) write_output(json_ ? json_line(entry) : table_row(entry));
  }

 private:
  static std::string json_line(const CheckpointEntry& entry) {
    nlohmann::ordered_json json;
    json["folder"] = entry.folder.native();
    json["step"] = entry.step;
    if (entry.problem.empty()) {
      json["world_size"] = entry.world_size;
      json["bytes"] = entry.bytes;
      json["model_dtype"] = dtype_name(entry.model_dtype);
    }
    json["problem"] =
        entry.problem.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(entry.problem);
    return line_of(json);
  }

  static std::string table_row(const CheckpointEntry& entry) {
    if (!entry.problem.empty()) {
      return fmt::format("{:<28} cannot be used:\n", name_of(entry)) + wrap_text(entry.problem, 4, kColumns);
    }
    return fmt::format("{:<28} {:>6} {:>12}  {}\n", name_of(entry), entry.world_size,
                       format_bytes(entry.bytes), dtype_name(entry.model_dtype));
  }

  std::string folder_;
  bool json_ = false;
};

class CheckpointVerifyCommand : public Command {
 public:
  std::string name() const override { return "checkpoint verify"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "path", &folder_);
    declare(table, "num_threads", &num_threads_);
    declare(table, "json", &json_);
  }

  void run(FlagTable*) override {
    is_one_ = is_checkpoint(folder_);
    const std::vector<CheckpointEntry> entries = checkpoints_at(folder_);
    ThreadPool pool(threads_for_pool(num_threads_));
    std::vector<Error> problems;
    for (const CheckpointEntry& entry : entries) {
      if (const std::optional<Error> problem = verify(entry, pool)) problems.push_back(*problem);
    }
    flush_output();
    const int64_t num_left = std::ssize(entries) - num_deleted_;
    if (num_left == 0) fail(ExitCode::kNoInput, "{}: all checkpoints were deleted meanwhile", folder_);
    if (problems.empty()) return;
    const Error& first = problems.front();
    if (num_left == 1) fail(first.code(), "{}", first.what());
    fail(first.code(), "{} of {} cannot be used: {}", problems.size(), count_of(num_left, "checkpoint"),
         first.what());
  }

 private:
  // Returns what is wrong; nullopt for an intact checkpoint and for one of a run that was deleted meanwhile,
  // as save_total_limit does.
  std::optional<Error> verify(const CheckpointEntry& entry, ThreadPool& pool) {
    StatusLine status;
    LoadProgress done;
    std::optional<Error> problem;
    if (!entry.problem.empty()) problem = Error(entry.code, entry.problem);
    try {
      if (!problem) {
        const CheckpointReader reader = CheckpointReader::open(entry.folder);
        reader.verify(pool, [&](const LoadProgress& progress) {
          done = progress;
          status.show(fmt::format("{} [{}] {:3.0f} % {:.1f} GB/s", name_of(entry),
                                  bar_text(progress.fraction(), kBarColumns, terminal_is_utf8()),
                                  100 * progress.fraction(), progress.bytes_per_second() * 1e-9));
        });
      }
    } catch (const Error& error) {
      problem = error;
    }
    status.clear();
    if (problem && !is_one_ && is_deleted(entry)) {
      ++num_deleted_;
      return std::nullopt;
    }
    if (json_) {
      nlohmann::ordered_json json = {{"folder", entry.folder.native()},
                                     {"step", entry.step},
                                     {"intact", !problem},
                                     {"bytes_read", done.bytes_done},
                                     {"problem", nullptr}};
      if (problem) json["problem"] = problem->what();
      write_output(line_of(json));
    } else if (!problem) {
      print("{:<28} intact: {}, {:.1f} GB/s\n", name_of(entry), format_bytes(done.bytes_done),
            done.bytes_per_second() * 1e-9);
    } else {
      write_output(fmt::format("{:<28} cannot be used:\n", name_of(entry)) +
                   wrap_text(problem->what(), 4, kColumns));
    }
    return problem;
  }

  std::string folder_;
  int64_t num_threads_ = 0;
  bool json_ = false;
  bool is_one_ = false;  // the folder is a checkpoint itself
  int64_t num_deleted_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_checkpoint_list_command() { return std::make_unique<CheckpointListCommand>(); }
std::unique_ptr<Command> make_checkpoint_verify_command() {
  return std::make_unique<CheckpointVerifyCommand>();
}

}  // namespace tessera
