// Volumes that exist, as users name them.
#pragma once

#include <optional>
#include <string>

#include "cluster/manifests/job_manifest.h"

namespace tessera {

// The one that is named, of Lustre ("DNS/MOUNT", "DNS@tcp:/MOUNT"), EFS ("fs-0123", with an access point
// "fs-0123::fsap-4567", or what is mounted, "fs-0123.efs.eu-west-1.amazonaws.com:/") or NFS ("HOST:PATH");
// nullopt if none is. Error(kUsage) for text of another form, or more than one.
std::optional<RuntimeVolume> existing_volume(const std::string& fsx, const std::string& efs,
                                             const std::string& nfs);

}  // namespace tessera
