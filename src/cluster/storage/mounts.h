// Finds the file system that a folder is on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class FileSystemKind { kLocal, kMemory, kOverlay, kNfs, kLustre, kObjectStore, kOther };

struct Mount {
  std::string point;                 // "/data"
  std::string type;                  // "nfs4", "lustre", "fuse.s3fs"
  std::string source;                // "fs-1.efs.eu-west-1.amazonaws.com:/"
  std::vector<std::string> options;  // of the mount and of the file system: "rw", "vers=4.1"

  FileSystemKind kind() const;
  bool is_efs() const;
  bool has_option(std::string_view name) const;
  // The value of "name=value"; "" = not given.
  std::string option(std::string_view name) const;
};

// The mounts of this process in the order of mounting. Lines that are not as proc(5) describes them are left
// out.
std::vector<Mount> parse_mounts(const std::string& mountinfo);
std::vector<Mount> read_mounts(const std::filesystem::path& root = "/");

// The mount of a path that is absolute and without symbolic links; nullopt if there are none.
std::optional<Mount> mount_of(const std::vector<Mount>& mounts, const std::filesystem::path& path);

// Lustre stripes a file over its servers this way.
struct LustreLayout {
  int64_t stripe_count = 0;  // the most of any part of the file; -1 = all servers
  int64_t stripe_bytes = 0;
};
// Parses the extended attribute lustre.lov (lov_user_md and lov_comp_md_v1 in lustre_user.h), in hexadecimal;
// nullopt if the format is unknown.
std::optional<LustreLayout> parse_lustre_layout(std::string_view hex);

}  // namespace tessera
