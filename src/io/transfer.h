// The loop around pread, pwrite and write.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>

namespace tessera {

// Calls transfer(done), which transfers some of the bytes from `done` on and returns what pread and pwrite
// do, until all `size` bytes are done; again if a signal interrupted it. Returns the number of bytes done. If
// they are fewer, errno says why; 0: nothing more could be transferred (the file has ended).
template <typename Transfer>
size_t transfer_fully(size_t size, const Transfer& transfer) {
  size_t done = 0;
  while (done < size) {
    errno = 0;
    const ssize_t result = transfer(done);
    if (result < 0 && errno == EINTR) continue;
    if (result <= 0) break;
    done += static_cast<size_t>(result);
  }
  return done;
}

}  // namespace tessera
