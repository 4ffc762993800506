#include "shard/store_state.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "checkpoint/checkpoint_files.h"
#include "shard/gradients/gradient_store.h"
#include "shard/master_export.h"
#include "shard/outer/outer_update.h"
#include "shard/state/device_state.h"
#include "shard/weights/weight_store.h"
#include "weights/weight_reader.h"

namespace tessera {
namespace {

std::span<const std::byte> bytes_of(const ConstTensorView& tensor) {
  return {tensor.bytes(), static_cast<size_t>(tensor.size_bytes())};
}

}  // namespace

StoreState::StoreState(StoreParts& parts) : parts_(parts) {
  const StateTensors of_optimizer = parts.state->optimizer().state_tensors();
  tensors_.assign(of_optimizer.begin(), of_optimizer.end());
  if (parts.reduced_gradients != nullptr && parts.reduced_gradients->has_feedback())
    tensors_.push_back(kGradientFeedback);
}

StoreState::~StoreState() = default;

bool StoreState::loads_whole_node(LoadOnce once) const {
  return once == LoadOnce::kPerNode && parts_.node_weights != nullptr &&
         parts_.node_weights->node_has_all() && !parts_.node_weights->fetches_rounded();
}

// If the node keeps all weights, its ranks read them together: each reads the parts of its rail, which on
// this node it owns. Otherwise only the owners read.
std::vector<ElementRange> StoreState::ranges_to_load(LoadOnce once) const {
  return OwnedPieces(parts_.plan, parts_.comm.world().rank, /*of_rail=*/loads_whole_node(once)).ranges();
}

// Takes values of ranges_to_load(): they become masters where this rank keeps the optimizer state, otherwise
// weights, rounded like masters.
void StoreState::write_loaded(int64_t begin, std::span<const float> values) {
  const Part given = {begin, begin + std::ssize(values)};
  const TensorView weights = parts_.weights->memory();
  for (int64_t g = 0; g < parts_.plan.num_groups(); ++g) {
    const Part of_group = intersection(given, parts_.plan.group(g));
    if (of_group.size() == 0) continue;
    for (int rank = 0; rank < parts_.plan.world_size(); ++rank) {
      for (const Part& owned : {parts_.plan.part(g, rank), parts_.plan.expert_part(g, rank)}) {
        const Part common = intersection(of_group, owned);
        if (common.size() == 0) continue;
        const std::span<const float> part =
            values.subspan(static_cast<size_t>(common.begin - begin), static_cast<size_t>(common.size()));
        if (parts_.pieces.find(g, common.begin) != nullptr) {
          write_node_state(StateKind::kMaster, common.begin, part);
        } else if (weights.dtype() == DType::kF32) {
          std::copy(part.begin(), part.end(), weights.as<float>() + parts_.weights->index(g, common.begin));
        } else {
          std::transform(part.begin(), part.end(),
                         weights.as<bf16>() + parts_.weights->index(g, common.begin), master_weight);
        }
      }
    }
  }
}

// A bfloat16 value in the files is an exact master: its remainder is 0, the initial value. Within a group the
// parts of a node are adjacent in memory.
std::span<bf16> StoreState::loaded_bf16(int64_t begin, int64_t count) {
  int64_t group = 0;
  while (parts_.plan.group(group).end <= begin) ++group;
  const int64_t end = std::min(begin + count, parts_.plan.group(group).end);
  return {parts_.weights->memory().as<bf16>() + parts_.weights->index(group, begin),
          static_cast<size_t>(end - begin)};
}

void StoreState::load(const SafetensorsModel& file, LoadOnce once,
                      const std::function<void(const LoadProgress&)>& progress) {
  TESSERA_CHECK(once == LoadOnce::kPerNode || parts_.settings.stage > 0 || parts_.comm.world().num_nodes == 1,
                "stage {} fetches no weights", parts_.settings.stage);
  if (parts_.outer != nullptr) once = LoadOnce::kPerNode;  // every node reads the files on its own
  if (parts_.device_state != nullptr) {
    WeightReader reader(file, parts_.model.config(), parts_.model.layout(), parts_.pool, progress);
    parts_.device_state->load(reader);
  } else {
    const std::vector<ElementRange> ranges = ranges_to_load(once);
    LoadOptions options;
    options.ranges = ranges;
    options.progress = progress;
    if (parts_.model.dtype() == DType::kBF16 && parts_.keeps_weights_in_memory()) {
      options.bf16_destination = [this](int64_t begin, int64_t count) { return loaded_bf16(begin, count); };
    }
    const WeightSink sink = [this](int64_t begin, std::span<const float> values) {
      write_loaded(begin, values);
    };
    load_weights(file, parts_.model.config(), parts_.model.layout(), sink, parts_.pool, options);
  }
  parts_.weights->loaded(loads_whole_node(once));
  parts_.weights_changed();
  if (parts_.outer != nullptr) parts_.outer->loaded(kept());
}

std::vector<ElementRange> StoreState::owned() const {
  return parts_.outer != nullptr ? parts_.outer->owned()
                                 : owned_ranges(parts_.plan, parts_.comm.world().rank);
}

// An outer update keeps the feedback of its own sums.
bool StoreState::is_feedback(StateKind kind) const {
  return parts_.outer == nullptr && kind != StateKind::kMaster &&
         tensor_index(kind) == parts_.state->optimizer().state_tensors().size();
}

void StoreState::read_node_state(StateKind kind, int64_t begin, std::span<float> values) const {
  parts_.pieces.for_each_part(
      begin, std::ssize(values), [&](const auto& piece, const Part& part, int64_t first) {
        const auto of_part = values.subspan(static_cast<size_t>(first), static_cast<size_t>(part.size()));
        if (kind != StateKind::kMaster)
          return parts_.state->read(kind, /*begin=*/0, piece.state_of(part.begin), of_part);
        parts_.weights->visit(
            WeightPlace::Access::kRead, piece.group, part.begin, part.size(),
            [&](int64_t index, int64_t element, int64_t count, const FileBytes* /*in_file*/) {
              parts_.state->read(
                  kind, index, piece.state_of(element),
                  of_part.subspan(static_cast<size_t>(element - part.begin), static_cast<size_t>(count)));
            });
      });
}

void StoreState::write_node_state(StateKind kind, int64_t begin, std::span<const float> values) {
  TESSERA_CHECK(!parts_.update->is_pending(), "state of an update under way");
  parts_.pieces.for_each_part(
      begin, std::ssize(values), [&](const auto& piece, const Part& part, int64_t first) {
        const auto of_part = values.subspan(static_cast<size_t>(first), static_cast<size_t>(part.size()));
        if (kind != StateKind::kMaster)
          return parts_.state->write(kind, /*begin=*/0, piece.state_of(part.begin), of_part);
        parts_.weights->visit(
            WeightPlace::Access::kWrite, piece.group, part.begin, part.size(),
            [&](int64_t index, int64_t element, int64_t count, const FileBytes* /*in_file*/) {
              parts_.state->write(
                  kind, index, piece.state_of(element),
                  of_part.subspan(static_cast<size_t>(element - part.begin), static_cast<size_t>(count)));
            });
      });
}

// In stage 0 a rank keeps the optimizer's state of elements that it does not own, but no errors of theirs.
template <typename Body>
void StoreState::for_each_owned(int64_t begin, int64_t count, const Body& body) const {
  for (int64_t g = 0; g < parts_.plan.num_groups(); ++g) {
    const Part common = intersection(parts_.plan.part(g, parts_.comm.world().rank), {begin, begin + count});
    if (common.size() == 0) continue;
    body(g, common.begin, static_cast<size_t>(common.begin - begin), static_cast<size_t>(common.size()));
  }
}

void StoreState::read(StateKind kind, int64_t begin, std::span<float> values) const {
  if (parts_.outer != nullptr && parts_.outer->keeps(kind)) return parts_.outer->read(kind, begin, values);
  if (!is_feedback(kind)) return read_node_state(kind, begin, values);
  for_each_owned(begin, std::ssize(values), [&](int64_t group, int64_t element, size_t first, size_t count) {
    parts_.reduced_gradients->read_feedback(group, element, values.subspan(first, count));
  });
}

void StoreState::write(StateKind kind, int64_t begin, std::span<const float> values) {
  if (parts_.outer != nullptr && parts_.outer->keeps(kind)) {
    parts_.outer->write(kind, begin, values);
    if (parts_.outer->is_momentum(kind)) return;
  }
  if (!is_feedback(kind)) return write_node_state(kind, begin, values);
  for_each_owned(begin, std::ssize(values), [&](int64_t group, int64_t element, size_t first, size_t count) {
    parts_.reduced_gradients->write_feedback(group, element, values.subspan(first, count));
  });
}

// Other ranks fetch the values they do not keep, as after an update.
void StoreState::written() {
  if (parts_.reduced_gradients != nullptr) parts_.reduced_gradients->feedback_written();
  parts_.weights->loaded(/*whole_node=*/false);
  parts_.weights_changed();
}

bool StoreState::visit_stored_model(int64_t begin, int64_t count, const StoredBody& body) const {
  parts_.pieces.for_each_part(begin, count, [&](const auto& piece, const Part& part, int64_t) {
    parts_.weights->visit(WeightPlace::Access::kRead, piece.group, part.begin, part.size(),
                          [&](int64_t index, int64_t element, int64_t size, const FileBytes* in_file) {
                            body(element - begin,
                                 bytes_of(parts_.weights->memory().rows(index, index + size)), in_file);
                          });
  });
  return true;
}

// If nodes train apart, the saved masters are not the node's own.
StoredSource StoreState::stored_source() const {
  return [this](size_t part, DType dtype, int64_t begin, int64_t count, const StoredBody& body) {
    const bool is_model = part == StoredParts::kModel;
    if (parts_.outer != nullptr &&
        (part < StoredParts::kFirstTensor || parts_.outer->is_momentum(StoredParts::kind(part))))
      return false;
    if (is_model) {
      return dtype == parts_.model.dtype() && parts_.weights->memory().is_on_host() &&
             visit_stored_model(begin, count, body);
    }
    if (is_feedback(StoredParts::kind(part))) return false;
    bool is_at_hand = true;
    parts_.pieces.for_each_part(begin, count, [&](const auto& piece, const Part& of_piece, int64_t first) {
      is_at_hand = parts_.state->read_stored(
          StoredParts::kind(part), dtype, piece.state_of(of_piece.begin), of_piece.size(),
          [&](int64_t done, std::span<const std::byte> stored, const FileBytes* in_file) {
            body(first + done, stored, in_file);
          });
    });
    return is_at_hand;
  };
}

void StoreState::read_masters(int64_t begin, std::span<float> values) const {
  if (!parts_.keeps_weights_in_memory()) return read_node_state(StateKind::kMaster, begin, values);
  parts_.pieces.for_each_part(
      begin, std::ssize(values), [&](const auto& piece, const Part& part, int64_t first) {
        parts_.state->read_master(
            parts_.weights->index(piece.group, part.begin), piece.state_of(part.begin),
            values.subspan(static_cast<size_t>(first), static_cast<size_t>(part.size())));
      });
}

void StoreState::export_masters(const std::function<void(const WeightSource&)>& write) {
  if (parts_.outer != nullptr && parts_.node_rank > 0) return;  // all nodes have the same
  parts_.update->finish();
  const WeightSource own = [this](int64_t begin, std::span<float> values) { read_masters(begin, values); };
  if (parts_.placement.is_single) return write(own);
  if (!master_export_)
    master_export_ = std::make_unique<MasterExport>(parts_.plan, parts_.pieces, parts_.comm);
  master_export_->run(own, write);
}

void StoreState::synchronize(const ChangeHook& before_change) {
  if (parts_.outer != nullptr) parts_.outer->synchronize(before_change);
}

void StoreState::settle(const ChangeHook& before_change) {
  parts_.update->finish();
  if (parts_.outer != nullptr) return parts_.outer->settle_state(before_change);
  if (parts_.reduced_gradients == nullptr) return;
  parts_.reduced_gradients->settle_feedback([&] {
    if (!before_change) return;
    for (const ElementRange& range : owned()) before_change(range);
  });
}

void StoreState::add_outer(const ZeroSettings& settings, Communicator& job) {
  const InnerState node = {[this](StateKind kind, int64_t begin, std::span<float> values) {
                             read_node_state(kind, begin, values);
                           },
                           [this](StateKind kind, int64_t begin, std::span<const float> values) {
                             write_node_state(kind, begin, values);
                           },
                           [this] { written(); }};
  const World& world = job.world();
  auto outer = std::make_unique<OuterUpdate>(
      std::move(parts_.update), node, tensors_.size(),
      zero_layout(parts_.model.layout(), world.num_nodes, world.local_world_size), settings, job,
      parts_.pool);
  parts_.outer = outer.get();
  parts_.update = std::move(outer);
  tensors_.push_back(kOuterMomentum);
}

}  // namespace tessera
