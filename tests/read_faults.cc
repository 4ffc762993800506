#include "read_faults.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>

namespace tessera {
namespace {

std::atomic<bool> is_active = false;
std::atomic<ino_t> inode = 0;
std::atomic<int> first_fault = 0;
std::atomic<int> reads = 0;

bool is_faulty(int fd) {
  struct stat status = {};
  if (!is_active || fstat(fd, &status) != 0 || status.st_ino != inode) return false;
  return reads++ >= first_fault;
}

}  // namespace

ReadFaults::ReadFaults(const std::filesystem::path& file, int first) {
  struct stat status = {};
  stat(file.c_str(), &status);
  inode = status.st_ino;
  first_fault = first;
  reads = 0;
  is_active = true;
}

ReadFaults::~ReadFaults() { is_active = false; }

int ReadFaults::num_reads() const { return reads; }

}  // namespace tessera

// Replaces the C library's function.
extern "C" ssize_t pread(int fd, void* data, size_t count, off_t offset) {
  if (!tessera::is_faulty(fd)) return ::syscall(SYS_pread64, fd, data, count, offset);
  errno = EIO;
  return -1;
}
