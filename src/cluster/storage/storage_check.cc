#include "cluster/storage/storage_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "io/absolute_path.h"
#include "platform/system.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A checkpoint of an 8B model is 100 GB: 17 minutes at this speed.
constexpr double kMinMbPerS = 100;
constexpr double kMinFreeBytes = 10e9;
constexpr double kMinFreeShare = 0.05;
constexpr int64_t kGoodTransferBytes = int64_t{1} << 20;

Check finding(std::string name, CheckOutcome outcome, std::string message) {
  return {.name = std::move(name), .outcome = outcome, .message = std::move(message)};
}

Check check_nfs_options(const Mount& mount) {
  if (mount.has_option("soft") || mount.has_option("softerr")) {
    return finding(
        "options", CheckOutcome::kFailed,
        "soft: reads and writes fail when the server is slow for a while, and training ends: mount with "
        "hard");
  }
  std::vector<std::string> advice;
  const std::string version = mount.option("vers");
  if (version.starts_with("3") || version.starts_with("2")) {
    advice.push_back(fmt::format("vers={}: nfsvers=4.1 locks files reliably", version));
  }
  if (mount.has_option("nolock") || mount.option("local_lock") == "all" ||
      mount.option("local_lock") == "flock") {
    advice.emplace_back("locks hold on this machine only: nodes that share a cache do not see each other's");
  }
  for (const char* name : {"rsize", "wsize"}) {
    const std::string bytes = mount.option(name);
    if (!bytes.empty() && std::strtoll(bytes.c_str(), nullptr, 10) < kGoodTransferBytes) {
      advice.push_back(fmt::format("{0}={1}: mount with {0}={2}", name, bytes, kGoodTransferBytes));
    }
  }
  if (advice.empty()) return finding("options", CheckOutcome::kOk, fmt::format("hard, vers={}", version));
  return finding("options", CheckOutcome::kAdvice, fmt::format("{}", fmt::join(advice, "; ")));
}

Check check_lustre_options(const Mount& mount) {
  if (mount.has_option("flock")) return finding("options", CheckOutcome::kOk, "flock");
  return finding("options", CheckOutcome::kAdvice,
                 fmt::format("{}: nodes that share a cache do not see each other's locks: mount with flock",
                             mount.has_option("localflock") ? "localflock" : "no flock"));
}

Check check_speed(const std::string& name, const std::optional<double>& speed, const std::string& how) {
  if (!speed) return unknown(name, "not measured");
  Check check = {.name = name,
                 .outcome = *speed < kMinMbPerS ? CheckOutcome::kAdvice : CheckOutcome::kOk,
                 .message = fmt::format("{:.0f} MB/s, one file, {}", *speed, how),
                 .value = *speed,
                 .limit = kMinMbPerS,
                 .unit = "MB/s"};
  if (*speed < kMinMbPerS) {
    check.message += fmt::format(
        ": 100 GB take {}; choose a faster file system, or a larger one where speed grows "
        "with size",
        format_duration(100e9 / (*speed * 1e6)));
  }
  return check;
}

}  // namespace

Check check_answer(const std::optional<Mount>& mount, const TrialReport& report, double seconds) {
  const std::string error = report.text("error");
  if (report.timed_out) {
    const bool is_remote =
        mount && (mount->kind() == FileSystemKind::kNfs || mount->kind() == FileSystemKind::kLustre);
    return finding(
        "responds", CheckOutcome::kFailed,
        fmt::format(
            "no answer for {:.1f} s in stage {}: {}", seconds, report.last_stage,
            is_remote
                ? fmt::format("check that {} is up and that security groups allow {}", mount->source,
                              mount->kind() == FileSystemKind::kNfs ? "TCP 2049" : "TCP 988 and 1018-1023")
                : "the disk or what serves this file system hangs, or is too slow for --seconds"));
  }
  if (!error.empty()) {
    return finding("responds", CheckOutcome::kFailed, fmt::format("stage {}: {}", report.last_stage, error));
  }
  if (!report.is_complete)
    return unknown("responds", fmt::format("the trial ended in stage {}", report.last_stage));
  return finding("responds", CheckOutcome::kOk, "all operations answered");
}

Check describe_file_system(const std::optional<Mount>& mount) {
  if (!mount) return skipped("file_system", "/proc/self/mountinfo does not name it");
  const std::string what = fmt::format("{}{} from {} at {}", mount->type, mount->is_efs() ? " (EFS)" : "",
                                       printable(mount->source), printable(mount->point));
  switch (mount->kind()) {
    case FileSystemKind::kMemory:
      return finding("file_system", CheckOutcome::kAdvice,
                     what + ": memory, lost with the machine or pod: not for checkpoints");
    case FileSystemKind::kOverlay:
      return finding("file_system", CheckOutcome::kAdvice,
                     what + ": the container's own layer, lost with the container: not for checkpoints");
    case FileSystemKind::kObjectStore:
      return finding(
          "file_system", CheckOutcome::kAdvice,
          what + ": an object store: for data sets and models to read; checkpoints need a file system");
    default:
      return finding("file_system", CheckOutcome::kOk, what);
  }
}

Check check_mount_options(const std::optional<Mount>& mount) {
  if (!mount) return skipped("options", "the mount is not known");
  if (mount->has_option("ro")) {
    return finding("options", CheckOutcome::kFailed,
                   "ro: mounted read-only; after an error of the disk if it was not so before");
  }
  if (mount->kind() == FileSystemKind::kNfs) return check_nfs_options(*mount);
  if (mount->kind() == FileSystemKind::kLustre) return check_lustre_options(*mount);
  return finding("options", CheckOutcome::kOk, fmt::format("{}", fmt::join(mount->options, ", ")));
}

Check check_lustre_versions(const std::optional<std::vector<KernelMessage>>& messages, double uptime) {
  if (!messages)
    return skipped("versions", "the kernel log is not readable here: needs /dev/kmsg and CAP_SYSLOG");
  for (auto message = messages->rbegin(); message != messages->rend(); ++message) {
    if (message->seconds < uptime - kKernelLogSeconds) break;
    if (message->text.find("refused connection from this client with an incompatible version") ==
        std::string::npos) {
      continue;
    }
    return finding(
        "versions", CheckOutcome::kFailed,
        printable(message->text, 200) +
            ": create the file system with fileSystemTypeVersion 2.15 (FSx's default may be 2.10), or "
            "install the client of the server's version");
  }
  return finding("versions", CheckOutcome::kOk, "no refused connection in the kernel log");
}

Check check_lustre_layout(const std::optional<Mount>& mount, const TrialReport& report) {
  if (!mount || mount->kind() != FileSystemKind::kLustre) return skipped("layout", "not Lustre");
  const auto layout = parse_lustre_layout(report.text("lov"));
  if (!layout) return skipped("layout", "Lustre does not tell it: lfs getstripe -d DIR");
  const std::string stripes = layout->stripe_count < 0 ? "all" : fmt::format("{}", layout->stripe_count);
  Check check = finding("layout", layout->stripe_count == 1 ? CheckOutcome::kAdvice : CheckOutcome::kOk,
                        fmt::format("{} stripes of {}", stripes, format_bytes(layout->stripe_bytes)));
  if (layout->stripe_count == 1) {
    check.message =
        fmt::format("1 stripe of {}: large files use one server only: lfs setstripe -c -1 -S 4M DIR",
                    format_bytes(layout->stripe_bytes));
  }
  check.value = static_cast<double>(layout->stripe_count);
  check.unit = "stripes";
  return check;
}

Check check_space(const std::string& name, const TrialReport& report, double limit_bytes) {
  constexpr double kMinFreeInodes = 1000;
  const auto free_bytes = report.number("free_bytes"), total = report.number("total_bytes");
  if (!free_bytes || !total || *total == 0) return skipped(name, "the file system does not tell");
  const bool few_inodes = report.number("total_inodes").value_or(0) > 0 &&
                          report.number("free_inodes").value_or(0) < kMinFreeInodes;
  std::string message = fmt::format("{} of {} free", format_bytes(static_cast<int64_t>(*free_bytes)),
                                    format_bytes(static_cast<int64_t>(std::min(*total, 9e18))));
  if (few_inodes) message += ", but hardly an inode: remove files";
  if (*free_bytes < limit_bytes) message += ": remove files, or save fewer checkpoints (--save_total_limit)";
  return judged(name, *free_bytes < limit_bytes || few_inodes, *free_bytes, limit_bytes, "bytes", message);
}

std::vector<Check> judge_trial(const fs::path& folder, const std::optional<Mount>& mount,
                               const TrialReport& report, double seconds) {
  std::vector<Check> checks = {check_answer(mount, report, seconds)};
  checks.back().message = printable(folder.string(), 120) + ": " + checks.back().message;
  checks.push_back(check_space(
      "space", report, std::min(kMinFreeBytes, kMinFreeShare * report.number("total_bytes").value_or(0))));
  if (checks.front().outcome != CheckOutcome::kOk) return checks;
  const std::string how =
      report.number("direct") == 1.0 ? "direct I/O" : "no direct I/O here: the cache may help";
  checks.push_back(check_speed("write", report.number("write_mb_per_s"), how));
  if (const std::string wrong = report.text("wrong"); !wrong.empty()) {
    checks.push_back(
        finding("read", CheckOutcome::kFailed, wrong + ": do not use it; the disk or its server loses data"));
  } else {
    checks.push_back(check_speed("read", report.number("read_mb_per_s"), how));
  }
  const double fsync_ms = report.number("fsync_ms").value_or(0);
  checks.push_back(
      at_most("fsync", fsync_ms, kMaxFsyncMs, "ms",
              fmt::format("{:.3g} ms{}", fsync_ms,
                          fsync_ms > kMaxFsyncMs ? ": the disk is failing, or the server overloaded" : "")));
  const std::string rename_error = report.text("rename_error");
  checks.push_back(finding("rename", rename_error.empty() ? CheckOutcome::kOk : CheckOutcome::kFailed,
                           rename_error.empty()
                               ? "replaces a file at once"
                               : rename_error + ": checkpoints and results cannot be written here; "
                                                "use a file system for output_dir"));
  const std::string lock_error = report.text("lock_error");
  checks.push_back(finding("locks", lock_error.empty() ? CheckOutcome::kOk : CheckOutcome::kAdvice,
                           lock_error.empty()
                               ? "flock works"
                               : lock_error + ": nothing keeps two jobs of a machine from one output_dir"));
  return checks;
}

std::vector<Check> check_storage(const fs::path& folder, double seconds, const fs::path& root) {
  // Not canonical(): that asks the file system, which may hang.
  const fs::path absolute = absolute_path(folder).lexically_normal();
  const std::vector<Mount> mounts = read_mounts(root);
  const TrialReport report = try_folder(absolute, {.seconds = seconds});
  const std::string real = report.text("real_path");
  const std::optional<Mount> mount = mount_of(mounts, real.empty() ? absolute : fs::path(real));
  std::vector<Check> checks = {describe_file_system(mount), check_mount_options(mount)};
  // Also elsewhere: where a mount is refused, the folder below it remains, on the node's own disk.
  checks.push_back(check_lustre_versions(kernel_messages(root), uptime_s(root).value_or(0)));
  checks.push_back(check_lustre_layout(mount, report));
  for (Check& check : judge_trial(absolute, mount, report, seconds)) checks.push_back(std::move(check));
  return checks;
}

}  // namespace tessera
