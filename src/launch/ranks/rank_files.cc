#include "launch/ranks/rank_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "base/error.h"
#include "io/absolute_path.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A run id may contain any characters.
std::string as_file_name(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_' && c != '.'; }, '_');
  return text;
}

UniqueFd make_memory(const char* name, int64_t size_bytes = 0) {
  UniqueFd file = memory_file(name, size_bytes);
  if (!file) fail_errno(ExitCode::kIoError, errno, fmt::format("memory for {}", name));
  return file;
}

// A folder of this user alone below the one for temporary files, in which everybody may create names: another
// user's file or folder of that name is refused, and links are not followed.
fs::path temporary_log_folder() {
  std::error_code error;
  const fs::path shared = fs::temp_directory_path(error);
  if (error) {
    fail(ExitCode::kIoError,
         "log files: the folder for temporary files (TMPDIR) cannot be used: {}; --log_dir names another",
         error.message());
  }
  const fs::path folder = shared / fmt::format("tessera-logs-{}", geteuid());
  if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    fail_errno(ExitCode::kIoError, errno, fmt::format("the folder '{}' for log files", folder.string()));
  const UniqueFd opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat state = {};
  const bool is_own = opened && fstat(opened.get(), &state) == 0 && state.st_uid == geteuid();
  if (!is_own || ((state.st_mode & (S_IRWXG | S_IRWXO)) != 0 && fchmod(opened.get(), S_IRWXU) != 0)) {
    fail(ExitCode::kIoError,
         "log files: {} is not a folder of this user alone: remove it, or name another folder with --log_dir",
         folder.string());
  }
  return folder;
}

}  // namespace

fs::path make_log_folder(const LaunchPlan& plan) {
  const bool has_files = std::any_of(plan.outputs.begin(), plan.outputs.end(),
                                     [](const RankOutput& output) { return output.has_file(); });
  if (plan.log_dir.empty() && !has_files) return {};
  const fs::path base = plan.log_dir.empty() ? temporary_log_folder() : fs::path(plan.log_dir);
  create_folder(base);
  std::string folder = (absolute_path(base) / (as_file_name(plan.run_id) + "_XXXXXX")).string();
  if (mkdtemp(folder.data()) == nullptr)
    fail_errno(ExitCode::kIoError, errno, fmt::format("a folder in '{}' for log files", base.string()));
  return folder;
}

RankFiles::RankFiles(const fs::path& log_folder, int restart_count, int local_rank)
    : progress_(make_memory("tessera_rank_progress")),
      position_memory_(make_memory("tessera_rank_position", RankPosition::size_bytes())),
      position_(position_memory_.get()) {
  if (!log_folder.empty()) {
    folder_ = log_folder / fmt::format("attempt_{}", restart_count) / fmt::format("{}", local_rank);
    create_folder(folder_);
    error_file_ = (folder_ / "error.json").string();
    return;
  }
  error_memory_ = make_memory("tessera_rank_error");
  error_file_ = error_memory_.path();
}

bool RankFiles::has_progress() const {
  struct stat status = {};
  return fstat(progress_.get(), &status) == 0 && status.st_size > 0;
}

int RankFiles::open_log(const char* name) const {
  const fs::path path = folder_ / name;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) fail_errno(ExitCode::kIoError, errno, path.string());
  return fd;
}

}  // namespace tessera
