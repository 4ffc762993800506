// For tests: a libnvidia-ml.so.1 with two invented cards. The first computes at its power limit; the second
// has neither ECC nor a utilization, is too hot, and has half of its PCIe lanes. FAKE_NVML=no_driver,
// mismatch or lost: there is no driver, its version is not the library's, or the second card does not answer.
#include <cstdlib>
#include <cstring>
#include <string_view>

extern "C" {

// Declared as in nvml.h of the CUDA toolkit.
struct nvmlDevice_st {
  const char *name, *uuid;
  unsigned long long total_bytes, free_bytes;
  unsigned gpu_percent;
  bool has_utilization, has_ecc;
  unsigned sm_mhz, max_sm_mhz, memory_mhz;
  unsigned power_mw, power_limit_mw, celsius;
  unsigned long long clock_limits, corrected_errors, uncorrected_errors;
  unsigned link_generation, max_link_generation, link_width, max_link_width;
};
using Device = const nvmlDevice_st*;
struct FakeMemory {
  unsigned long long total, free, used;
};
struct FakeUtilization {
  unsigned gpu, memory;
};

static constexpr nvmlDevice_st kCards[] = {{.name = "NVIDIA H100 80GB HBM3",
                                            .uuid = "GPU-11111111-2222-3333-4444-555555555555",
                                            .total_bytes = 80ull << 30,
                                            .free_bytes = 20ull << 30,
                                            .gpu_percent = 87,
                                            .has_utilization = true,
                                            .has_ecc = true,
                                            .sm_mhz = 1755,
                                            .max_sm_mhz = 1980,
                                            .memory_mhz = 2619,
                                            .power_mw = 699500,
                                            .power_limit_mw = 700000,
                                            .celsius = 61,
                                            .clock_limits = 0x4,
                                            .corrected_errors = 3,
                                            .uncorrected_errors = 0,
                                            .link_generation = 5,
                                            .max_link_generation = 5,
                                            .link_width = 16,
                                            .max_link_width = 16},
                                           {.name = "NVIDIA \"L4\"",
                                            .uuid = "GPU-66666666-7777-8888-9999-000000000000",
                                            .total_bytes = 24ull << 30,
                                            .free_bytes = 23ull << 30,
                                            .gpu_percent = 0,
                                            .has_utilization = false,
                                            .has_ecc = false,
                                            .sm_mhz = 700,
                                            .max_sm_mhz = 2040,
                                            .memory_mhz = 6251,
                                            .power_mw = 40250,
                                            .power_limit_mw = 72000,
                                            .celsius = 97,
                                            .clock_limits = 0x48,
                                            .corrected_errors = 0,
                                            .uncorrected_errors = 0,
                                            .link_generation = 4,
                                            .max_link_generation = 4,
                                            .link_width = 8,
                                            .max_link_width = 16}};

static bool is_asked_to_be(std::string_view what) {
  const char* const value = std::getenv("FAKE_NVML");
  return value != nullptr && value == what;
}

static int copy(const char* text, char* out, unsigned length) {
  if (std::strlen(text) >= length) return 7;  // NVML_ERROR_INSUFFICIENT_SIZE
  std::strcpy(out, text);
  return 0;
}

static int put(unsigned value, unsigned* out) {
  *out = value;
  return 0;
}

int nvmlInit_v2() { return is_asked_to_be("no_driver") ? 9 : is_asked_to_be("mismatch") ? 18 : 0; }
const char* nvmlErrorString(int result) {
  return result == 15 ? "GPU is lost" : result == 18 ? "Driver/library version mismatch" : "Other";
}
int nvmlSystemGetDriverVersion(char* out, unsigned length) { return copy("580.65.06", out, length); }
int nvmlDeviceGetCount_v2(unsigned* count) { return put(2, count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  if (index == 1 && is_asked_to_be("lost")) return 15;
  *device = &kCards[index];
  return 0;
}
int nvmlDeviceGetName(Device device, char* out, unsigned length) { return copy(device->name, out, length); }
int nvmlDeviceGetUUID(Device device, char* out, unsigned length) { return copy(device->uuid, out, length); }
int nvmlDeviceGetMemoryInfo(Device device, FakeMemory* out) {
  *out = {device->total_bytes, device->free_bytes, device->total_bytes - device->free_bytes};
  return 0;
}
int nvmlDeviceGetUtilizationRates(Device device, FakeUtilization* out) {
  if (!device->has_utilization) return 3;  // NVML_ERROR_NOT_SUPPORTED
  *out = {device->gpu_percent, 0};
  return 0;
}
int nvmlDeviceGetClockInfo(Device device, int clock, unsigned* out) {
  return clock == 1 ? put(device->sm_mhz, out) : clock == 2 ? put(device->memory_mhz, out) : 2;
}
int nvmlDeviceGetMaxClockInfo(Device device, int clock, unsigned* out) {
  return clock == 1 ? put(device->max_sm_mhz, out) : clock == 2 ? put(device->memory_mhz, out) : 2;
}
int nvmlDeviceGetPowerUsage(Device device, unsigned* out) { return put(device->power_mw, out); }
int nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned* out) { return put(device->power_limit_mw, out); }
int nvmlDeviceGetTemperature(Device device, int sensor, unsigned* out) {
  return sensor == 0 ? put(device->celsius, out) : 2;
}
// An old driver: the newer name, nvmlDeviceGetCurrentClocksEventReasons, is not there.
int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long* out) {
  *out = device->clock_limits;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(Device device, int type, int counter, unsigned long long* out) {
  if (!device->has_ecc) return 3;
  if (counter != 0) return 2;
  *out = type == 0 ? device->corrected_errors : device->uncorrected_errors;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(Device device, unsigned* out) {
  return put(device->link_generation, out);
}
int nvmlDeviceGetMaxPcieLinkGeneration(Device device, unsigned* out) {
  return put(device->max_link_generation, out);
}
int nvmlDeviceGetCurrPcieLinkWidth(Device device, unsigned* out) { return put(device->link_width, out); }
int nvmlDeviceGetMaxPcieLinkWidth(Device device, unsigned* out) { return put(device->max_link_width, out); }

}  // extern "C"
