// For tests: a disk that is full.
#pragma once

#include <sys/resource.h>

#include <csignal>

namespace tessera {

// Simulates a full disk: no file of this process grows beyond a size.
class FileSizeLimit {
 public:
  FileSizeLimit() : former_handler_(std::signal(SIGXFSZ, SIG_IGN)) { getrlimit(RLIMIT_FSIZE, &former_); }
  ~FileSizeLimit() {
    lift();
    std::signal(SIGXFSZ, former_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  void set(rlim_t max_bytes) const {
    const rlimit limit = {max_bytes, former_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  void lift() const { setrlimit(RLIMIT_FSIZE, &former_); }

 private:
  rlimit former_ = {};
  void (*former_handler_)(int);
};

}  // namespace tessera
