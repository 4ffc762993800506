// The layout of the state of a range of parameters: its parts (the tensors of the optimizer and, with BF16
// weights, the remainders of the masters) in memory or in files, and their sizes there.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "optim/state_file.h"
#include "optim/state_tensor.h"

namespace tessera {

// Elements [begin, begin + count) of the weights. Elements in no range (alignment gaps) are left alone. The
// owner of a mere shard keeps its gradients and state separately from the weights, at their own offsets.
struct ParameterRange {
  int64_t begin;
  int64_t count;
  bool weight_decay;
  int64_t gradient_begin = begin;
  int64_t state_begin = begin;
  int64_t first_element = begin;  // counted over all parameters, whoever owns them
  ParameterShape shape = {};      // if it matters to the optimizer: of the whole parameter
};

// The number of values of a tensor by extent: kElements has one for each element of the state.
class ValueCounts {
 public:
  // For tensors that are all elementwise.
  explicit ValueCounts(int64_t num_elements) { of(StateExtent::kElements) = num_elements; }
  ValueCounts(int64_t num_elements, std::span<const ParameterRange> ranges);

  int64_t& of(StateExtent extent) { return counts_[static_cast<size_t>(extent)]; }
  int64_t of(StateExtent extent) const { return counts_[static_cast<size_t>(extent)]; }

 private:
  std::array<int64_t, kNumStateExtents> counts_ = {};
};

// The dtypes of the parts: of the tensors and, with BF16 weights, of the remainders.
std::vector<DType> part_dtypes(StateTensors tensors, DType weight_dtype);

// Bytes of the remainders that turn BF16 weights into exact float32 master weights (base/float_types.h).
int64_t remainder_bytes(int64_t num_elements, DType weight_dtype);
// Bytes of the tensors in memory.
int64_t state_tensor_bytes(StateTensors tensors, const ValueCounts& counts);

// Parts with a value for each of the same elements, which share a file. Each begins as far into a page as if
// all parts of the state followed one another without gaps, wider types first, as in a checkpoint; or with
// a page, unless that is at a multiple of phase_alignment().
struct FileParts {
  StateExtent extent;
  std::vector<size_t> parts;
  std::vector<FilePart> in_file;
  int64_t num_values = 0;
  int64_t chunks_ahead = 0;
};
// The files of a state. Tensors by rows or columns and those of vectors are small and stay in memory. All
// files together read as many chunks ahead as a single one for all elements would with this `chunks_ahead`.
std::vector<FileParts> file_parts(StateTensors tensors, DType weight_dtype, const ValueCounts& counts,
                                  int64_t chunks_ahead);

// Bytes of a state with files.
struct StateOnDisk {
  int64_t memory_bytes = 0;     // buffers, and the tensors without a file
  int64_t ahead_bytes = 0;      // what the buffers hold of chunks read ahead
  int64_t file_bytes = 0;       // of all files
  int64_t discarded_bytes = 0;  // of these, what OptimizerState::discard_tensors() frees
};
StateOnDisk state_on_disk(StateTensors tensors, DType weight_dtype, const ValueCounts& counts,
                          int64_t chunks_ahead);

}  // namespace tessera
