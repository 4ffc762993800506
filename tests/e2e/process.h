// Runs the built program as a child process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct ProcessOptions {
  std::string input = {};                               // for standard input
  std::vector<std::string> environment = {};            // "NAME=value", in addition to the parent's
  std::optional<std::string> output_file = {};          // standard output is redirected here
  bool error_is_terminal = false;                       // standard error is a pseudo-terminal
  bool output_has_reader = true;                        // false: a pipe that nobody has open for reading
  std::optional<int64_t> max_file_bytes = {};           // RLIMIT_FSIZE
  std::optional<int64_t> max_address_space_bytes = {};  // RLIMIT_AS
  std::optional<int64_t> open_files = {};               // the soft RLIMIT_NOFILE, as on most systems
  bool one_processor = false;                           // the affinity mask has a single processor
  // Called whenever output has arrived; may send signals to the process.
  std::function<void(pid_t pid, const std::string& out, const std::string& err)> on_output = {};
};

struct ProcessResult {
  int exit_code = -1;  // -1 if a signal ended it
  int signal = 0;
  std::string out;
  std::string err;

  // Lines of `err` that begin with "error: ".
  std::vector<std::string> errors() const;
};

std::vector<std::string> lines_of(const std::string& text);

// tessera with these arguments. A process that runs for more than four minutes is killed and fails the test.
ProcessResult run_tessera(const std::vector<std::string>& arguments, const ProcessOptions& options = {});

// A temporary folder for a test, removed afterwards.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  // Writes a file in it and returns its path.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& path);

}  // namespace tessera
