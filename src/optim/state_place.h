// Where the masters and the optimizer's state of a flat range of parameters are, and who updates them.
#pragma once

#include <cstdint>
#include <span>

#include "optim/optimizer.h"
#include "optim/state_file.h"
#include "optim/state_tensor.h"

namespace tessera {

class StatePlace {
 public:
  virtual ~StatePlace() = default;

  virtual const Optimizer& optimizer() const = 0;
  // Updates ranges [first, last): a step may be taken in pieces.
  virtual void update(int64_t first, int64_t last, const OptimizerStep& step) = 0;
  // The ranges of the update after the next one: once that has begun, their state may be read from files.
  virtual void announce(int64_t /*first*/, int64_t /*last*/) {}

  // Copies one kind of value of these elements, all of which must have one. Masters are elements [begin,
  // begin + values.size()) of the weights, whose state begins at state_begin. Runs on the calling thread
  // alone, which need not be one of the pool's. Two threads may write disjoint elements of block-coded state
  // at once if no block has elements of both.
  virtual void read(StateKind kind, int64_t begin, int64_t state_begin, std::span<float> values) const = 0;
  virtual void write(StateKind kind, int64_t begin, int64_t state_begin, std::span<const float> values) = 0;
  // The masters, with the pool's threads where that is faster.
  virtual void read_master(int64_t begin, int64_t state_begin, std::span<float> destination) const {
    read(StateKind::kMaster, begin, state_begin, destination);
  }
  // Calls body for the bytes of values as they are stored, from element `done` on (StateFile::read_stored()):
  // of a tensor or, for the masters, of their remainders. False, without a call, if they are not stored as
  // `dtype` in memory of the host. On the calling thread alone, as read().
  virtual bool read_stored(StateKind /*kind*/, DType /*dtype*/, int64_t /*state_begin*/, int64_t /*count*/,
                           const StoredBody& /*body*/) const {
    return false;
  }

  // Frees the space of the tensors in files: there are no more updates, and only masters are read or written
  // from now on.
  virtual void discard_tensors() {}
  // Traffic of the files, added up; zeros without any.
  virtual AsyncFileStatistics file_statistics() const { return {}; }
};

}  // namespace tessera
