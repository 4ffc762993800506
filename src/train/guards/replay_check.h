// Detects silent data corruption: a pass is computed twice and must give the same bits, since results depend
// on neither threads nor timing. This finds processors and memory that err intermittently, not weights that
// are already wrong: both passes read the same ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/trainable_model.h"
#include "platform/thread_pool.h"

namespace tessera {

// Watches a model during its lifetime. Keeps a CRC32C (4 bytes) of every part's output and of every
// parameter's gradient, on this rank only. A single flipped bit, or any change within 32 bits, always changes
// the checksum; any other change goes undetected with a probability of 2^-32.
class ReplayCheck {
 public:
  // Both must outlive this.
  ReplayCheck(TrainableModel& model, ThreadPool& pool);
  ~ReplayCheck();
  ReplayCheck(const ReplayCheck&) = delete;
  ReplayCheck& operator=(const ReplayCheck&) = delete;

  // Marks the end of the first pass; what follows is compared with it.
  void repeat();
  // After the second pass: the first difference in the order of computation, such as "layer 3 mlp" or "the
  // gradient of model.norm.weight"; "" = none.
  std::string difference() const;

 private:
  struct Checksum {
    std::string name;
    uint32_t value;
  };
  void note(std::string name, ConstTensorView values);

  TrainableModel& model_;
  ThreadPool& pool_;
  std::vector<Checksum> first_;
  size_t num_repeated_ = 0;
  bool repeats_ = false;
  std::string difference_;
  std::vector<uint32_t> of_blocks_;  // scratch
};

}  // namespace tessera
