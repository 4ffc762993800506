// The state of a run's parameters: what is loaded, saved, resumed and exported.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/run_state.h"
#include "formats/safetensors/safetensors.h"
#include "shard/layout/change_hook.h"
#include "shard/layout/load_once.h"
#include "shard/store_parts.h"
#include "weights/model_folder.h"

namespace tessera {

class MasterExport;

// All operations are collective (every rank calls them in the same order) unless stated otherwise.
class StoreState {
 public:
  // `parts` must outlive this.
  explicit StoreState(StoreParts& parts);
  ~StoreState();

  // Reads the weights. `progress` reports what this rank reads.
  void load(const SafetensorsModel& file, LoadOnce once,
            const std::function<void(const LoadProgress&)>& progress);

  // The tensors of the state, besides the master weights: the optimizer's, then kGradientFeedback or
  // kOuterMomentum where it is kept. The list outlives every checkpoint.
  StateTensors tensors() const { return tensors_; }
  // The elements whose state this rank writes to checkpoints. Ranges ascend; over all ranks they cover the
  // flat array exactly once.
  std::vector<ElementRange> owned() const;
  // The elements whose state this rank keeps, which it needs to resume from a checkpoint: what it owns, and
  // in stage 0 what its whole rail owns.
  std::vector<ElementRange> kept() const { return parts_.pieces.ranges(); }

  // Fills `values` with the state of elements of owned(). Not collective; may be called from several threads
  // at once, but not while these elements change.
  void read(StateKind kind, int64_t begin, std::span<float> values) const;
  // The state in the form in which checkpoints store it, as far as it is kept in that form.
  StoredSource stored_source() const;
  // Replaces the state of elements of kept(). Not collective; may be called from several threads for disjoint
  // ranges.
  void write(StateKind kind, int64_t begin, std::span<const float> values);
  // Call after write() of everything the ranks keep: gives the model these weights.
  void written();

  // If nodes train on their own: gives all of them the same weights, the ones that are saved. `before_change`
  // as below.
  void synchronize(const ChangeHook& before_change);
  // Call after a step, before the state is read to be saved: ranks hand over to the owners what they hold for
  // elements of others. The run continues as one that resumes from what is saved, not as if nothing had been
  // saved. `before_change` (if set) is called before the state of owned elements changes.
  void settle(const ChangeHook& before_change);
  // Frees the disk space of the tensors if they are in a file: only masters are read from now on. Not
  // collective.
  void discard_tensors() { parts_.state->discard_tensors(); }
  // For nodes without a shared folder: calls write() on rank 0 with the float32 master weights of all ranks,
  // to be read in ascending order. Exceptions from write() propagate there.
  void export_masters(const std::function<void(const WeightSource& source)>& write);

  // Wraps the update in that of nodes that train on their own, whose momentum then belongs to the state.
  void add_outer(const ZeroSettings& settings, Communicator& job);

 private:
  bool loads_whole_node(LoadOnce once) const;
  std::vector<ElementRange> ranges_to_load(LoadOnce once) const;
  void write_loaded(int64_t begin, std::span<const float> values);
  std::span<bf16> loaded_bf16(int64_t begin, int64_t count);
  bool is_feedback(StateKind kind) const;
  // Reads and writes the state that this rank keeps for its node.
  void read_node_state(StateKind kind, int64_t begin, std::span<float> values) const;
  void write_node_state(StateKind kind, int64_t begin, std::span<const float> values);
  void read_masters(int64_t begin, std::span<float> values) const;
  bool visit_stored_model(int64_t begin, int64_t count, const StoredBody& body) const;
  // Calls body(group, first element, first value, number of values) for the owned elements of [begin, begin +
  // count).
  template <typename Body>
  void for_each_owned(int64_t begin, int64_t count, const Body& body) const;

  StoreParts& parts_;
  std::vector<StateTensor> tensors_;
  std::unique_ptr<MasterExport> master_export_;
};

}  // namespace tessera
