// Weights, gradients and optimizer state of a run: whole in this process, or sharded over the ranks of a job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model_folder.h"
#include "checkpoint/run_state.h"
#include "comm/communicator.h"
#include "formats/safetensors.h"
#include "model/model.h"
#include "optim/adamw.h"
#include "platform/thread_pool.h"
#include "zero/zero_memory.h"

namespace tessera {

// How often a byte of the model's files is read.
enum class LoadOnce {
  kPerNode,     // where the weights are kept, by one rank of the node
  kPerCluster,  // by the rank that owns it; the others get it over the network
};

// Called with elements of owned() whose state is about to change.
using ChangeHook = std::function<void(ElementRange elements)>;

// All operations are collective, every rank calls them in the same order, unless they say otherwise.
class ParameterState {
 public:
  virtual ~ParameterState() = default;

  // Reads the weights. `progress` is of what this rank reads.
  virtual void load(const SafetensorsModel& file, LoadOnce once,
                    const std::function<void(const LoadProgress&)>& progress) = 0;

  // Around every forward_backward() of a step; tells the model what to do with gradients.
  virtual WeightUpdate begin_pass(bool is_first, bool is_last) = 0;
  virtual void end_pass() = 0;
  // After the last pass: this rank's summand of the square of the gradient's norm.
  virtual double gradient_squares() const = 0;
  // A parameter with a gradient that is not finite among those that this rank has summed up; "" = none.
  virtual std::string not_finite_gradient() const = 0;
  virtual void set_betas(double beta1, double beta2) = 0;
  // One update, as AdamW::step, group by group; `before_change`, where there is one, is called before each.
  // No rank may still use the old weights. The model then has new ones.
  virtual void update(int64_t step, double learning_rate, double gradient_scale,
                      const ChangeHook& before_change) = 0;

  // For nodes without a common folder: calls write() on rank 0 with the float32 master weights of all ranks,
  // to be read in ascending order; what it throws is thrown there.
  virtual void export_masters(const std::function<void(const WeightSource& source)>& write) = 0;

  // The state for checkpoints. Ranges ascend; those owned by all ranks together are the flat array, once.
  virtual std::vector<ElementRange> owned() const = 0;
  // Fills `values` with the state of elements of owned(). Not collective; from any thread, several at once,
  // but not while these elements change.
  virtual void read_state(StateKind kind, int64_t begin, std::span<float> values) const = 0;
  // What this rank keeps the state of: what it owns, and in stage 0 all that its rail does. It is what it
  // needs to go on from a checkpoint.
  virtual std::vector<ElementRange> kept() const = 0;
  // Replaces the state of elements of kept(). Not collective; from several threads for disjoint ranges.
  virtual void write_state(StateKind kind, int64_t begin, std::span<const float> values) = 0;
  // Behind write_state() of all that the ranks keep: the model has these weights.
  virtual void state_written() = 0;
};

// Allocates the state and binds the model to it. `settings` is what the memory was planned with. A
// communicator of a single rank keeps everything in this process. model, communicator and pool must outlive
// the result.
std::unique_ptr<ParameterState> make_parameter_state(Model& model, const ZeroSettings& settings,
                                                     const AdamWOptions& options, bool decay_all,
                                                     Communicator& comm, ThreadPool& pool);

}  // namespace tessera
