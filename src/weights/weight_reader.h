// Weights read part by part, as where they have another form in memory, or go to a device through the host's
// memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/function_ref.h"
#include "tensor/tensor_view.h"
#include "weights/load_plan.h"
#include "weights/model_folder.h"

namespace tessera {

// Reads one part of a model after another and reports them as one: the files' tensors are looked up once.
// Objects passed by reference must outlive this. Throws the errors of load_weights().
class WeightReader {
 public:
  WeightReader(const SafetensorsModel& file, const ModelConfig& config, const ParameterLayout& layout,
               ThreadPool& pool, std::function<void(const LoadProgress&)> progress)
      : file_(file),
        config_(config),
        layout_(layout),
        tensors_(plan_load(file, config, layout)),
        pool_(pool),
        progress_(std::move(progress)) {}

  const ParameterLayout& layout() const { return layout_; }
  ThreadPool& pool() const { return pool_; }

  // The parts to be read have this parameter, or all of them: so that progress knows its end.
  void expect(const Parameter& parameter);
  void expect_all();
  // Adds the values of subsequent reads to `sums`.
  void add_to(ValueSums* sums) { sums_ = sums; }

  // The files' values of these elements; see load_weights().
  void read(ElementRange range, const WeightSink& sink, const Bf16Destination& bf16_destination = {});
  // Reads them as BF16 or F32 into `to` [range], on the host.
  void read(ElementRange range, TensorView to);

 private:
  const SafetensorsModel& file_;
  const ModelConfig& config_;
  const ParameterLayout& layout_;
  std::vector<PlannedTensor> tensors_;
  ThreadPool& pool_;
  std::function<void(const LoadProgress&)> progress_;
  LoadProgress done_;
  ValueSums* sums_ = nullptr;
};

// Fills `to` (U8), on any device, through a buffer of the host that holds the largest part: `fill` writes
// part `index`, which has bytes [begins[index], begins[index + 1]) of `to`, to a buffer that is zero.
void fill_by_parts(std::span<const int64_t> begins, TensorView to,
                   FunctionRef<void(int64_t index, std::byte* buffer)> fill);

// All elements of the reader's layout, to `weights` [num_elements] (BF16 or F32) on any device, group by
// group.
void load_by_groups(WeightReader& reader, TensorView weights);

// Where the groups of a layout begin in a flat array of `dtype`, in bytes, and where the last one ends.
std::vector<int64_t> group_begins(const ParameterLayout& layout, DType dtype);

}  // namespace tessera
