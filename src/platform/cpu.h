// What the processor and the system allow this process to use.
#pragma once

#include <cstdint>
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

// Binds the calling thread to one of them; a refusal costs locality, nothing else. Threads and processes
// started by a pinned thread inherit that. As many calls of unpin_this_thread() give all of them back.
void pin_this_thread(int cpu);
void unpin_this_thread();

// Whether the affinity mask has a processor for each of so many threads: they are pinned then.
bool can_pin(int64_t num_threads);
// Whether the quota of the cgroup has one, too: a thread that waits may spin then, before it sleeps.
bool can_spin(int64_t num_threads);

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

// Threads worth starting: the affinity mask, cut to the CPU quota of the cgroup (rounded up), at least 1.
int64_t usable_cpu_count();

}  // namespace tessera
