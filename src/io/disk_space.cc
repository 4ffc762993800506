#include "io/disk_space.h"

namespace tessera {

std::filesystem::space_info disk_space(const std::filesystem::path& folder, std::error_code& error) {
  std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (!error && space.capacity == 0) space.capacity = space.free = space.available = kUnknownSpaceBytes;
  return space;
}

}  // namespace tessera
