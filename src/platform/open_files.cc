#include "platform/open_files.h"

#include <sys/resource.h>

namespace tessera {
namespace {

rlimit limit_before = {};
bool is_raised = false;

}  // namespace

std::optional<int64_t> open_file_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

void raise_open_file_limit() {
  if (is_raised || getrlimit(RLIMIT_NOFILE, &limit_before) != 0) return;
  const rlimit raised = {limit_before.rlim_max, limit_before.rlim_max};
  is_raised = setrlimit(RLIMIT_NOFILE, &raised) == 0;
}

void restore_open_file_limit() {
  if (is_raised) setrlimit(RLIMIT_NOFILE, &limit_before);
}

}  // namespace tessera
