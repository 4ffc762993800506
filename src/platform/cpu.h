// What the processor and the system allow this process to use.
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
  std::string reason;  // when not granted: why, in words for the user
};

// CPUID leaf 1DH: what a tile register holds. All zero where a hypervisor hides it.
struct TileInformation {
  int64_t max_palette = 0;
  int64_t num_registers = 0;
  int64_t rows = 0;
  int64_t row_bytes = 0;

  // Whether it describes palette 1, the only one there is: what code that reads it needs to find.
  bool has_palette_1() const {
    return max_palette >= 1 && num_registers >= 8 && rows >= 16 && row_bytes >= 64;
  }
};

// An instruction set counts when CPUID announces it, the system saves its registers (XGETBV), those before it
// count too, and its instructions were tried and worked (platform/instruction_trial.h).
struct CpuFeatures {
  std::string brand;       // "Intel(R) Xeon(R) Platinum 8481C", as the processor says
  bool sse42 = false;      // CRC32
  bool avx2 = false;       // with FMA and F16C
  bool avx512 = false;     // F, BW, CD, DQ, VL
  bool avx512_dl = false;  // as Ice Lake has it: VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ, VPCLMULQDQ, VAES, GFNI
  bool avx512_bf16 = false;  // needs avx512, not avx512_dl
  AmxPermission amx;
  TileInformation tiles;
  std::string fault;  // what is announced but failed when tried, and how; "" = nothing
};

// Found out once, at the first call, which asks for the AMX tile registers too: call it before a ThreadPool
// is made. Error(kBadConfig) for a TESSERA_CPU_FAULTS that parse_cpu_faults() refuses.
const CpuFeatures& cpu_features();

// The kernel gives AMX tile registers to a process that asks for them (arch_prctl ARCH_REQ_XCOMP_PERM,
// XFEATURE_XTILEDATA), and to threads that it starts later. Part of cpu_features().
const AmxPermission& request_amx_permission();

// What TESSERA_CPU_FAULTS makes fail, for tests: names of instruction sets whose trial executes an illegal
// instruction, "tile_information" for a leaf 1DH that reads as zero. Separated by commas. Error(kBadConfig)
// for an unknown name. What the processor does not announce stays absent.
std::vector<std::string> parse_cpu_faults(std::string_view value);

// Processors in the affinity mask that the process had when this was first asked, ascending: pinning threads
// does not change the answer.
const std::vector<int>& usable_cpus();

// What the affinity mask and the control groups leave to this process.
struct CpuLimits {
  std::vector<int> cpus;        // of the mask, ascending, at least one
  std::optional<double> quota;  // CPU time per wall time
  // The hardware threads of each core that are in `cpus`; empty: every processor is a core of its own.
  std::vector<std::vector<int>> cores = {};

  int64_t num_cores() const;
  // Processors that this process can keep busy: those of the mask, cut to the quota (rounded up), at least 1.
  int64_t num_processors() const;
  // Threads that compute: one per core, because two on a core share its tile unit, L1 and L2. Cut likewise.
  int64_t num_threads() const;
  // How many of so many threads a core has at most: what they keep in its caches is cut to their share.
  int64_t threads_per_core(int64_t num_threads) const;
  // The processor to which each of so many threads is pinned: one per core, or one per processor of the mask,
  // where neighbours, who read what lies side by side, share a core. Empty for other numbers, or when the
  // quota has less time: where they run is left to the system then, because with fewer threads every process
  // would choose the same processors. One thread alone is left to it, too: it knows where there is room.
  std::vector<int> pinned_cpus(int64_t num_threads) const;
  bool can_pin(int64_t num_threads) const { return !pinned_cpus(num_threads).empty(); }
  // Whether a thread that waits may spin before it sleeps: each has a processor and the quota to use it.
  bool can_spin(int64_t num_threads) const;
  // "4 processors on 2 cores allowed by the affinity mask (0-3), cgroup CPU limit 1.50".
  std::string describe() const;
};
CpuLimits cpu_limits();
// Of a process with this affinity mask; `root` as in cgroup_limits.
CpuLimits cpu_limits(const std::filesystem::path& root, const std::vector<int>& cpus = usable_cpus());

// How many threads to start.
struct ThreadChoice {
  int64_t num_threads = 1;
  std::string warning;      // one line, when more are asked for than can run at once; they start all the same
  bool is_default = false;  // nobody asked for a number
};
// `asked` is the value of a flag, named so in the warning. 0 asks OMP_NUM_THREADS, of whose list the first
// number counts; without it (null, empty) it is limits.num_threads(). Error(kBadConfig) when it is not a
// number from 1 to kMaxThreads.
inline constexpr int64_t kMaxThreads = 4096;
ThreadChoice choose_threads(int64_t asked, const char* omp_num_threads, const CpuLimits& limits);

// Binds the calling thread to a processor; a refusal costs locality, nothing else. Threads and processes
// started by a pinned thread inherit that. As many calls of unpin_this_thread() bring back the mask from
// before the first.
void pin_this_thread(int cpu);
void unpin_this_thread();

// What the threads of a pool are pinned to, while it lives: spare_cpus() leaves these out.
class ClaimedCpus {
 public:
  explicit ClaimedCpus(std::vector<int> cpus);
  ~ClaimedCpus();
  ClaimedCpus(const ClaimedCpus&) = delete;
  ClaimedCpus& operator=(const ClaimedCpus&) = delete;

 private:
  std::vector<int> cpus_;
};

// For threads that wait and copy: the processors that no pool has claimed, the second hardware threads of
// cores above all, so that they take no time from a thread that computes. All of them where fewer than half
// as many are left as are claimed.
std::vector<int> spare_cpus();

// These processors for the calling thread while it lives, and for what it starts meanwhile.
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
