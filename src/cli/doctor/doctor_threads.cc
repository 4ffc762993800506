#include "cli/doctor/doctor_report.h"

#include <fmt/format.h>

#include "formats/json.h"
#include "platform/topology.h"

namespace tessera {
namespace {

bool has_siblings(const CpuLimits& limits) { return limits.num_cores() < std::ssize(limits.cpus); }

std::string pinning_text(const CpuLimits& limits, int64_t num_threads) {
  if (!limits.can_pin(num_threads)) return "not pinned";
  if (!has_siblings(limits)) return "each on its own processor";
  if (num_threads > limits.num_cores()) return "each on its own hardware thread";
  return "each on its own core, whose other hardware thread is left to waiting and copying";
}

std::string calibration_text(const PoolThreads& threads) {
  if (!threads.calibration) {
    return "not measured: needs a cgroup CPU limit that covers every processor, and products on AVX2 or "
           "better";
  }
  const std::string figures = threads.calibration->describe();
  if (!threads.choice.is_default) return figures + "; OMP_NUM_THREADS decides";
  return fmt::format("{}; not used below {:.2f}", figures, ThreadCalibration::kMinSpeedup);
}

nlohmann::ordered_json calibration_json(const std::optional<ThreadCalibration>& calibration) {
  if (!calibration) return {};
  const auto side = [](const ThreadCalibration::Side& each) {
    return nlohmann::ordered_json{{"num_threads", each.num_threads}, {"tflops", each.tflops}};
  };
  return {{"one_per_core", side(calibration->one_per_core)},
          {"two_per_core", side(calibration->two_per_core)},
          {"speedup", calibration->speedup},
          {"min_speedup", ThreadCalibration::kMinSpeedup}};
}

}  // namespace

nlohmann::ordered_json threads_json(const PoolThreads& threads, int64_t num_online) {
  const CpuLimits& limits = threads.limits;
  const int64_t num_threads = threads.num_threads();
  return {{"online", num_online},
          {"affinity", format_cpu_list(limits.cpus)},
          {"cores", limits.num_cores()},
          {"cgroup_quota", or_null(limits.quota)},
          {"threads", num_threads},
          {"threads_per_core", limits.threads_per_core(num_threads)},
          {"pinned", limits.can_pin(num_threads)},
          {"spinning", limits.can_spin(num_threads)},
          {"calibration", calibration_json(threads.calibration)}};
}

DoctorRows thread_rows(const PoolThreads& threads, int64_t num_online) {
  const CpuLimits& limits = threads.limits;
  const int64_t num_threads = threads.num_threads();
  DoctorRows rows;
  rows.emplace_back("processors",
                    fmt::format("{} online, {} on {} core{} allowed by the affinity mask ({})", num_online,
                                limits.cpus.size(), limits.num_cores(), limits.num_cores() == 1 ? "" : "s",
                                format_cpu_list(limits.cpus)));
  rows.emplace_back("cgroup CPU limit",
                    limits.quota ? fmt::format("{:.2f} processors", *limits.quota) : "none");
  rows.emplace_back("threads used",
                    fmt::format("{}, {}; waiting threads {}", num_threads, pinning_text(limits, num_threads),
                                limits.can_spin(num_threads) ? "spin first" : "sleep at once"));
  if (has_siblings(limits)) rows.emplace_back("hyper-threads", calibration_text(threads));
  return rows;
}

}  // namespace tessera
