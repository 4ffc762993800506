#include "platform/nvidia_cards.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <utility>

#include "base/text.h"

namespace tessera {
namespace {

// Declarations of nvml.h from the CUDA toolkit (checked in versions 12.2 and 13.3), whose binary interface is
// stable. https://docs.nvidia.com/deploy/nvml-api/
using NvmlReturn = int;
constexpr NvmlReturn kNvmlSuccess = 0;
constexpr NvmlReturn kNvmlNoPermission = 4;
constexpr NvmlReturn kNvmlDriverNotLoaded = 9;
constexpr NvmlReturn kNvmlLibraryNotFound = 12;
constexpr NvmlReturn kNvmlOperatingSystem = 17;  // control groups keep the card from this process
constexpr NvmlReturn kNvmlGpuNotFound = 28;
constexpr int kNvmlClockSm = 1, kNvmlClockMemory = 2;
constexpr int kNvmlTemperatureGpu = 0;
constexpr int kNvmlErrorCorrected = 0, kNvmlErrorUncorrected = 1;
constexpr int kNvmlVolatileEcc = 0;
constexpr unsigned kNvmlTextBytes = 96;  // NVML_DEVICE_NAME_V2_BUFFER_SIZE, the longest of those used here
using NvmlDevice = struct nvmlDevice_st*;

struct NvmlMemory {
  unsigned long long total, free, used;  // bytes
};

struct NvmlUtilization {
  unsigned gpu, memory;  // percent
};

struct Nvml {
  using Text = NvmlReturn(NvmlDevice, char*, unsigned);
  using Number = NvmlReturn(NvmlDevice, unsigned*);
  using NumberOf = NvmlReturn(NvmlDevice, int, unsigned*);

  NvmlReturn (*init)() = nullptr;
  NvmlReturn (*count)(unsigned*) = nullptr;
  NvmlReturn (*handle)(unsigned, NvmlDevice*) = nullptr;
  const char* (*error_text)(NvmlReturn) = nullptr;
  NvmlReturn (*driver_version)(char*, unsigned) = nullptr;
  Text *name = nullptr, *uuid = nullptr;
  NvmlReturn (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  NvmlReturn (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
  NumberOf *clock = nullptr, *max_clock = nullptr, *temperature = nullptr;  // MHz, MHz, degrees Celsius
  Number *power = nullptr, *power_limit = nullptr;                          // mW
  NvmlReturn (*clock_limits)(NvmlDevice, unsigned long long*) = nullptr;
  NvmlReturn (*ecc_errors)(NvmlDevice, int type, int counter, unsigned long long*) = nullptr;
  Number *link_generation = nullptr, *max_link_generation = nullptr;
  Number *link_width = nullptr, *max_link_width = nullptr;

  NvmlReturn init_result = kNvmlLibraryNotFound;
};

template <typename Function>
void find_nvml_function(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
}

Nvml open_nvml(const std::string& name) {
  Nvml nvml;
  // Never unloaded: the driver's libraries are not made for that.
  void* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nvml;
  const auto find = [library](const char* function_name, auto* function) {
    find_nvml_function(library, function_name, function);
  };
  find("nvmlInit_v2", &nvml.init);
  find("nvmlDeviceGetCount_v2", &nvml.count);
  find("nvmlDeviceGetHandleByIndex_v2", &nvml.handle);
  find("nvmlErrorString", &nvml.error_text);
  find("nvmlSystemGetDriverVersion", &nvml.driver_version);
  find("nvmlDeviceGetName", &nvml.name);
  find("nvmlDeviceGetUUID", &nvml.uuid);
  find("nvmlDeviceGetMemoryInfo", &nvml.memory);
  find("nvmlDeviceGetUtilizationRates", &nvml.utilization);
  find("nvmlDeviceGetClockInfo", &nvml.clock);
  find("nvmlDeviceGetMaxClockInfo", &nvml.max_clock);
  find("nvmlDeviceGetTemperature", &nvml.temperature);
  find("nvmlDeviceGetPowerUsage", &nvml.power);
  find("nvmlDeviceGetEnforcedPowerLimit", &nvml.power_limit);
  // The old name is deprecated since version 13.
  find("nvmlDeviceGetCurrentClocksEventReasons", &nvml.clock_limits);
  if (nvml.clock_limits == nullptr) find("nvmlDeviceGetCurrentClocksThrottleReasons", &nvml.clock_limits);
  find("nvmlDeviceGetTotalEccErrors", &nvml.ecc_errors);
  find("nvmlDeviceGetCurrPcieLinkGeneration", &nvml.link_generation);
  find("nvmlDeviceGetMaxPcieLinkGeneration", &nvml.max_link_generation);
  find("nvmlDeviceGetCurrPcieLinkWidth", &nvml.link_width);
  find("nvmlDeviceGetMaxPcieLinkWidth", &nvml.max_link_width);
  if (nvml.init != nullptr && nvml.count != nullptr && nvml.handle != nullptr) nvml.init_result = nvml.init();
  return nvml;
}

std::string nvml_error(const Nvml& nvml, NvmlReturn result) {
  const char* const text = nvml.error_text == nullptr ? nullptr : nvml.error_text(result);
  return text == nullptr ? fmt::format("NVML error {}", result)
                         : fmt::format("{} (NVML error {})", printable(text), result);
}

template <typename Value, typename Function, typename... Arguments>
std::optional<Value> ask(Function* function, Arguments... arguments) {
  Value value{};
  if (function == nullptr || function(arguments..., &value) != kNvmlSuccess) return std::nullopt;
  return value;
}

template <typename Value>
std::optional<int64_t> in_units(const std::optional<Value>& value, int64_t unit) {
  return value ? std::optional(static_cast<int64_t>(*value) * unit) : std::nullopt;
}

template <typename Function, typename... Arguments>
std::string ask_text(Function* function, Arguments... arguments) {
  char text[kNvmlTextBytes] = "";
  if (function == nullptr || function(arguments..., text, kNvmlTextBytes) != kNvmlSuccess) return "";
  text[kNvmlTextBytes - 1] = '\0';
  return printable(text);
}

void read_speed(const Nvml& nvml, NvmlDevice device, NvidiaCard* card) {
  constexpr int64_t kMega = 1'000'000;
  const auto megahertz = [&](Nvml::NumberOf* function, int clock) {
    return in_units(ask<unsigned>(function, device, clock), kMega);
  };
  card->sm_clock_hertz = megahertz(nvml.clock, kNvmlClockSm);
  card->max_sm_clock_hertz = megahertz(nvml.max_clock, kNvmlClockSm);
  card->memory_clock_hertz = megahertz(nvml.clock, kNvmlClockMemory);
  card->max_memory_clock_hertz = megahertz(nvml.max_clock, kNvmlClockMemory);
  if (const auto milliwatts = ask<unsigned>(nvml.power, device)) card->power_watts = *milliwatts / 1e3;
  if (const auto milliwatts = ask<unsigned>(nvml.power_limit, device)) {
    card->power_limit_watts = *milliwatts / 1e3;
  }
  card->temperature_celsius = in_units(ask<unsigned>(nvml.temperature, device, kNvmlTemperatureGpu), 1);
  if (const auto mask = ask<unsigned long long>(nvml.clock_limits, device)) card->clock_limits = *mask;
  if (const auto percent = ask<NvmlUtilization>(nvml.utilization, device)) {
    card->utilization = percent->gpu / 100.0;
  }
}

NvidiaCard read_card(const Nvml& nvml, NvmlDevice device) {
  NvidiaCard card;
  card.name = ask_text(nvml.name, device);
  card.uuid = ask_text(nvml.uuid, device);
  if (const auto memory = ask<NvmlMemory>(nvml.memory, device)) {
    card.memory_total_bytes = static_cast<int64_t>(memory->total);
    card.memory_free_bytes = static_cast<int64_t>(memory->free);
    card.memory_used_bytes = static_cast<int64_t>(memory->used);
  }
  read_speed(nvml, device, &card);
  const auto errors = [&](int type) {
    return in_units(ask<unsigned long long>(nvml.ecc_errors, device, type, kNvmlVolatileEcc), 1);
  };
  card.corrected_errors = errors(kNvmlErrorCorrected);
  card.uncorrected_errors = errors(kNvmlErrorUncorrected);
  card.link_generation = in_units(ask<unsigned>(nvml.link_generation, device), 1);
  card.max_link_generation = in_units(ask<unsigned>(nvml.max_link_generation, device), 1);
  card.link_width = in_units(ask<unsigned>(nvml.link_width, device), 1);
  card.max_link_width = in_units(ask<unsigned>(nvml.max_link_width, device), 1);
  return card;
}

// Neither an image with the library on a machine without a card nor one that hides its cards is a fault.
bool is_absence(NvmlReturn result) {
  return result == kNvmlNoPermission || result == kNvmlDriverNotLoaded || result == kNvmlLibraryNotFound ||
         result == kNvmlOperatingSystem || result == kNvmlGpuNotFound;
}

NvidiaCards read_cards(const Nvml& nvml) {
  NvidiaCards found;
  NvmlReturn result = nvml.init_result;
  unsigned count = 0;
  if (result == kNvmlSuccess) result = nvml.count(&count);
  if (result != kNvmlSuccess) {
    if (!is_absence(result)) found.error = nvml_error(nvml, result);
    return found;
  }
  found.driver = ask_text(nvml.driver_version);
  for (unsigned index = 0; index < count; ++index) {
    NvmlDevice device = nullptr;
    result = nvml.handle(index, &device);
    if (result != kNvmlSuccess && is_absence(result)) continue;
    NvidiaCard card;
    if (result == kNvmlSuccess) {
      card = read_card(nvml, device);
    } else {
      card.error = nvml_error(nvml, result);
    }
    card.index = index;
    found.cards.push_back(std::move(card));
  }
  return found;
}

// In the order of their bits.
constexpr ClockLimitInfo kClockLimits[] = {
    {ClockLimit::kIdle, "idle", false},
    {ClockLimit::kApplicationClocks, "application_clocks", false},
    {ClockLimit::kSoftwarePowerCap, "software_power_cap", false},
    {ClockLimit::kHardwareSlowdown, "hardware_slowdown", true},
    {ClockLimit::kSyncBoost, "sync_boost", false},
    {ClockLimit::kSoftwareThermal, "software_thermal", true},
    {ClockLimit::kHardwareThermal, "hardware_thermal", true},
    {ClockLimit::kHardwarePowerBrake, "hardware_power_brake", true},
    {ClockLimit::kDisplay, "display", false},
};

}  // namespace

std::span<const ClockLimitInfo> all_clock_limits() { return kClockLimits; }

NvidiaCards nvidia_cards(const std::string& library) {
  if (library != kNvmlLibrary) return read_cards(open_nvml(library));
  static const Nvml nvml = open_nvml(library);
  return read_cards(nvml);
}

}  // namespace tessera
