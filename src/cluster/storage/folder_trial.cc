#include "cluster/storage/folder_trial.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <random>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/median.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kPieceBytes = int64_t{4} << 20;
constexpr int64_t kSmallBytes = 4096;
constexpr size_t kMaxReportBytes = 1 << 20;

// Thrown in the child: a stage failed, and with it the trial.
struct StageError {
  std::string text;
};

[[noreturn]] void stage_failed(const std::string& what) {
  const int error = errno;
  throw StageError{fmt::format("{}: {}", what, std::strerror(error))};
}

void read_line_of_report(const std::string& line, TrialReport* report) {
  const size_t tab = line.find('\t');
  if (line.empty() || tab == std::string::npos) return;
  const std::string name = line.substr(1, tab - 1), value = line.substr(tab + 1);
  if (line[0] == 's') report->last_stage = name;
  if (line[0] == 'n') report->numbers[name] = std::strtod(value.c_str(), nullptr);
  if (line[0] == 't') report->texts[name] = value;
  if (line[0] == 'e') report->is_complete = true;
}

// In the child. It keeps no descriptor that others wait on.
[[noreturn]] void run_child(const std::function<void(const TrialReporter& reporter)>& body, int report_fd,
                            pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, standard);
  for (const int number : {SIGINT, SIGTERM, SIGSEGV, SIGBUS, SIGABRT}) signal(number, SIG_DFL);
  const TrialReporter reporter(report_fd);
  try {
    body(reporter);
  } catch (const StageError& error) {
    reporter.text("error", error.text);
  } catch (const std::exception& error) {
    reporter.text("error", error.what());
  }
  [[maybe_unused]] const auto ignored = write(report_fd, "e\t\n", 3);
  _exit(0);
}

// A name that is removed at the end, if it exists.
class ScratchName {
 public:
  explicit ScratchName(fs::path path) : path_(std::move(path)) {}
  ~ScratchName() { unlink(path_.c_str()); }
  ScratchName(const ScratchName&) = delete;
  ScratchName& operator=(const ScratchName&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void fill_piece(const PageBuffer& buffer, int64_t piece) {
  const std::span<uint64_t> words = buffer.as<uint64_t>();
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = (i + static_cast<size_t>(piece) * 31) * 0x9E3779B97F4A7C15u;
}

void write_whole(int fd, const void* data, size_t count, off_t offset) {
  const ssize_t written = pwrite(fd, data, count, offset);
  if (written < 0) stage_failed("write");
  if (static_cast<size_t>(written) != count) throw StageError{"write: the disk is full"};
}

void report_space(const fs::path& folder, const TrialReporter& reporter) {
  struct statfs info = {};
  if (statfs(folder.c_str(), &info) != 0) stage_failed("statfs");
  const auto block = static_cast<double>(info.f_bsize);
  reporter.number("type", static_cast<double>(info.f_type));
  reporter.number("total_bytes", static_cast<double>(info.f_blocks) * block);
  reporter.number("free_bytes", static_cast<double>(info.f_bavail) * block);
  reporter.number("total_inodes", static_cast<double>(info.f_files));
  reporter.number("free_inodes", static_cast<double>(info.f_ffree));
}

UniqueFd create_file(const fs::path& path, const TrialReporter& reporter) {
  constexpr int kFlags = O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC;
  UniqueFd file(open(path.c_str(), kFlags | O_DIRECT, 0600));
  bool is_direct = static_cast<bool>(file);
  if (!file && errno == EINVAL) {
    unlink(path.c_str());  // some file systems create it before they refuse
    file = UniqueFd(open(path.c_str(), kFlags, 0600));
  }
  if (!file) stage_failed("create");
  unlink(path.c_str());  // so that nothing is left if this process is killed
  reporter.number("direct", is_direct ? 1 : 0);
  return file;
}

// Returns the number of pieces.
int64_t write_large(int fd, const FolderTrialOptions& options, const TrialReporter& reporter) {
  const PageBuffer buffer(kPieceBytes);
  const Stopwatch stopwatch;
  double filling = 0;
  int64_t pieces = 0;
  do {
    const Stopwatch fill;
    fill_piece(buffer, pieces);
    filling += fill.seconds();
    write_whole(fd, buffer.data(), static_cast<size_t>(kPieceBytes), pieces * kPieceBytes);
    ++pieces;
  } while (pieces * kPieceBytes < options.max_bytes && stopwatch.seconds() < options.seconds / 8);
  if (fsync(fd) != 0) stage_failed("fsync");
  reporter.number("written_bytes", static_cast<double>(pieces * kPieceBytes));
  reporter.number("write_mb_per_s", static_cast<double>(pieces * kPieceBytes) / 1e6 /
                                        std::max(1e-9, stopwatch.seconds() - filling));
  return pieces;
}

void measure_fsync(int fd, int64_t at, const TrialReporter& reporter) {
  const PageBuffer buffer(kSmallBytes);
  std::vector<double> times(5);
  for (double& ms : times) {
    const Stopwatch stopwatch;
    write_whole(fd, buffer.data(), static_cast<size_t>(kSmallBytes), at);
    if (fsync(fd) != 0) stage_failed("fsync");
    ms = stopwatch.seconds() * 1e3;
    at += kSmallBytes;
  }
  reporter.number("fsync_ms", median(times));
}

void read_large(int fd, int64_t pieces, const FolderTrialOptions& options, const TrialReporter& reporter) {
  const PageBuffer expected(kPieceBytes), found(kPieceBytes);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  const Stopwatch stopwatch;
  double reading = 0;
  int64_t piece = 0;
  for (; piece < pieces && stopwatch.seconds() < options.seconds / 8; ++piece) {
    const Stopwatch one;
    const ssize_t count = pread(fd, found.data(), static_cast<size_t>(kPieceBytes), piece * kPieceBytes);
    reading += one.seconds();
    if (count < 0) stage_failed("read");
    fill_piece(expected, piece);
    if (count != kPieceBytes ||
        std::memcmp(found.data(), expected.data(), static_cast<size_t>(kPieceBytes)) != 0) {
      reporter.text("wrong", fmt::format("bytes {} to {} are not what was written", piece * kPieceBytes,
                                         (piece + 1) * kPieceBytes));
      return;
    }
  }
  reporter.number("read_mb_per_s", static_cast<double>(piece * kPieceBytes) / 1e6 / std::max(1e-9, reading));
}

std::string try_rename(const fs::path& folder, const std::string& stem) {
  const ScratchName from(folder / (stem + ".new")), to(folder / (stem + ".old"));
  for (const ScratchName* name : {&from, &to}) {
    const UniqueFd file(open(name->path().c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
    if (!file) return fmt::format("cannot create a second file: {}", std::strerror(errno));
    const std::string content = name->path().extension();
    if (write(file.get(), content.data(), content.size()) != std::ssize(content) || fsync(file.get()) != 0) {
      return fmt::format("cannot write a second file: {}", std::strerror(errno));
    }
  }
  if (rename(from.path().c_str(), to.path().c_str()) != 0) return std::strerror(errno);
  const UniqueFd file(open(to.path().c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 16> content = {};
  const ssize_t count = file ? read(file.get(), content.data(), content.size()) : -1;
  if (count != 4 || std::string(content.data(), 4) != ".new")
    return "the old content remained under the name";
  struct stat ignored = {};
  if (lstat(from.path().c_str(), &ignored) == 0) return "the file still has its old name, too";
  return "";
}

std::string try_locks(const fs::path& path) {
  const ScratchName name(path);
  const UniqueFd first(open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  const UniqueFd second(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!first || !second) return fmt::format("cannot open the file twice: {}", std::strerror(errno));
  if (flock(first.get(), LOCK_EX | LOCK_NB) != 0) return fmt::format("flock: {}", std::strerror(errno));
  if (flock(second.get(), LOCK_EX | LOCK_NB) == 0) return "a second process can take a lock that is held";
  return "";
}

// Lustre tells a file's layout to everyone as "lustre.lov", older versions to root as "trusted.lov".
void report_layout(int fd, const TrialReporter& reporter) {
  std::array<unsigned char, 4096> bytes = {};
  for (const char* name : {"lustre.lov", "trusted.lov"}) {
    const ssize_t count = fgetxattr(fd, name, bytes.data(), bytes.size());
    if (count <= 0) continue;
    std::string text;
    for (ssize_t i = 0; i < count; ++i) text += fmt::format("{:02x}", bytes[static_cast<size_t>(i)]);
    reporter.text("lov", text);
    return;
  }
}

void try_folder_in_child(const fs::path& folder, const FolderTrialOptions& options,
                         const TrialReporter& reporter) {
  reporter.stage("resolve");
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (error) throw StageError{fmt::format("{}", error.message())};
  reporter.text("real_path", real.string());
  reporter.stage("statfs");
  report_space(real, reporter);
  reporter.stage("create");
  // Others who may write there (/tmp) cannot take the names before: a link of theirs would be followed.
  std::random_device random;
  const std::string stem = fmt::format(".tessera-check-{}-{:08x}{:08x}", getpid(), random(), random());
  const UniqueFd file = create_file(real / stem, reporter);
  reporter.stage("write");
  const int64_t pieces = write_large(file.get(), options, reporter);
  reporter.stage("fsync");
  measure_fsync(file.get(), pieces * kPieceBytes, reporter);
  reporter.stage("read");
  read_large(file.get(), pieces, options, reporter);
  reporter.stage("rename");
  reporter.text("rename_error", try_rename(real, stem));
  reporter.stage("locks");
  reporter.text("lock_error", try_locks(real / (stem + ".lock")));
  reporter.stage("layout");
  report_layout(file.get(), reporter);
}

}  // namespace

std::optional<double> TrialReport::number(const std::string& name) const {
  const auto found = numbers.find(name);
  return found == numbers.end() ? std::nullopt : std::optional(found->second);
}

std::string TrialReport::text(const std::string& name) const {
  const auto found = texts.find(name);
  return found == texts.end() ? "" : found->second;
}

void TrialReporter::number(const std::string& name, double value) const {
  send('n', name, fmt::format("{}", value));
}

void TrialReporter::send(char kind, const std::string& name, const std::string& value) const {
  const std::string line = fmt::format("{}{}\t{}\n", kind, name, printable(value, 10'000));
  for (size_t at = 0; at < line.size();) {
    const ssize_t count = write(fd_, line.data() + at, line.size() - at);
    if (count <= 0) _exit(0);  // the parent has stopped waiting
    at += static_cast<size_t>(count);
  }
}

TrialReport run_in_child(const std::function<void(const TrialReporter& reporter)>& body, double seconds) {
  std::array<int, 2> ends = {};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno(ExitCode::kIoError, errno, "cannot make a pipe");
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t parent = getpid(), child = fork();
  if (child < 0) fail_errno(ExitCode::kIoError, errno, "cannot start a process");
  if (child == 0) run_child(body, writing.get(), parent);
  writing.reset();
  TrialReport report;
  std::string rest;
  size_t total = 0;
  const auto limit =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (total < kMaxReportBytes) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now()).count();
    pollfd waiting = {reading.get(), POLLIN, 0};
    const int num_ready = left <= 0 ? 0 : poll(&waiting, 1, static_cast<int>(left));
    if (num_ready < 0 && errno == EINTR) continue;
    if (num_ready == 0) {
      report.timed_out = true;
      break;
    }
    std::array<char, 4096> buffer;
    const ssize_t count = read(reading.get(), buffer.data(), buffer.size());
    if (count <= 0) break;
    total += static_cast<size_t>(count);
    rest.append(buffer.data(), static_cast<size_t>(count));
    for (size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1)) {
      read_line_of_report(rest.substr(0, end), &report);
    }
  }
  if (!report.is_complete) kill(child, SIGKILL);
  // A process in uninterruptible sleep survives the signal until its server answers; init will collect it.
  for (int i = 0; i < 100 && waitpid(child, nullptr, WNOHANG) == 0; ++i) usleep(1000);
  return report;
}

TrialReport try_folder(const fs::path& folder, const FolderTrialOptions& options) {
  return run_in_child([&](const TrialReporter& reporter) { try_folder_in_child(folder, options, reporter); },
                      options.seconds);
}

}  // namespace tessera
