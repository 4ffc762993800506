// Where the ranks of one start leave output and errors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "launch/launch_plan.h"

namespace tessera {

// Makes the folder <log_dir>/<run id>_XXXXXX of the whole launch when a rank writes files; "" when none does.
// Without --log_dir it lies in the system's folder for temporary files. Error(kIoError).
std::filesystem::path make_log_folder(const LaunchPlan& plan);

// The files of one rank: below <log folder>/attempt_<restart_count>/<local rank>/, or in memory only.
class RankFiles {
 public:
  RankFiles(const std::filesystem::path& log_folder, int restart_count, int local_rank);
  ~RankFiles();
  RankFiles(RankFiles&& other) noexcept;
  RankFiles& operator=(RankFiles&&) = delete;

  // For TORCHELASTIC_ERROR_FILE. Without a log folder it is memory that this process holds: nothing is left
  // behind, and it works where no file can be written.
  const std::string& error_file() const { return error_file_; }
  // For TESSERA_PROGRESS_FILE: memory, too.
  std::string progress_file() const;
  bool has_progress() const;
  // Opens stdout.log or stderr.log to write to.
  int open_log(const char* name) const;

 private:
  std::filesystem::path folder_;
  std::string error_file_;
  int memory_fd_ = -1;
  int progress_fd_ = -1;
};

}  // namespace tessera
