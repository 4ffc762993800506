#include "bench/scratch_folder.h"

#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/error.h"

namespace tessera {

ScratchFolder::ScratchFolder(const std::filesystem::path& parent) {
  std::string pattern = (parent / "tessera-bench-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr)
    fail_errno(ExitCode::kIoError, errno, pattern + ": cannot be created");
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace tessera
