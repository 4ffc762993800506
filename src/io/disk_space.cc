#include "io/disk_space.h"

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"

namespace tessera {

std::filesystem::space_info disk_space(const std::filesystem::path& folder, std::error_code& error) {
  std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (!error && space.capacity == 0) space.capacity = space.free = space.available = kUnknownSpaceBytes;
  return space;
}

void check_disk_space(const std::filesystem::path& output, int64_t needed_bytes) {
  std::error_code error;
  const std::filesystem::space_info space = disk_space(nearest_existing(folder_of(output)), error);
  if (error) fail(ExitCode::kIoError, "{}: cannot read the free space: {}", output.native(), error.message());
  if (static_cast<uintmax_t>(needed_bytes) <= space.available) return;
  fail(ExitCode::kIoError, "{}: expected {} of free disk space, found {}: free some or choose another disk",
       output.native(), format_bytes(needed_bytes), format_bytes(static_cast<int64_t>(space.available)));
}

}  // namespace tessera
