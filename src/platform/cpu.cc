#include "platform/cpu.h"

#include <cpuid.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "platform/cgroup.h"
#include "platform/instruction_trial.h"
#include "platform/topology.h"

namespace tessera {
namespace {

struct CpuidRegisters {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidRegisters cpuid(unsigned leaf, unsigned subleaf) {
  CpuidRegisters r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

constexpr bool bit(unsigned value, int index) { return (value >> index & 1u) != 0; }

// XCR0: which register states the operating system saves.
uint64_t enabled_register_states() {
  if (!bit(cpuid(1, 0).ecx, 27)) return 0;  // OSXSAVE
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

std::string brand_string() {
  std::array<char, 49> text = {};
  for (unsigned i = 0; i < 3; ++i) {
    const CpuidRegisters r = cpuid(0x80000002u + i, 0);
    const std::array<unsigned, 4> words = {r.eax, r.ebx, r.ecx, r.edx};
    std::memcpy(text.data() + i * 16, words.data(), 16);
  }
  std::string brand(text.data());
  const auto first = brand.find_first_not_of(' ');
  return first == std::string::npos ? "unknown processor" : brand.substr(first);
}

constexpr std::array<std::string_view, 7> kFaultNames = {
    "avx2", "avx512", "avx512_dl", "avx512_bf16", "amx_bf16", "amx_int8", "tile_information"};
constexpr const char* kFaultsVariable = "TESSERA_CPU_FAULTS";

// Tries the instruction sets that CPUID reports and collects the failures.
class Trials {
 public:
  explicit Trials(std::vector<std::string> injected) : injected_(std::move(injected)) {}

  bool is_injected(std::string_view name) const {
    return std::find(injected_.begin(), injected_.end(), name) != injected_.end();
  }

  // Why a reported instruction set does not count, or "".
  std::string run(std::string_view name, std::string_view what, bool (*works)()) {
    const bool injected = is_injected(name);
    const std::string problem = try_instructions(injected ? illegal_instruction : works);
    if (problem.empty()) return "";
    const std::string fault = fmt::format("{} is announced but fails when tried: {}{}", what, problem,
                                          injected ? fmt::format(", as {} asks for", kFaultsVariable) : "");
    faults_ += (faults_.empty() ? "" : "; ") + fault;
    return fault;
  }

  const std::string& faults() const { return faults_; }

 private:
  std::vector<std::string> injected_;
  std::string faults_;
};

TileInformation read_tile_information() {
  constexpr unsigned kLeaf = 0x1D;
  const CpuidRegisters palette = cpuid(kLeaf, 1);
  return {.max_palette = cpuid(kLeaf, 0).eax,
          .num_registers = palette.ebx >> 16,
          .rows = palette.ecx & 0xFFFFu,
          .row_bytes = palette.ebx & 0xFFFFu};
}

AmxPermission ask_for_amx(bool announced, bool has_avx512_bf16, Trials* trials) {
  constexpr long kArchGetXcompPerm = 0x1022;
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureXtiledata = 18;
  if (!announced) return {false, "the processor or the virtual machine offers no AMX bf16 tiles"};
  if (!has_avx512_bf16) return {false, "the AMX kernels also need AVX-512 BF16, which does not run here"};
  if (syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) != 0) {
    return {false, std::string("the kernel refused the tile registers: ") + std::strerror(errno)};
  }
  uint64_t granted = 0;
  if (syscall(SYS_arch_prctl, kArchGetXcompPerm, &granted) != 0 ||
      (granted >> kXfeatureXtiledata & 1u) == 0) {
    return {false, "the kernel reports that the tile registers are not permitted"};
  }
  const std::string fault = trials->run("amx_bf16", "AMX", amx_bf16_works);
  return {fault.empty(), fault};
}

CpuFeatures detect() {
  constexpr uint64_t kYmmState = 0x6;       // SSE and AVX
  constexpr uint64_t kZmmState = 0xE6;      // plus opmask, ZMM
  constexpr uint64_t kTileState = 0x60000;  // TILECFG, TILEDATA
  const uint64_t states = enabled_register_states();
  const bool ymm = (states & kYmmState) == kYmmState;
  const bool zmm = (states & kZmmState) == kZmmState;
  const bool tiles = (states & kTileState) == kTileState;
  const CpuidRegisters one = cpuid(1, 0);
  const CpuidRegisters seven = cpuid(7, 0);
  const CpuidRegisters seven_one = cpuid(7, 1);
  const auto has_all = [](unsigned value, std::initializer_list<int> bits) {
    return std::all_of(bits.begin(), bits.end(), [&](int index) { return bit(value, index); });
  };
  const char* injected = std::getenv(kFaultsVariable);
  Trials trials(parse_cpu_faults(injected == nullptr ? "" : injected));
  const auto usable = [&](bool announced, std::string_view name, std::string_view what, bool (*works)()) {
    return announced && trials.run(name, what, works).empty();
  };
  CpuFeatures f;
  f.brand = brand_string();
  f.avx2 = usable(ymm && bit(seven.ebx, 5) && has_all(one.ecx, {12, 29}), "avx2", "AVX2", avx2_works);
  f.avx512 =
      usable(f.avx2 && zmm && has_all(seven.ebx, {16, 17, 28, 30, 31}), "avx512", "AVX-512", avx512_works);
  f.avx512_dl = usable(f.avx512 && has_all(seven.ecx, {1, 6, 8, 9, 10, 11, 12, 14}), "avx512_dl",
                       "AVX-512 of Ice Lake", avx512_dl_works);
  f.avx512_bf16 = usable(f.avx512 && bit(seven_one.eax, 5), "avx512_bf16", "AVX-512 BF16", avx512_bf16_works);
  f.amx = ask_for_amx(tiles && has_all(seven.edx, {22, 24}), f.avx512_bf16, &trials);
  f.amx_int8 = usable(f.amx.granted && bit(seven.edx, 25), "amx_int8", "AMX INT8", amx_int8_works);
  if (!trials.is_injected("tile_information")) f.tiles = read_tile_information();
  f.fault = trials.faults();
  return f;
}

}  // namespace

std::vector<std::string> parse_cpu_faults(std::string_view value) {
  std::vector<std::string> names;
  while (!value.empty()) {
    const std::string_view name = value.substr(0, value.find(','));
    value.remove_prefix(std::min(value.size(), name.size() + 1));
    if (std::find(kFaultNames.begin(), kFaultNames.end(), name) == kFaultNames.end()) {
      fail(ExitCode::kBadConfig, "{}: expected names from {}; found '{}'", kFaultsVariable,
           fmt::join(kFaultNames, ", "), printable(name, 40));
    }
    names.emplace_back(name);
  }
  return names;
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

const AmxPermission& request_amx_permission() { return cpu_features().amx; }

namespace {

// A mask with enough words for every processor the kernel supports: cpu_set_t ends at 1024.
using CpuMask = std::vector<unsigned long>;
constexpr size_t kWordBits = 8 * sizeof(unsigned long);
constexpr size_t kMaxMaskBytes = size_t{1} << 16;

cpu_set_t* as_cpu_set(CpuMask& mask) { return reinterpret_cast<cpu_set_t*>(mask.data()); }
size_t mask_bytes(const CpuMask& mask) { return mask.size() * sizeof(unsigned long); }

std::vector<int> affinity_of_this_thread() {
  std::vector<int> cpus;
  CpuMask mask(sizeof(cpu_set_t) / sizeof(unsigned long));
  int status = sched_getaffinity(0, mask_bytes(mask), as_cpu_set(mask));
  while (status != 0 && errno == EINVAL && mask_bytes(mask) < kMaxMaskBytes) {
    mask.assign(2 * mask.size(), 0);
    status = sched_getaffinity(0, mask_bytes(mask), as_cpu_set(mask));
  }
  for (size_t cpu = 0; status == 0 && cpu < mask.size() * kWordBits; ++cpu) {
    if ((mask[cpu / kWordBits] >> cpu % kWordBits & 1u) != 0) cpus.push_back(static_cast<int>(cpu));
  }
  if (cpus.empty()) cpus.push_back(0);  // the system does not report them
  return cpus;
}

void set_affinity_of_this_thread(const std::vector<int>& cpus) {
  const auto highest = static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end()));
  CpuMask mask(highest / kWordBits + 1);
  for (const int cpu : cpus)
    mask[static_cast<size_t>(cpu) / kWordBits] |= 1ul << static_cast<size_t>(cpu) % kWordBits;
  sched_setaffinity(0, mask_bytes(mask), as_cpu_set(mask));
}

thread_local int num_pins = 0;
thread_local std::vector<int> cpus_before_pins;

int64_t parse_omp_num_threads(std::string_view text) {
  std::string_view first = text.substr(0, text.find(','));
  while (!first.empty() && first.front() == ' ') first.remove_prefix(1);
  while (!first.empty() && first.back() == ' ') first.remove_suffix(1);
  const int64_t value = parse_integer(first).value_or(0);
  if (value < 1 || value > kMaxThreads) {
    fail(ExitCode::kBadConfig, "OMP_NUM_THREADS: expected a number from 1 to {}, found '{}'", kMaxThreads,
         printable(text, 40));
  }
  return value;
}

}  // namespace

const std::vector<int>& usable_cpus() {
  static const std::vector<int> cpus = affinity_of_this_thread();
  return cpus;
}

int64_t CpuLimits::num_cores() const { return cores.empty() ? std::ssize(cpus) : std::ssize(cores); }

int64_t CpuLimits::num_processors() const {
  const auto num_cpus = static_cast<double>(cpus.size());
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(std::min(num_cpus, quota.value_or(num_cpus)))));
}

int64_t CpuLimits::num_threads() const { return std::min(num_cores(), num_processors()); }

int64_t CpuLimits::threads_per_core(int64_t num_threads) const {
  if (num_threads <= num_cores()) return 1;
  size_t most = 1;
  for (const std::vector<int>& core : cores) most = std::max(most, core.size());
  return static_cast<int64_t>(most);
}

std::vector<int> CpuLimits::pinned_cpus(int64_t num_threads) const {
  const bool one_per_core = num_threads == num_cores();
  if (num_threads == 1 || !can_spin(num_threads)) return {};
  if (!one_per_core && num_threads != std::ssize(cpus)) return {};
  if (cores.empty()) return cpus;
  std::vector<int> pinned;
  for (const std::vector<int>& core : cores) {
    pinned.insert(pinned.end(), core.begin(), one_per_core ? core.begin() + 1 : core.end());
  }
  return pinned;
}

bool CpuLimits::can_spin(int64_t num_threads) const {
  return num_threads <= std::ssize(cpus) && (!quota || static_cast<double>(num_threads) <= *quota);
}

std::string CpuLimits::describe() const {
  const std::string on_cores =
      num_cores() == std::ssize(cpus) ? "" : fmt::format(" on {}", count_of(num_cores(), "core"));
  return fmt::format("{}{} allowed by the affinity mask ({}), {}", count_of(std::ssize(cpus), "processor"),
                     on_cores, format_cpu_list(cpus),
                     quota ? fmt::format("cgroup CPU limit {:.2f}", *quota) : "no cgroup CPU limit");
}

CpuLimits cpu_limits() {
  static const std::vector<std::vector<int>> cores = cores_of(usable_cpus());
  return {usable_cpus(), cgroup_limits().cpus, cores};
}

CpuLimits cpu_limits(const std::filesystem::path& root, const std::vector<int>& cpus) {
  return {cpus, cgroup_limits(root).cpus, cores_of(cpus, root)};
}

ThreadChoice choose_threads(int64_t asked, const char* omp_num_threads, const CpuLimits& limits) {
  const char* source = "num_threads";
  if (asked == 0) {
    if (omp_num_threads == nullptr || *omp_num_threads == '\0') return {limits.num_threads(), "", true};
    asked = parse_omp_num_threads(omp_num_threads);
    source = "OMP_NUM_THREADS";
  }
  if (asked <= limits.num_processors()) return {asked, ""};
  return {asked, fmt::format("{} {} is more than this process can run at once: {}; {} would be faster",
                             source, asked, limits.describe(), limits.num_threads())};
}

void pin_this_thread(int cpu) {
  usable_cpus();  // record the mask before it changes
  if (num_pins++ == 0) cpus_before_pins = affinity_of_this_thread();
  set_affinity_of_this_thread({cpu});
}

void unpin_this_thread() {
  TESSERA_CHECK(num_pins >= 1, "a thread that is not pinned");
  if (--num_pins == 0) set_affinity_of_this_thread(cpus_before_pins);
}

namespace {

struct Claims {
  std::mutex mutex;
  std::multiset<int> cpus;  // of every live pool
};

Claims& claims() {
  static Claims all;
  return all;
}

}  // namespace

ClaimedCpus::ClaimedCpus(std::vector<int> cpus) : cpus_(std::move(cpus)) {
  const std::lock_guard lock(claims().mutex);
  claims().cpus.insert(cpus_.begin(), cpus_.end());
}

ClaimedCpus::~ClaimedCpus() {
  const std::lock_guard lock(claims().mutex);
  for (const int cpu : cpus_) claims().cpus.erase(claims().cpus.find(cpu));
}

std::vector<int> spare_cpus() {
  std::vector<int> spare;
  const std::lock_guard lock(claims().mutex);
  for (const int cpu : usable_cpus()) {
    if (!claims().cpus.contains(cpu)) spare.push_back(cpu);
  }
  const size_t num_claimed = usable_cpus().size() - spare.size();
  return 2 * spare.size() < num_claimed ? usable_cpus() : spare;
}

UnpinnedScope::UnpinnedScope(const std::vector<int>& cpus) : pinned_to_(affinity_of_this_thread()) {
  set_affinity_of_this_thread(cpus);
}
UnpinnedScope::~UnpinnedScope() { set_affinity_of_this_thread(pinned_to_); }

}  // namespace tessera
