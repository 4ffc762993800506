// The state of a ParameterStore: loaded, saved, resumed and exported.
#include <algorithm>

#include "base/error.h"
#include "checkpoint/checkpoint_files.h"
#include "shard/gradients/gradient_store.h"
#include "shard/master_export.h"
#include "shard/outer/outer_update.h"
#include "shard/parameter_store.h"
#include "shard/state/device_state.h"
#include "shard/weights/weight_store.h"
#include "weights/weight_reader.h"

namespace tessera {
namespace {

std::span<const std::byte> bytes_of(const ConstTensorView& tensor) {
  return {tensor.bytes(), static_cast<size_t>(tensor.size_bytes())};
}

}  // namespace

bool ParameterStore::loads_whole_node(LoadOnce once) const {
  return once == LoadOnce::kPerNode && node_weights_ != nullptr && node_weights_->node_has_all() &&
         !node_weights_->fetches_rounded();
}

// If the node keeps all weights, its ranks read them together: each reads the parts of its rail, which on
// this node it owns. Otherwise only the owners read.
std::vector<ElementRange> ParameterStore::ranges_to_load(LoadOnce once) const {
  return OwnedPieces(plan_, comm_->world().rank, /*of_rail=*/loads_whole_node(once)).ranges();
}

// Takes values of ranges_to_load(): they become masters where this rank keeps the optimizer state, otherwise
// weights, rounded like masters.
void ParameterStore::write_loaded(int64_t begin, std::span<const float> values) {
  const Part given = {begin, begin + std::ssize(values)};
  const TensorView weights = weights_->memory();
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    const Part of_group = intersection(given, plan_.group(g));
    if (of_group.size() == 0) continue;
    for (int rank = 0; rank < plan_.world_size(); ++rank) {
      const Part common = intersection(of_group, plan_.part(g, rank));
      if (common.size() == 0) continue;
      const std::span<const float> part =
          values.subspan(static_cast<size_t>(common.begin - begin), static_cast<size_t>(common.size()));
      if (pieces_.find(g, common.begin) != nullptr) {
        write_node_state(StateKind::kMaster, common.begin, part);
      } else if (weights.dtype() == DType::kF32) {
        std::copy(part.begin(), part.end(), weights.as<float>() + weights_->index(g, common.begin));
      } else {
        std::transform(part.begin(), part.end(), weights.as<bf16>() + weights_->index(g, common.begin),
                       master_weight);
      }
    }
  }
}

// A bfloat16 value in the files is an exact master: its remainder is 0, the initial value. Within a group the
// parts of a node are adjacent in memory.
std::span<bf16> ParameterStore::loaded_bf16(int64_t begin, int64_t count) {
  int64_t group = 0;
  while (plan_.group(group).end <= begin) ++group;
  const int64_t end = std::min(begin + count, plan_.group(group).end);
  return {weights_->memory().as<bf16>() + weights_->index(group, begin), static_cast<size_t>(end - begin)};
}

void ParameterStore::load(const SafetensorsModel& file, LoadOnce once,
                          const std::function<void(const LoadProgress&)>& progress) {
  TESSERA_CHECK(once == LoadOnce::kPerNode || settings_.stage > 0 || comm_->world().num_nodes == 1,
                "stage {} fetches no weights", settings_.stage);
  if (outer_ != nullptr) once = LoadOnce::kPerNode;  // every node reads the files on its own
  if (device_state_ != nullptr) {
    WeightReader reader(file, model_->config(), model_->layout(), *pool_, progress);
    device_state_->load(reader);
  } else {
    const std::vector<ElementRange> ranges = ranges_to_load(once);
    LoadOptions options;
    options.ranges = ranges;
    options.progress = progress;
    if (model_->dtype() == DType::kBF16 && weights_->stays_in_memory()) {
      options.bf16_destination = [this](int64_t begin, int64_t count) { return loaded_bf16(begin, count); };
    }
    const WeightSink sink = [this](int64_t begin, std::span<const float> values) {
      write_loaded(begin, values);
    };
    load_weights(file, model_->config(), model_->layout(), sink, *pool_, options);
  }
  weights_->loaded(loads_whole_node(once));
  weights_changed();
  if (outer_ != nullptr) outer_->loaded(kept());
}

std::vector<ElementRange> ParameterStore::owned() const {
  return outer_ != nullptr ? outer_->owned() : owned_ranges(plan_, comm_->world().rank);
}

// An outer update keeps the feedback of its own sums.
bool ParameterStore::is_feedback(StateKind kind) const {
  return outer_ == nullptr && kind != StateKind::kMaster &&
         tensor_index(kind) == state_->optimizer().state_tensors().size();
}

void ParameterStore::read_node_state(StateKind kind, int64_t begin, std::span<float> values) const {
  pieces_.for_each_part(begin, std::ssize(values), [&](const auto& piece, const Part& part, int64_t first) {
    const auto of_part = values.subspan(static_cast<size_t>(first), static_cast<size_t>(part.size()));
    if (kind != StateKind::kMaster)
      return state_->read(kind, /*begin=*/0, piece.state_of(part.begin), of_part);
    weights_->read(piece.group, part.begin, part.size(),
                   [&](int64_t index, int64_t element, int64_t count, const FileBytes* /*in_file*/) {
                     state_->read(kind, index, piece.state_of(element),
                                  of_part.subspan(static_cast<size_t>(element - part.begin),
                                                  static_cast<size_t>(count)));
                   });
  });
}

void ParameterStore::write_node_state(StateKind kind, int64_t begin, std::span<const float> values) {
  TESSERA_CHECK(!update_->is_pending(), "state of an update under way");
  pieces_.for_each_part(begin, std::ssize(values), [&](const auto& piece, const Part& part, int64_t first) {
    const auto of_part = values.subspan(static_cast<size_t>(first), static_cast<size_t>(part.size()));
    if (kind != StateKind::kMaster)
      return state_->write(kind, /*begin=*/0, piece.state_of(part.begin), of_part);
    weights_->write(piece.group, part.begin, part.size(),
                    [&](int64_t index, int64_t element, int64_t count, const FileBytes* /*in_file*/) {
                      state_->write(kind, index, piece.state_of(element),
                                    of_part.subspan(static_cast<size_t>(element - part.begin),
                                                    static_cast<size_t>(count)));
                    });
  });
}

// In stage 0 a rank keeps the optimizer's state of elements that it does not own, but no errors of theirs.
template <typename Body>
void ParameterStore::for_each_owned(int64_t begin, int64_t count, const Body& body) const {
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    const Part common = intersection(plan_.part(g, comm_->world().rank), {begin, begin + count});
    if (common.size() == 0) continue;
    body(g, common.begin, static_cast<size_t>(common.begin - begin), static_cast<size_t>(common.size()));
  }
}

void ParameterStore::read_state(StateKind kind, int64_t begin, std::span<float> values) const {
  if (outer_ != nullptr && outer_->keeps(kind)) return outer_->read(kind, begin, values);
  if (!is_feedback(kind)) return read_node_state(kind, begin, values);
  for_each_owned(begin, std::ssize(values), [&](int64_t group, int64_t element, size_t first, size_t count) {
    reduced_gradients_->read_feedback(group, element, values.subspan(first, count));
  });
}

void ParameterStore::write_state(StateKind kind, int64_t begin, std::span<const float> values) {
  if (outer_ != nullptr && outer_->keeps(kind)) {
    outer_->write(kind, begin, values);
    if (outer_->is_momentum(kind)) return;
  }
  if (!is_feedback(kind)) return write_node_state(kind, begin, values);
  for_each_owned(begin, std::ssize(values), [&](int64_t group, int64_t element, size_t first, size_t count) {
    reduced_gradients_->write_feedback(group, element, values.subspan(first, count));
  });
}

// Other ranks fetch the values they do not keep, as after an update.
void ParameterStore::state_written() {
  if (reduced_gradients_ != nullptr) reduced_gradients_->feedback_written();
  weights_->loaded(/*whole_node=*/false);
  weights_changed();
}

bool ParameterStore::visit_stored_model(int64_t begin, int64_t count, const StoredBody& body) const {
  pieces_.for_each_part(begin, count, [&](const auto& piece, const Part& part, int64_t) {
    weights_->read(piece.group, part.begin, part.size(),
                   [&](int64_t index, int64_t element, int64_t size, const FileBytes* in_file) {
                     body(element - begin, bytes_of(weights_->memory().rows(index, index + size)), in_file);
                   });
  });
  return true;
}

// If nodes train apart, the saved masters are not the node's own.
StoredSource ParameterStore::stored_source() const {
  return [this](size_t part, DType dtype, int64_t begin, int64_t count, const StoredBody& body) {
    const bool is_model = part == StoredParts::kModel;
    if (outer_ != nullptr &&
        (part < StoredParts::kFirstTensor || outer_->is_momentum(StoredParts::kind(part))))
      return false;
    if (is_model) {
      return dtype == model_->dtype() && weights_->memory().is_on_host() &&
             visit_stored_model(begin, count, body);
    }
    if (is_feedback(StoredParts::kind(part))) return false;
    bool is_at_hand = true;
    pieces_.for_each_part(begin, count, [&](const auto& piece, const Part& of_piece, int64_t first) {
      is_at_hand =
          state_->read_stored(StoredParts::kind(part), dtype, piece.state_of(of_piece.begin), of_piece.size(),
                              [&](int64_t done, std::span<const std::byte> stored, const FileBytes* in_file) {
                                body(first + done, stored, in_file);
                              });
    });
    return is_at_hand;
  };
}

void ParameterStore::read_masters(int64_t begin, std::span<float> values) const {
  if (!weights_->stays_in_memory()) return read_node_state(StateKind::kMaster, begin, values);
  pieces_.for_each_part(begin, std::ssize(values), [&](const auto& piece, const Part& part, int64_t first) {
    state_->read_master(weights_->index(piece.group, part.begin), piece.state_of(part.begin),
                        values.subspan(static_cast<size_t>(first), static_cast<size_t>(part.size())));
  });
}

void ParameterStore::export_masters(const std::function<void(const WeightSource&)>& write) {
  if (outer_ != nullptr && node_rank_ > 0) return;  // all nodes have the same
  update_->finish();
  const WeightSource own = [this](int64_t begin, std::span<float> values) { read_masters(begin, values); };
  if (placement_.is_single) return write(own);
  if (!master_export_) master_export_ = std::make_unique<MasterExport>(plan_, pieces_, *comm_);
  master_export_->run(own, write);
}

}  // namespace tessera
