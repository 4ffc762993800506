#include "weights/disk_space.h"

#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "io/disk_space.h"
#include "io/file.h"

namespace tessera {

namespace fs = std::filesystem;

void check_disk_space(const fs::path& output, int64_t needed_bytes) {
  std::error_code error;
  const fs::space_info space = disk_space(nearest_existing(folder_of(output)), error);
  if (error) fail(ExitCode::kIoError, "{}: cannot read the free space: {}", output.native(), error.message());
  if (static_cast<uintmax_t>(needed_bytes) <= space.available) return;
  fail(ExitCode::kIoError, "{}: expected {} of free disk space, found {}: free some or choose another disk",
       output.native(), format_bytes(needed_bytes), format_bytes(static_cast<int64_t>(space.available)));
}

}  // namespace tessera
