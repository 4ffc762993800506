#include "io/shared_space.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <iterator>

#include "base/unique_fd.h"
#include "io/output_file.h"

namespace tessera {

bool can_share_space(const std::filesystem::path& folder) {
  const auto unnamed = [&] { return UniqueFd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)); };
  const UniqueFd source = unnamed(), copy = unnamed();
  const std::array<char, kSharedPageBytes> page = {};
  return source && copy && ::pwrite(source.get(), page.data(), page.size(), 0) == std::ssize(page) &&
         ::ioctl(copy.get(), FICLONE, source.get()) == 0;
}

}  // namespace tessera
