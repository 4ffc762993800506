#include "cluster/deploy/volumes.h"

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

// DNS/MOUNT, or as the mount command has it: DNS@tcp:/MOUNT.
RuntimeVolume fsx_volume(const std::string& text) {
  constexpr std::string_view kLustre = "@tcp:/";
  std::string name = text;
  if (const size_t at = name.find(kLustre); at != std::string::npos) name.replace(at, kLustre.size(), "/");
  const size_t slash = name.find('/'), dot = name.find('.');
  if (!name.starts_with("fs-") || slash == std::string::npos || dot > slash || slash + 1 == name.size() ||
      name.find('/', slash + 1) != std::string::npos || name.find_first_of("@: ") != std::string::npos) {
    fail(ExitCode::kUsage,
         "--fsx: expected DNS/MOUNT such as fs-0123.fsx.eu-west-1.amazonaws.com/abcdef, or DNS@tcp:/MOUNT, "
         "found '{}'",
         printable(text));
  }
  return lustre_volume(name.substr(0, dot), name.substr(0, slash), name.substr(slash + 1));
}

// fs-0123, with an access point fs-0123::fsap-4567, or as the mount command has it:
// fs-0123.efs.eu-west-1.amazonaws.com:/.
std::string efs_id(const std::string& text) {
  std::string id = text;
  const size_t dot = id.find(".efs.");
  if (dot != std::string::npos && (id.ends_with(".amazonaws.com") || id.ends_with(".amazonaws.com:/")))
    id.resize(dot);
  if (!id.starts_with("fs-") || id.find_first_of("./ @") != std::string::npos) {
    fail(ExitCode::kUsage, "--efs: expected an ID such as fs-0123, found '{}'", printable(text));
  }
  return id;
}

}  // namespace

std::optional<RuntimeVolume> existing_volume(const std::string& fsx, const std::string& efs,
                                             const std::string& nfs) {
  if (!fsx.empty() + !efs.empty() + !nfs.empty() > 1) {
    fail(ExitCode::kUsage, "--fsx, --efs and --nfs: give one volume");
  }
  if (!fsx.empty()) return fsx_volume(fsx);
  if (!efs.empty()) return efs_volume(efs_id(efs));
  if (nfs.empty()) return std::nullopt;
  const size_t colon = nfs.find(":/");
  if (colon == 0 || colon == std::string::npos) {
    fail(ExitCode::kUsage, "--nfs: expected HOST:PATH such as 10.0.0.5:/export, found '{}'", printable(nfs));
  }
  RuntimeVolume volume;
  volume.about = "NFS";
  volume.server = nfs.substr(0, colon);
  volume.path = nfs.substr(colon + 1);
  // A hard mount waits for the server instead of failing the ranks; large transfers for checkpoints.
  volume.mount_options = {"hard", "nfsvers=4.1", "rsize=1048576", "wsize=1048576", "nconnect=8"};
  return volume;
}

}  // namespace tessera
