#include "comm/ranks/failure.h"

#include <utility>

namespace tessera {

std::optional<Failure> FailureDetector::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool FailureDetector::set(Failure failure) {
  const std::lock_guard lock(mutex_);
  if (failure_) return false;
  failure_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
  return true;
}

void FailureDetector::fail_because(int suspect_rank, const std::string& evidence, ExitCode code) {
  if (!failed()) set(settle({.rank = suspect_rank, .host = {}, .message = evidence, .code = code}));
  raise();
}

void FailureDetector::raise() const {
  const std::optional<Failure> known = failure();
  throw PeerError(known->code, known->message);
}

}  // namespace tessera
