// The report that a failing rank leaves for the agent that started it, in the file named by
// TORCHELASTIC_ERROR_FILE: torchrun reads its "message" and "timestamp", the agent of tessera launch all of
// it.
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
  int stop_signal = 0;  // nonzero: not a failure; the rank ends by this signal, which asked it to stop
};

// "signal 9 (SIGKILL)".
std::string signal_text(int number);

// Writes the report of this process, with RANK and the host name filled in. False if no file is requested or
// it cannot be written.
bool leave_error_report(ErrorReport report);

// Tells the agent that started this rank, if any, that the start has made progress.
void leave_progress_mark();

// True if the process with parent `parent` and this environment is a rank started by an agent of tessera
// launch. The agent shows the error of the rank that failed first, so a rank that leaves a report does not
// print it too.
bool agent_shows_errors(pid_t parent);

// Also reads files written by PyTorch. nullopt if there is no file or it is not an error report.
std::optional<ErrorReport> read_error_report(const std::filesystem::path& path);

}  // namespace tessera
