#include "io/synced_folder.h"

#include <system_error>
#include <vector>

#include "io/absolute_path.h"
#include "io/file.h"

namespace tessera {

void create_synced_folder(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> missing;
  std::error_code ignored;
  for (std::filesystem::path at = absolute_path(path).lexically_normal();
       !std::filesystem::exists(at, ignored) && at.has_relative_path(); at = at.parent_path()) {
    missing.push_back(at);
  }
  create_folder(path);
  for (const std::filesystem::path& folder : missing) fsync_folder(folder.parent_path());
}

}  // namespace tessera
