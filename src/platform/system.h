// Information from the operating system: small files of /proc and /sys (`root` stands for "/" in tests), its
// name, and how many files and sockets this process may have open.
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

// This machine's name as shown in messages; "localhost" if the system does not provide one.
std::string host_name();

// The file of this program.
std::filesystem::path program_path();

// nullopt: no limit.
std::optional<int64_t> open_file_limit();

// Raises the limit to the maximum the system allows: the default of 1,024 exists for programs that call
// select(), and node 0 of a job has a connection to every rank.
void raise_open_file_limit();
// Restores the original limit, for other programs. Async-signal-safe.
void restore_open_file_limit();

}  // namespace tessera
