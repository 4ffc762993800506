#include "launch/ranks/rank_position_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace tessera {
namespace {

// Sealed against shrinking, so that a reader never runs past the end of the file.
UniqueFd make_memory() {
  UniqueFd fd(memfd_create("tessera_rank_position", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), RankPosition::size_bytes()) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail_errno(ExitCode::kIoError, errno, "memory for a rank's position");
  }
  return fd;
}

}  // namespace

RankPositionFile::RankPositionFile()
    : fd_(make_memory()), path_(fmt::format("/proc/{}/fd/{}", getpid(), fd_.get())), position_(fd_.get()) {}

}  // namespace tessera
