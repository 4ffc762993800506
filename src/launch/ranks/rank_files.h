// Where the ranks of one start write output and errors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "comm/ranks/rank_position.h"
#include "launch/job/launch_plan.h"

namespace tessera {

// Creates the folder <log_dir>/<run id>_XXXXXX of the whole launch if any rank writes files; returns "" if
// none does. Without --log_dir it is in TMPDIR/tessera-logs-<user id>, which other users may not enter.
// Error(kIoError).
std::filesystem::path make_log_folder(const LaunchPlan& plan);

// The files of one rank: in <log folder>/attempt_<restart_count>/<local rank>/, or in memory only.
class RankFiles {
 public:
  RankFiles(const std::filesystem::path& log_folder, int restart_count, int local_rank);

  // The file for TORCHELASTIC_ERROR_FILE. Without a log folder it is a memory file of this process: it needs
  // no cleanup, and works where no file can be written.
  const std::string& error_file() const { return error_file_; }
  // TESSERA_PROGRESS_FILE names this, also a memory file.
  std::string progress_file() const { return progress_.path(); }
  bool has_progress() const;
  // TESSERA_POSITION_FILE names this, likewise.
  std::string position_file() const { return position_memory_.path(); }
  PositionReading position() const { return position_.read(); }
  // Creates stdout.log or stderr.log; one that exists is an Error(kIoError).
  int open_log(const char* name) const;

 private:
  std::filesystem::path folder_;
  std::string error_file_;
  UniqueFd error_memory_;
  UniqueFd progress_;
  UniqueFd position_memory_;
  RankPosition position_;
};

}  // namespace tessera
