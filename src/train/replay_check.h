// A search for silent data corruption: a pass is computed twice, and what comes of it must have the same
// bits, since results depend on neither threads nor time. It finds processors and memory that err now and
// then, not weights that are wrong already: both passes read the same ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model.h"
#include "platform/thread_pool.h"

namespace tessera {

// Watches a model while it lives. Keeps a CRC32C of what every part of the model yields and of the gradient
// of every parameter, all of this rank alone: 4 bytes of each. Between two checksums that are the same a
// flipped bit, or any change within 32 bits, is impossible; any other passes with a probability of 2^-32.
class ReplayCheck {
 public:
  // Both must outlive it.
  ReplayCheck(Model& model, ThreadPool& pool);
  ~ReplayCheck();
  ReplayCheck(const ReplayCheck&) = delete;
  ReplayCheck& operator=(const ReplayCheck&) = delete;

  // The first pass is over; what follows is compared with it.
  void repeat();
  // Behind the second pass: where it differs first, in the order of computing: "layer 3 mlp", "the gradient
  // of model.norm.weight"; "" = nowhere.
  std::string difference() const;

 private:
  struct Checksum {
    std::string name;
    uint32_t value;
  };
  void note(std::string name, ConstTensorView values);

  Model& model_;
  ThreadPool& pool_;
  std::vector<Checksum> first_;
  size_t num_repeated_ = 0;
  bool repeats_ = false;
  std::string difference_;
  std::vector<uint32_t> of_blocks_;  // scratch
};

}  // namespace tessera
