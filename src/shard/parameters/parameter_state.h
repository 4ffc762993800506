// Weights, gradients and optimizer state of a run: whole in this process, or sharded over the ranks of a job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/run_state.h"
#include "comm/communicator.h"
#include "formats/safetensors/safetensors.h"
#include "io/async_file.h"
#include "model/trainable_model.h"
#include "optim/optimizer_state.h"
#include "platform/thread_pool.h"
#include "shard/load_once.h"
#include "shard/zero_memory.h"
#include "weights/model_folder.h"

namespace tessera {

// Called with the elements of owned() whose state is about to change.
using ChangeHook = std::function<void(ElementRange elements)>;

// The update of a step during its backward pass: every group is updated as soon as its gradients are
// complete.
class BackwardUpdate {
 public:
  virtual ~BackwardUpdate() = default;

  // The next pass that is the last of a step makes this update, calling `before_change` (if set) before each
  // group. With a max_group_norm the gradients of every group are scaled down to it, besides
  // step.gradient_scale; 0 = not. Once a gradient is not finite, what is left is not updated.
  virtual void begin(const OptimizerStep& step, double max_group_norm, ChangeHook before_change) = 0;
  // That pass is abandoned, and changes nothing.
  virtual void cancel() = 0;
  // Whether the last pass has changed anything, and whether it is still going on.
  virtual bool has_begun() const = 0;
  virtual bool is_under_way() const = 0;
  // That the last update took.
  virtual double seconds() const = 0;
};

// All operations are collective (every rank calls them in the same order) unless stated otherwise.
class ParameterState {
 public:
  virtual ~ParameterState() = default;

  // Reads the weights. `progress` reports what this rank reads.
  virtual void load(const SafetensorsModel& file, LoadOnce once,
                    const std::function<void(const LoadProgress&)>& progress) = 0;

  // Called around every forward_backward() of a step; begin_pass() returns what the model should do with
  // gradients.
  virtual WeightUpdate begin_pass(bool is_first, bool is_last) = 0;
  virtual void end_pass() = 0;
  // Call before begin_pass() of a pass that is computed for a check alone: nothing but gradients changes in
  // it.
  virtual void expect_rehearsal() {}
  // After the last pass: this rank's contribution to the squared gradient norm.
  virtual double gradient_squares() const = 0;
  // A parameter with a non-finite gradient among those this rank has reduced; "" = none.
  virtual std::string not_finite_gradient() const = 0;
  // One update, group by group, calling `before_change` (if set) before each. No rank may still be using the
  // old weights. Afterwards the model has the new ones, or gets those of each group when it opens it.
  virtual void update(const OptimizerStep& step, const ChangeHook& before_change) = 0;
  // Completes an update that overlaps the passes after it. Not collective; settle_state() does the same.
  virtual void finish_update() {}
  // Seconds that such updates took since the last call, beyond those of update().
  virtual double take_update_seconds() { return 0; }
  // Instead of the update, where a step is given up or skipped: nothing of its gradients is kept.
  virtual void discard_step() {}
  // What updates in place of update(); nullptr: the gradients of a step are kept until then.
  virtual BackwardUpdate* backward_update() { return nullptr; }
  // Traffic between nodes since the last call that the rail does not count; without that of synchronize() and
  // settle_state(). Not collective.
  virtual NetworkCounters take_network() { return {}; }
  // Transfers of the state and the weights that this rank keeps in files.
  virtual AsyncFileStatistics state_file_statistics() const { return {}; }
  virtual AsyncFileStatistics weight_file_statistics() const { return {}; }
  // The tensors of the state, besides the master weights: the optimizer's, then kGradientFeedback or
  // kOuterMomentum where it is kept. The list outlives every checkpoint.
  virtual StateTensors state_tensors() const = 0;

  // Frees the disk space of these tensors if they are in a file: only masters are read from now on. Not
  // collective.
  virtual void discard_state_tensors() {}

  // For nodes without a shared folder: calls write() on rank 0 with the float32 master weights of all ranks,
  // to be read in ascending order. Exceptions from write() propagate there.
  virtual void export_masters(const std::function<void(const WeightSource& source)>& write) = 0;

  // Where nodes train on their own: all take the same weights, those that are saved. `before_change` as
  // below.
  virtual void synchronize(const ChangeHook& /*before_change*/) {}
  // Call after a step, before its state is read to be saved: ranks hand over to the owners what they hold for
  // elements of others. The run continues as one that resumes from what is saved, not as if nothing had been
  // saved. `before_change` (if set) is called before the state of owned elements changes.
  virtual void settle_state(const ChangeHook& /*before_change*/) {}
  // The elements whose state this rank writes to checkpoints. Ranges ascend; over all ranks they cover the
  // flat array exactly once.
  virtual std::vector<ElementRange> owned() const = 0;
  // Fills `values` with the state of elements of owned(). Not collective; may be called from several threads
  // at once, but not while these elements change.
  virtual void read_state(StateKind kind, int64_t begin, std::span<float> values) const = 0;
  // The same as checkpoints store it, as far as it is kept in this form.
  virtual StoredSource stored_source() const { return {}; }
  // The elements whose state this rank keeps, which it needs to resume from a checkpoint: what it owns, and
  // in stage 0 what its whole rail owns.
  virtual std::vector<ElementRange> kept() const = 0;
  // Replaces the state of elements of kept(). Not collective; may be called from several threads for disjoint
  // ranges.
  virtual void write_state(StateKind kind, int64_t begin, std::span<const float> values) = 0;
  // Call after write_state() of everything the ranks keep: gives the model these weights.
  virtual void state_written() = 0;
};

// Allocates the state and binds the model to it. `settings` must be those the memory was planned with. With a
// single-rank communicator everything stays in this process. model, communicator and pool must outlive the
// result.
std::unique_ptr<ParameterState> make_parameter_state(TrainableModel& model, const ZeroSettings& settings,
                                                     std::unique_ptr<const Optimizer> optimizer,
                                                     bool decay_all, Communicator& comm, ThreadPool& pool);

}  // namespace tessera
