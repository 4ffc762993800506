#include "platform/cpu.h"

#include <cpuid.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "platform/cgroup.h"

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

CpuFeatures detect() {
  constexpr uint64_t kYmmState = 0x6;       // SSE and AVX
  constexpr uint64_t kZmmState = 0xE6;      // and opmask, ZMM
  constexpr uint64_t kTileState = 0x60000;  // TILECFG, TILEDATA
  const uint64_t states = enabled_register_states();
  const bool ymm = (states & kYmmState) == kYmmState;
  const bool zmm = (states & kZmmState) == kZmmState;
  const bool tiles = (states & kTileState) == kTileState;
  const CpuidRegisters one = cpuid(1, 0);
  const CpuidRegisters seven = cpuid(7, 0);
  const CpuidRegisters seven_one = cpuid(7, 1);
  CpuFeatures f;
  f.brand = brand_string();
  f.avx2 = ymm && bit(seven.ebx, 5) && bit(one.ecx, 12) && bit(one.ecx, 29);
  f.avx512 = zmm && bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 28) && bit(seven.ebx, 30) &&
             bit(seven.ebx, 31);
  f.avx512_bf16 = f.avx512 && bit(seven_one.eax, 5);
  f.amx_tile = tiles && bit(seven.edx, 24);
  f.amx_bf16 = f.amx_tile && bit(seven.edx, 22);
  return f;
}

AmxPermission ask_for_amx() {
  constexpr long kArchGetXcompPerm = 0x1022;
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureXtiledata = 18;
  if (!cpu_features().amx_bf16)
    return {false, "the processor or the virtual machine offers no AMX bf16 tiles"};
  if (syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) != 0) {
    return {false, std::string("the kernel refused the tile registers: ") + std::strerror(errno)};
  }
  uint64_t granted = 0;
  if (syscall(SYS_arch_prctl, kArchGetXcompPerm, &granted) != 0 ||
      (granted >> kXfeatureXtiledata & 1u) == 0) {
    return {false, "the kernel reports that the tile registers are not permitted"};
  }
  return {true, ""};
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

const AmxPermission& request_amx_permission() {
  static const AmxPermission permission = ask_for_amx();
  return permission;
}

namespace {

std::vector<int> affinity_of_this_thread() {
  std::vector<int> cpus;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);  // more processors than cpu_set_t holds
  return cpus;
}

void set_affinity_of_this_thread(const std::vector<int>& cpus) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &mask);
  sched_setaffinity(0, sizeof(mask), &mask);
}

thread_local int num_pins = 0;

}  // namespace

const std::vector<int>& usable_cpus() {
  static const std::vector<int> cpus = affinity_of_this_thread();
  return cpus;
}

void pin_this_thread(int cpu) {
  usable_cpus();  // asked before it changes
  ++num_pins;
  set_affinity_of_this_thread({cpu});
}

void unpin_this_thread() {
  if (--num_pins == 0) set_affinity_of_this_thread(usable_cpus());
}

bool can_pin(int64_t num_threads) { return num_threads <= static_cast<int64_t>(usable_cpus().size()); }

bool can_spin(int64_t num_threads) {
  const std::optional<double> quota = cgroup_limits().cpus;
  return can_pin(num_threads) && (!quota || static_cast<double>(num_threads) <= *quota);
}

UnpinnedScope::UnpinnedScope() : pinned_to_(affinity_of_this_thread()) {
  set_affinity_of_this_thread(usable_cpus());
}
UnpinnedScope::~UnpinnedScope() { set_affinity_of_this_thread(pinned_to_); }

int64_t usable_cpu_count() {
  auto count = static_cast<int64_t>(usable_cpus().size());
  if (const std::optional<double> quota = cgroup_limits().cpus) {
    count = std::min(count, static_cast<int64_t>(std::ceil(*quota)));
  }
  return std::max<int64_t>(count, 1);
}

}  // namespace tessera
