// The kinds of device that compute.
#pragma once

#include <array>

#include "base/choice.h"

namespace tessera {

enum class DeviceKind { kCpu, kCuda };

constexpr auto choice_words(DeviceKind) {
  return std::to_array<Word<DeviceKind>>({{"cpu", DeviceKind::kCpu}, {"cuda", DeviceKind::kCuda}});
}

}  // namespace tessera
