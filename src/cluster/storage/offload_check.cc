#include "cluster/storage/offload_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cluster/storage/storage_check.h"
#include "io/absolute_path.h"
#include "io/disk_rate.h"
#include "io/shared_space.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// AdamW's moments in float32 and the remainders of the master weights, read and written by an update.
constexpr double kStateBytes = 10;
constexpr double kBillion = 1e9;
// Writing takes no longer, and reading neither.
constexpr double kTransferSeconds = 0.5;
// Slower, and even an update of 1 billion parameters takes more than 3 minutes.
constexpr double kSlowBytesPerS = 0.1e9;

TrialReport try_transfers(const fs::path& folder, double seconds) {
  const auto body = [&](const TrialReporter& reporter) {
    reporter.stage("resolve");
    std::error_code error;
    const fs::path real = fs::canonical(folder, error);
    if (error) fail(ExitCode::kIoError, "{}", error.message());
    reporter.text("real_path", real.string());
    reporter.stage("statfs");
    const fs::space_info space = fs::space(real, error);
    if (error) fail(ExitCode::kIoError, "{}", error.message());
    if (space.capacity > 0) {  // some file systems do not tell
      reporter.number("free_bytes", static_cast<double>(space.available));
      reporter.number("total_bytes", static_cast<double>(space.capacity));
    }
    reporter.stage("transfers");
    const DiskRate rate = measure_disk_rate(real, {}, std::min(kTransferSeconds, seconds / 8));
    reporter.number("read_bytes_per_s", rate.read_bytes_per_s);
    reporter.number("written_bytes_per_s", rate.written_bytes_per_s);
    reporter.number("direct", rate.is_direct ? 1 : 0);
    reporter.number("io_uring", rate.uses_io_uring ? 1 : 0);
    reporter.number("shares_space", can_share_space(real) ? 1 : 0);
  };
  return run_in_child(body, seconds);
}

Check check_offload_space(const TrialReport& report) {
  const double free_bytes = report.number("free_bytes").value_or(0);
  return {.name = "space",
          .message =
              fmt::format("{} free: room for the state (AdamW, {} bytes each) of {:.3g} billion parameters",
                          format_bytes(static_cast<int64_t>(free_bytes)), kStateBytes,
                          free_bytes / kStateBytes / kBillion),
          .value = free_bytes,
          .unit = "bytes"};
}

Check check_transfers(const TrialReport& report) {
  const bool is_direct = report.number("direct") == 1.0, has_ring = report.number("io_uring") == 1.0;
  Check check = {.name = "transfers",
                 .outcome = is_direct && has_ring ? CheckOutcome::kOk : CheckOutcome::kAdvice,
                 .message = is_direct ? "direct I/O"
                                      : "no direct I/O here: the page cache copies all of it, and "
                                        "the rates below are partly those of memory"};
  check.message += has_ring ? ", io_uring"
                            : ", no io_uring: refused by the system, as by seccomp filters of containers; "
                              "threads take more of the processor";
  return check;
}

Check check_checkpoints(const TrialReport& report) {
  return {.name = "checkpoints",
          .message = report.number("shares_space") == 1.0
                         ? "share the space of what is here if output_dir is on this file system"
                         : "write what is here once more: this file system cannot share space between "
                           "files (XFS and btrfs can)"};
}

Check check_rate(const std::string& name, double bytes_per_s) {
  Check check = {.name = name,
                 .message = fmt::format("{:.3g} GB/s", bytes_per_s * 1e-9),
                 .value = bytes_per_s * 1e-9,
                 .limit = kSlowBytesPerS * 1e-9,
                 .unit = "GB/s"};
  if (bytes_per_s >= kSlowBytesPerS) return check;
  check.outcome = CheckOutcome::kAdvice;
  check.message += ": slow for state that every step moves; choose another disk";
  return check;
}

}  // namespace

Check check_offload_file_system(const std::optional<Mount>& mount) {
  if (!mount) return skipped("file_system", "/proc/self/mountinfo does not name it");
  Check check = {.name = "file_system",
                 .outcome = CheckOutcome::kAdvice,
                 .message = fmt::format("{} from {} at {}", mount->type, printable(mount->source),
                                        printable(mount->point))};
  switch (mount->kind()) {
    case FileSystemKind::kMemory:
      check.outcome = CheckOutcome::kFailed;
      check.message += ": memory, which is what offloading should save: choose a folder on a disk";
      break;
    case FileSystemKind::kObjectStore:
      check.outcome = CheckOutcome::kFailed;
      check.message += ": an object store, which cannot change a part of a file: choose a folder on a disk";
      break;
    case FileSystemKind::kOverlay:
      check.message += ": the container's own layer, limited by its ephemeral storage: mount a local disk";
      break;
    case FileSystemKind::kNfs:
    case FileSystemKind::kLustre:
      check.message += ": on the network, for every byte of every step: a local disk is faster";
      break;
    default:
      check.outcome = CheckOutcome::kOk;
  }
  return check;
}

std::vector<Check> judge_offload(const fs::path& folder, const std::optional<Mount>& mount,
                                 const TrialReport& report, double seconds) {
  std::vector<Check> checks = {check_answer(mount, report, seconds)};
  checks.back().message = printable(folder.string(), 120) + ": " + checks.back().message;
  if (report.number("free_bytes")) checks.push_back(check_offload_space(report));
  if (checks.front().outcome != CheckOutcome::kOk) return checks;
  checks.push_back(check_transfers(report));
  const double read = report.number("read_bytes_per_s").value_or(1),
               written = report.number("written_bytes_per_s").value_or(1);
  checks.push_back(check_rate("write", written));
  checks.push_back(check_rate("read", read));
  const double update_s = kStateBytes * kBillion * (1 / read + 1 / written);
  checks.push_back(
      {.name = "update",
       .message = fmt::format("{:.3g} s for the state of 1 billion parameters, read and written", update_s),
       .value = update_s,
       .unit = "s"});
  checks.push_back(check_checkpoints(report));
  return checks;
}

std::vector<Check> check_offload(const fs::path& folder, double seconds, const fs::path& root) {
  // Not canonical(): that asks the file system, which may hang.
  const fs::path absolute = absolute_path(folder).lexically_normal();
  const std::vector<Mount> mounts = read_mounts(root);
  const TrialReport report = try_transfers(absolute, seconds);
  const std::string real = report.text("real_path");
  const std::optional<Mount> mount = mount_of(mounts, real.empty() ? absolute : fs::path(real));
  std::vector<Check> checks = {check_offload_file_system(mount)};
  for (Check& check : judge_offload(absolute, mount, report, seconds)) checks.push_back(std::move(check));
  return checks;
}

}  // namespace tessera
