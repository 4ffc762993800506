// How fast a disk is at what offload_dir is used for.
#pragma once

#include <filesystem>
#include <optional>

namespace tessera {

// 10^9 bytes per second of a scratch file in this folder, or the nearest one above it that exists, half of
// them read and half written, measured for about half a second. nullopt if the disk has too little room for
// it. Error(kIoError).
std::optional<double> measured_disk_gb_per_s(const std::filesystem::path& folder);

}  // namespace tessera
