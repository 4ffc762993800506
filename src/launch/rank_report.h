// What a rank that fails leaves behind for the agent that started it, in the file that
// TORCHELASTIC_ERROR_FILE names: torchrun reads "message" and "timestamp" of it, the agent of tessera launch
// all of it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>

namespace tessera {

struct ErrorReport {
  std::string message;  // one line
  int code = 0;         // the exit code that follows; 128 + signal for an orderly stop
  int rank = 0;
  std::string host = {};        // filled in when it is written
  bool caused_by_peer = false;  // the message names the culprit, which is another rank
  int stop_signal = 0;          // nonzero: no failure; this signal asked the rank to stop, and it ends by it
};

// Writes the report of this process, with RANK and the host's name filled in. False when no file is asked for
// or it cannot be written.
bool leave_error_report(ErrorReport report);

// Tells the agent that started this rank, if one did, that the start has got on.
void leave_progress_mark();

// True when the process whose parent is `parent`, and which has this environment, is a rank that an agent of
// tessera launch has started: the agent shows the error of the rank that failed first, so that a rank that
// leaves a report does not print it as well.
bool agent_shows_errors(pid_t parent);

// Also of files that PyTorch wrote. Nothing when there is none or it is not such a file.
std::optional<ErrorReport> read_error_report(const std::filesystem::path& path);

}  // namespace tessera
