// Processor features and CPU limits of this process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct AmxPermission {
  bool granted = false;
  std::string reason;  // if not granted: why, in words for the user
};

// CPUID leaf 1DH: the layout of a tile register. All zero where a hypervisor hides it.
struct TileInformation {
  int64_t max_palette = 0;
  int64_t num_registers = 0;
  int64_t rows = 0;
  int64_t row_bytes = 0;

  // Whether it describes palette 1, the only one that exists: what code that reads the leaf expects.
  bool has_palette_1() const {
    return max_palette >= 1 && num_registers >= 8 && rows >= 16 && row_bytes >= 64;
  }
};

// An instruction set counts if CPUID reports it, the system saves its registers (XGETBV), its predecessors
// count too, and a trial run of its instructions worked (platform/instruction_trial.h).
struct CpuFeatures {
  std::string brand;       // as the processor reports it: "Intel(R) Xeon(R) Platinum 8481C"
  bool avx2 = false;       // with FMA and F16C
  bool avx512 = false;     // F, BW, CD, DQ, VL
  bool avx512_dl = false;  // as Ice Lake has it: VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ, VPCLMULQDQ, VAES, GFNI
  bool avx512_bf16 = false;  // needs avx512, not avx512_dl
  AmxPermission amx;         // with BF16
  bool amx_int8 = false;     // needs amx
  TileInformation tiles;
  std::string fault;  // a feature that CPUID reports but whose trial failed, and how; "" = none
};

// Detected once, on the first call, which also requests the AMX tile registers: call it before creating a
// ThreadPool. Throws Error(kBadConfig) if parse_cpu_faults() rejects TESSERA_CPU_FAULTS.
const CpuFeatures& cpu_features();

// The kernel grants AMX tile registers to a process that requests them (arch_prctl ARCH_REQ_XCOMP_PERM,
// XFEATURE_XTILEDATA), and to threads it starts later. Part of cpu_features().
const AmxPermission& request_amx_permission();

// Faults that TESSERA_CPU_FAULTS injects for tests, separated by commas: names of instruction sets whose
// trial executes an illegal instruction, or "tile_information" for a leaf 1DH that reads as zero.
// Error(kBadConfig) for an unknown name. Features the processor does not report stay absent.
std::vector<std::string> parse_cpu_faults(std::string_view value);

// Processors in the affinity mask the process had at the first call, ascending: pinning threads does not
// change the answer.
const std::vector<int>& usable_cpus();

// The processors that the affinity mask and the control groups leave to this process.
struct CpuLimits {
  std::vector<int> cpus;        // in the mask, ascending, at least one
  std::optional<double> quota;  // CPU time per unit of wall time
  // The hardware threads of each core that are in `cpus`; if empty, every processor is its own core.
  std::vector<std::vector<int>> cores = {};

  int64_t num_cores() const;
  // Processors this process can keep busy: those in the mask, capped by the quota (rounded up), at least 1.
  int64_t num_processors() const;
  // Compute threads: one per core, because two on a core share its tile unit, L1 and L2. Capped likewise.
  int64_t num_threads() const;
  // The most of `num_threads` threads that share one core: each must fit its data into its share of that
  // core's caches.
  int64_t threads_per_core(int64_t num_threads) const;
  // The processor to pin each of `num_threads` threads to: one per core, or one per processor in the mask,
  // where neighbours, which read adjacent data, share a core. Empty for other thread counts and if the
  // quota covers fewer processors: placement is left to the system, because with fewer threads every
  // process would choose the same processors. A single thread is left to the system too: it knows where
  // there is room.
  std::vector<int> pinned_cpus(int64_t num_threads) const;
  bool can_pin(int64_t num_threads) const { return !pinned_cpus(num_threads).empty(); }
  // Whether a waiting thread may spin before it sleeps: each has a processor and the quota to use it.
  bool can_spin(int64_t num_threads) const;
  // "4 processors on 2 cores allowed by the affinity mask (0-3), cgroup CPU limit 1.50".
  std::string describe() const;
};
CpuLimits cpu_limits();
// Limits of a process with this affinity mask; `root` as in cgroup_limits.
CpuLimits cpu_limits(const std::filesystem::path& root, const std::vector<int>& cpus = usable_cpus());

// The number of threads to start.
struct ThreadChoice {
  int64_t num_threads = 1;
  std::string warning;      // one line, if more are requested than can run at once; they are started anyway
  bool is_default = false;  // no number was requested
};
// `asked` is the value of a flag, and the warning names that flag. 0 means the first number in the list of
// OMP_NUM_THREADS, or limits.num_threads() if that is unset or empty. Error(kBadConfig) if it is not a number
// from 1 to kMaxThreads.
inline constexpr int64_t kMaxThreads = 4096;
ThreadChoice choose_threads(int64_t asked, const char* omp_num_threads, const CpuLimits& limits);

// Pins the calling thread to a processor; a refusal costs only locality. Threads and processes that a pinned
// thread starts inherit the pinning. As many unpin_this_thread() calls restore the mask from before the first
// pin.
void pin_this_thread(int cpu);
void unpin_this_thread();

// The processors that a pool's threads are pinned to while the pool lives; spare_cpus() leaves these out.
class ClaimedCpus {
 public:
  explicit ClaimedCpus(std::vector<int> cpus);
  ~ClaimedCpus();
  ClaimedCpus(const ClaimedCpus&) = delete;
  ClaimedCpus& operator=(const ClaimedCpus&) = delete;

 private:
  std::vector<int> cpus_;
};

// For threads that wait and copy: the processors no pool has claimed, chiefly the second hardware threads of
// cores, so that they take no time from compute threads. All processors if fewer than half as many are left
// as are claimed.
std::vector<int> spare_cpus();

// Gives these processors to the calling thread, and to whatever it starts, for the lifetime of the scope.
class UnpinnedScope {
 public:
  explicit UnpinnedScope(const std::vector<int>& cpus = usable_cpus());
  ~UnpinnedScope();
  UnpinnedScope(const UnpinnedScope&) = delete;
  UnpinnedScope& operator=(const UnpinnedScope&) = delete;

 private:
  std::vector<int> pinned_to_;
};

}  // namespace tessera
