// What the processor and the system allow this process to use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct CpuFeatures {
  std::string brand;    // "Intel(R) Xeon(R) Platinum 8481C", as the processor says
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, CD, DQ, VL
  bool avx512_bf16 = false;
  bool amx_tile = false;
  bool amx_bf16 = false;
};

// From CPUID and XGETBV: a feature counts only if the system saves its registers.
const CpuFeatures& cpu_features();

struct AmxPermission {
  bool granted = false;
  std::string reason;  // when not granted: why, in words for the user
};

// Asks the kernel for the AMX tile registers once per process (arch_prctl ARCH_REQ_XCOMP_PERM,
// XFEATURE_XTILEDATA) and reads the answer back. Holds for threads started later, so call it before a
// ThreadPool is made.
const AmxPermission& request_amx_permission();

// Processors in the affinity mask that the process had when this was first asked, ascending: pinning threads
// does not change the answer.
const std::vector<int>& usable_cpus();

// What the affinity mask and the control groups leave to this process.
struct CpuLimits {
  std::vector<int> cpus;        // of the mask, ascending, at least one
  std::optional<double> quota;  // CPU time per wall time

  // Threads worth starting: one per processor of the mask, cut to the quota (rounded up), at least 1.
  int64_t num_threads() const;
  // Whether so many threads are pinned, each to a processor: when there are as many as the mask has
  // processors, and the quota has as much time. Otherwise where they run is left to the system: with fewer
  // threads, every process would choose the same processors, or both hyper-threads of a core.
  bool can_pin(int64_t num_threads) const;
  // Whether a thread that waits may spin before it sleeps: each has a processor and the quota to use it.
  bool can_spin(int64_t num_threads) const;
  // "2 processors allowed by the affinity mask (0-1), cgroup CPU limit 1.50".
  std::string describe() const;
};
// `root` as in cgroup_limits.
CpuLimits cpu_limits(const std::filesystem::path& root = "/");

// How many threads to start.
struct ThreadChoice {
  int64_t num_threads = 1;
  std::string warning;  // one line, when more are asked for than the limits allow; they start all the same
};
// `asked` is the value of a flag, named so in the warning. 0 asks OMP_NUM_THREADS, of whose list the first
// number counts; without it (null, empty) the limits decide. Error(kBadConfig) when it is not a number from 1
// to kMaxThreads.
inline constexpr int64_t kMaxThreads = 4096;
ThreadChoice choose_threads(int64_t asked, const char* omp_num_threads, const CpuLimits& limits);

// Binds the calling thread to a processor; a refusal costs locality, nothing else. Threads and processes
// started by a pinned thread inherit that. As many calls of unpin_this_thread() bring back the mask from
// before the first.
void pin_this_thread(int cpu);
void unpin_this_thread();

// All processors for the calling thread while it lives, and for what it starts meanwhile.
class UnpinnedScope {
 public:
  UnpinnedScope();
  ~UnpinnedScope();
  UnpinnedScope(const UnpinnedScope&) = delete;
  UnpinnedScope& operator=(const UnpinnedScope&) = delete;

 private:
  std::vector<int> pinned_to_;
};

}  // namespace tessera
