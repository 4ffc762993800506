// Small files of /proc and /sys. `root` stands for "/" in tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// The first line; nullopt if the file cannot be read or is empty, as where a container masks it.
std::optional<std::string> first_line_of(const std::filesystem::path& path);
std::optional<int64_t> number_in(const std::filesystem::path& path);
// The number after "name" or "name:" in lines of the form "name 12 kB"; nullopt without such a line.
std::optional<int64_t> number_of_line(const std::filesystem::path& path, const std::string& name);
// The entries of a folder whose names begin with `prefix`, ordered by name; none if it cannot be read.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder,
                                              const std::string& prefix = "");
// Seconds since the machine started.
std::optional<double> uptime_s(const std::filesystem::path& root);

}  // namespace tessera
