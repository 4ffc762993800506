// Writes and reads a few files in a folder, in a child process: a hung server blocks whoever touches its
// files, for hours and beyond the reach of signals.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace tessera {

// A small write and its fsync takes milliseconds; a second and more means trouble.
inline constexpr double kMaxFsyncMs = 1000;

// A child process reports line by line which stage it is in and what it has found.
struct TrialReport {
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> texts;
  std::string last_stage;    // the one it was in at the end
  bool is_complete = false;  // it finished
  bool timed_out = false;    // killed, or left behind if it cannot be killed

  std::optional<double> number(const std::string& name) const;
  std::string text(const std::string& name) const;  // "" = not reported
};

// The child reports to its parent through this.
class TrialReporter {
 public:
  explicit TrialReporter(int fd) : fd_(fd) {}
  void stage(const std::string& name) const { send('s', name, ""); }
  void number(const std::string& name, double value) const;
  void text(const std::string& name, const std::string& value) const { send('t', name, value); }

 private:
  void send(char kind, const std::string& name, const std::string& value) const;
  int fd_;
};

// Runs `body` in a forked child without standard input and output; it may use system calls and allocate, but
// no thread of this process exists there. Returns after `seconds` at the latest. Error(kIoError) if there can
// be no child.
TrialReport run_in_child(const std::function<void(const TrialReporter& reporter)>& body, double seconds);

struct FolderTrialOptions {
  int64_t max_bytes = int64_t{256} << 20;  // of the large file; fewer if the disk is slow
  double seconds = 8;  // until it counts as hung; writing and reading take an eighth each at most
};

// Stages and what they report, in this order:
//   resolve      text "real_path"
//   statfs       numbers type (f_type), free_bytes, total_bytes, free_inodes, total_inodes
//   create       number direct (1: O_DIRECT is in use); text "error" of any stage ends the trial
//   write        numbers written_bytes, write_mb_per_s, including the fsync
//   fsync        number fsync_ms: a small write and fsync, median of five
//   read         number read_mb_per_s; text "wrong" if the bytes differ from what was written
//   rename       text "rename_error" if a file does not replace another one at once
//   locks        text "lock_error" if a second open file may take a held flock
//   layout       text "lov": bytes of Lustre's layout of the file, in hexadecimal
TrialReport try_folder(const std::filesystem::path& folder, const FolderTrialOptions& options);

}  // namespace tessera
