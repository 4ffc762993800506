#include "cluster/storage/mounts.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxMountinfoBytes = size_t{16} << 20;

// "\040" stands for a blank.
std::string unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_octal = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && is_octal(i + 1) && is_octal(i + 2) && is_octal(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

void append_options(const std::string& text, std::vector<std::string>* options) {
  std::istringstream in(text);
  for (std::string option; std::getline(in, option, ',');) options->push_back(option);
}

bool is_below(const std::string& path, const std::string& folder) {
  return folder == "/" || path == folder || path.starts_with(folder + "/");
}

constexpr uint32_t kPlain1 = 0x0BD10BD0, kPlain3 = 0x0BD30BD0, kComposite = 0x0BD60BD0;
constexpr size_t kCompositeHeaderBytes = 32, kEntryBytes = 48;

// Little-endian, at a place that may lie beyond the end.
std::optional<uint32_t> number_at(const std::string& bytes, size_t at, size_t size) {
  if (at > bytes.size() || bytes.size() - at < size) return std::nullopt;
  uint32_t value = 0;
  for (size_t i = 0; i < size; ++i)
    value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

// A plain layout: magic, pattern, 16 bytes of object id, stripe size (32 bits), stripe count (16 bits).
std::optional<LustreLayout> plain_layout(const std::string& bytes, size_t at) {
  const auto magic = number_at(bytes, at, 4), size = number_at(bytes, at + 24, 4),
             count = number_at(bytes, at + 28, 2);
  if (!magic || (*magic != kPlain1 && *magic != kPlain3) || !size || !count) return std::nullopt;
  return LustreLayout{*count == 0xFFFF ? -1 : static_cast<int64_t>(*count), static_cast<int64_t>(*size)};
}

}  // namespace

FileSystemKind Mount::kind() const {
  constexpr std::array<std::string_view, 5> kMemory = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs"};
  constexpr std::array<std::string_view, 7> kLocal = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"};
  if (std::ranges::find(kMemory, type) != kMemory.end()) return FileSystemKind::kMemory;
  if (std::ranges::find(kLocal, type) != kLocal.end()) return FileSystemKind::kLocal;
  if (type == "overlay" || type == "fuse.fuse-overlayfs") return FileSystemKind::kOverlay;
  if (type == "nfs" || type == "nfs4") return FileSystemKind::kNfs;
  if (type == "lustre") return FileSystemKind::kLustre;
  if (type.starts_with("fuse")) {
    for (const std::string_view name : {"s3", "gcs", "goofys", "rclone", "blobfuse", "mountpoint"}) {
      if (type.find(name) != std::string::npos || source.find(name) != std::string::npos) {
        return FileSystemKind::kObjectStore;
      }
    }
  }
  return FileSystemKind::kOther;
}

// EFS's mount helper goes through a tunnel on this machine.
bool Mount::is_efs() const {
  return type == "nfs4" && (source.find(".efs.") != std::string::npos || source.starts_with("127.0.0.1:"));
}

bool Mount::has_option(std::string_view name) const {
  return std::ranges::find(options, name) != options.end();
}

std::string Mount::option(std::string_view name) const {
  for (const std::string& each : options) {
    if (each.starts_with(name) && each.size() > name.size() && each[name.size()] == '=') {
      return each.substr(name.size() + 1);
    }
  }
  return "";
}

// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
std::vector<Mount> parse_mounts(const std::string& mountinfo) {
  std::vector<Mount> mounts;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    const size_t separator = line.find(" - ");
    if (separator == std::string::npos) continue;
    std::istringstream first(line.substr(0, separator)), second(line.substr(separator + 3));
    std::string ignored, point, options, type, source, more_options;
    if (!(first >> ignored >> ignored >> ignored >> ignored >> point >> options) ||
        !(second >> type >> source))
      continue;
    second >> more_options;
    Mount mount = {.point = unescaped(point), .type = type, .source = unescaped(source), .options = {}};
    append_options(options, &mount.options);
    append_options(more_options, &mount.options);
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

std::vector<Mount> read_mounts(const fs::path& root) {
  std::ifstream in(root / "proc/self/mountinfo");
  std::string text(kMaxMountinfoBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return parse_mounts(text);
}

// The last of several mounts at one place hides the others.
std::optional<Mount> mount_of(const std::vector<Mount>& mounts, const fs::path& path) {
  std::optional<Mount> found;
  for (const Mount& mount : mounts) {
    if (is_below(path.native(), mount.point) && (!found || mount.point.size() >= found->point.size()))
      found = mount;
  }
  return found;
}

std::optional<LustreLayout> parse_lustre_layout(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    const std::string pair(hex.substr(i, 2));
    char* end = nullptr;
    bytes += static_cast<char>(std::strtol(pair.c_str(), &end, 16));
    if (end != pair.c_str() + 2) return std::nullopt;
  }
  if (number_at(bytes, 0, 4) != kComposite) return plain_layout(bytes, 0);
  std::optional<LustreLayout> widest;
  const int64_t num_entries = number_at(bytes, 14, 2).value_or(0);
  for (int64_t i = 0; i < num_entries; ++i) {
    const auto offset =
        number_at(bytes, kCompositeHeaderBytes + static_cast<size_t>(i) * kEntryBytes + 24, 4);
    if (!offset) return std::nullopt;
    const auto part = plain_layout(bytes, *offset);
    if (!part) continue;
    const auto width = [](const LustreLayout& layout) {
      return layout.stripe_count < 0 ? INT64_MAX : layout.stripe_count;
    };
    if (!widest || width(*part) > width(*widest)) widest = part;
  }
  return widest;
}

}  // namespace tessera
