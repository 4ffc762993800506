// The NVIDIA cards of this machine, as the driver's library NVML describes them. It is loaded on first use
// and needs no CUDA toolkit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr std::string_view kNvmlLibrary = "libnvidia-ml.so.1";

// Why a card's clocks are below their maximum: bits of a mask, with the values of nvml.h.
enum class ClockLimit : uint64_t {
  kIdle = 0x1,
  kApplicationClocks = 0x2,    // set by an administrator
  kSoftwarePowerCap = 0x4,     // the power limit: normal under load
  kHardwareSlowdown = 0x8,     // half the clock or less, for heat, the power supply or too high a draw
  kSyncBoost = 0x10,           // as slow as another card of its group
  kSoftwareThermal = 0x20,     // above the maximum operating temperature
  kHardwareThermal = 0x40,     // half the clock or less, for heat
  kHardwarePowerBrake = 0x80,  // half the clock or less, because the machine's power supply asks for it
  kDisplay = 0x100,
};

struct ClockLimitInfo {
  ClockLimit limit;
  std::string_view name;  // "hardware_thermal"
  bool is_fault;          // a sound card in a sound machine does not have it
};
std::span<const ClockLimitInfo> all_clock_limits();

// A field is empty if the card does not support it or does not report it to this process.
struct NvidiaCard {
  int64_t index = 0;  // as in nvidia-smi, which is not CUDA's order
  std::string name;
  std::string uuid;   // "GPU-..."
  std::string error;  // why it does not answer; "" = it does
  std::optional<int64_t> memory_total_bytes;
  std::optional<int64_t> memory_free_bytes;
  std::optional<int64_t> memory_used_bytes;
  std::optional<double> utilization;  // share of the last second or less in which a kernel ran
  std::optional<int64_t> sm_clock_hertz;
  std::optional<int64_t> max_sm_clock_hertz;
  std::optional<int64_t> memory_clock_hertz;
  std::optional<int64_t> max_memory_clock_hertz;
  std::optional<double> power_watts;
  std::optional<double> power_limit_watts;
  std::optional<int64_t> temperature_celsius;
  std::optional<uint64_t> clock_limits;        // a mask of ClockLimit
  std::optional<int64_t> corrected_errors;     // ECC, since the driver was loaded
  std::optional<int64_t> uncorrected_errors;   // the same
  std::optional<int64_t> link_generation;      // PCIe; falls while a card is idle
  std::optional<int64_t> max_link_generation;  // of this card in this machine
  std::optional<int64_t> link_width;           // lanes
  std::optional<int64_t> max_link_width;

  bool has(ClockLimit limit) const {
    return clock_limits && (*clock_limits & static_cast<uint64_t>(limit)) != 0;
  }
};

struct NvidiaCards {
  std::string driver;  // its version: "580.65.06"
  std::string error;   // why the driver does not answer although there is one; "" = it does, or there is none
  std::vector<NvidiaCard> cards;

  bool is_empty() const { return error.empty() && cards.empty(); }
};

// Empty if there is no library, no driver or no card; cards that the system keeps from this process are left
// out. Takes some milliseconds per card; the first call may take seconds, if nothing else uses the driver.
// Thread-safe. The default library is opened once, another one at each call; none is unloaded.
NvidiaCards nvidia_cards(const std::string& library = std::string(kNvmlLibrary));

}  // namespace tessera
