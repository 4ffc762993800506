// The master weights and the optimizer's state of a flat range of parameters, and their updates.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "optim/optimizer.h"
#include "optim/state_file.h"
#include "optim/state_parts.h"
#include "optim/state_place.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Bytes of all that an OptimizerState allocates, the scratch memory of the gradient norm included, if the
// tensors are elementwise and in memory.
int64_t optimizer_state_bytes(StateTensors tensors, int64_t num_elements, DType weight_dtype);

class OptimizerState final : public StatePlace {
 public:
  // `ranges` do not overlap in the state, and are whole parameters where these cannot be cut. `weights` (BF16
  // or F32) and `gradients` (F32 or BF16) are flat arrays and must outlive this. The state has as many
  // elements as the weights unless num_state_elements is given, and starts as zeros. BF16 weights start as
  // exact masters: remainders are 0. With `file`, the per-element values live in that file, or in several
  // (file_parts()), and are the same at all times.
  OptimizerState(std::unique_ptr<const Optimizer> optimizer, std::vector<ParameterRange> ranges,
                 TensorView weights, ConstTensorView gradients, ThreadPool& pool,
                 std::optional<int64_t> num_state_elements = {},
                 const std::optional<StateFileSettings>& file = {});

  const Optimizer& optimizer() const override { return *optimizer_; }
  int64_t num_ranges() const { return std::ssize(ranges_); }

  // Sum of squares of the gradients of a range, and the square root of all of them, added up in the order of
  // the ranges; independent of the number of threads.
  double gradient_squares(int64_t range) const;
  double gradient_norm() const;
  void update(int64_t first, int64_t last, const OptimizerStep& step) override;
  void update(const OptimizerStep& step) { update(0, num_ranges(), step); }
  void announce(int64_t first, int64_t last) override;
  void discard_tensors() override;
  AsyncFileStatistics file_statistics() const override;

  // Float32 master weights of elements [begin, begin + destination.size()) of the weights, whose state begins
  // at state_begin.
  void read_master(int64_t begin, std::span<float> destination) const {
    read_master(begin, begin, destination);
  }
  void read_master(int64_t begin, int64_t state_begin, std::span<float> destination) const override;
  // Sets weight and remainder of these elements from float32.
  void write_master(int64_t begin, std::span<const float> source) { write_master(begin, begin, source); }
  void write_master(int64_t begin, int64_t state_begin, std::span<const float> source);

  void read(StateKind kind, int64_t begin, int64_t state_begin, std::span<float> values) const override;
  void write(StateKind kind, int64_t begin, int64_t state_begin, std::span<const float> values) override;
  bool read_stored(StateKind kind, DType dtype, int64_t state_begin, int64_t count,
                   const StoredBody& body) const override;

 private:
  // Calls body(first element of the range, float32 gradients from there on) for each block of a range: a
  // single block if gradients are F32, otherwise as many elements as are widened at a time.
  template <typename Body>
  void for_each_block(const ParameterRange& range, const Body& body) const;
  void update_blocks(size_t range_index, const OptimizerStep& step);
  void update_whole(size_t range_index, const OptimizerStep& step);
  // Parameters that cannot be cut must be whole.
  void check_shapes() const;
  int64_t workspace_bytes() const;
  void allocate_parts();
  void open_files(const StateFileSettings& settings);
  // Where a part has the first value of a range.
  int64_t value_begin(size_t range_index, size_t part) const;
  // Where a tensor has the value of the element whose state is at state_begin; it and the `count - 1` after
  // it must have one.
  int64_t value_index(size_t tensor, int64_t state_begin, int64_t count) const;
  void check_elements(int64_t begin, int64_t state_begin, int64_t count) const;
  void read_master_alone(int64_t begin, int64_t state_begin, std::span<float> destination) const;
  void write_master_alone(int64_t begin, int64_t state_begin, std::span<const float> source);
  // Calls body(values, first, done, count) for `count` elements of a part of the state, the first of them
  // element `first` of `values`: for all of them at once, or from a file in pieces.
  template <typename Body>
  void read_part(size_t part, int64_t state_begin, int64_t count, const Body& body) const;
  template <typename Body>
  void write_part(size_t part, int64_t state_begin, int64_t count, const Body& body);
  // Fills open_ for elements of a range from `begin` on, the first of a block; returns how many of `count` it
  // covers. `opened` can limit what is read from files to the tensors or the remainders.
  enum class Opened { kAll, kTensors, kRemainders };
  int64_t open_parts(size_t range_index, int64_t begin, int64_t count, Opened opened = Opened::kAll);
  bool is_opened(const FileParts& file, Opened opened) const;
  // The chunks of a file with the state of these ranges.
  std::pair<int64_t, int64_t> chunks_of(size_t file, int64_t first, int64_t last) const;
  size_t remainder_part() const { return optimizer_->state_tensors().size(); }
  int16_t* open_remainders() const;
  std::span<std::byte* const> open_tensors() const;

  std::unique_ptr<const Optimizer> optimizer_;
  std::vector<ParameterRange> ranges_;
  TensorView weights_;
  ConstTensorView gradients_;
  ThreadPool* pool_;
  int64_t num_state_elements_;
  // By part: the tensors and, with BF16 weights, the remainders (I16). Empty if they are in a file.
  std::vector<DType> dtypes_;
  std::vector<PageBuffer> parts_;
  bool elementwise_;
  // Unless they are: the first value of each range, by range and tensor.
  std::vector<std::array<int64_t, kMaxStateTensors>> value_begin_;
  PageBuffer workspace_;  // for parameters that cannot be cut
  std::vector<FileParts> file_parts_;
  std::vector<std::unique_ptr<StateFile>> files_;  // as file_parts_
  struct Place {
    size_t file;
    size_t part;  // of the file
  };
  std::array<std::optional<Place>, StateFile::kMaxParts> places_ = {};  // by part, of those in files
  StateFile::Parts open_ = {};                                          // of the elements that are updated
  std::array<int64_t, StateFile::kMaxParts> end_chunks_ = {};           // of the update, by file
  PageBuffer norm_scratch_;
  PageBuffer widened_;  // BF16 gradients only: a block of them in F32
};

}  // namespace tessera
