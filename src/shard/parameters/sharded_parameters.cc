#include "shard/parameters/sharded_parameters.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "checkpoint/checkpoint_files.h"
#include "kernels/adamw/adamw.h"
#include "shard/first_not_finite.h"
#include "shard/model_places.h"
#include "shard/parameters/parameter_ranges.h"

namespace tessera {
namespace {

constexpr int64_t kExchangeElements = kExchangeBytes / static_cast<int64_t>(sizeof(float));

Part intersection(const Part& a, const Part& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

std::vector<ElementRange> owned_of(const ShardPlan& plan, int rank) {
  std::vector<ElementRange> ranges;
  for (int64_t g = 0; g < plan.num_groups(); ++g) {
    const Part own = plan.part(g, rank);
    if (own.size() > 0) ranges.push_back({own.begin, own.end});
  }
  return ranges;
}

}  // namespace

std::vector<ElementRange> owned_elements(const ParameterLayout& layout, int num_nodes, int local_world_size,
                                         int rank) {
  return owned_of(shard_plan(zero_layout(layout, num_nodes, local_world_size), {}), rank);
}

ShardedParameters::ShardedParameters(TrainableModel& model, const ZeroSettings& settings,
                                     std::unique_ptr<const Optimizer> optimizer, bool decay_all,
                                     Communicator& comm, ThreadPool& pool)
    : model_(&model),
      comm_(&comm),
      pool_(&pool),
      settings_(settings),
      layout_(zero_layout(model.layout(), comm.world().num_nodes, comm.world().local_world_size)),
      plan_(shard_plan(layout_, optimizer->state_tensors())),
      weights_(layout_, settings, plan_, comm, pool),
      gradients_(layout_, settings, plan_, comm, pool,
                 settings.optimizer_in_backward
                     ? std::function<void(int64_t)>([this](int64_t group) { group_summed(group); })
                     : nullptr) {
  plan_pieces();
  const int64_t num_state = pieces_.empty() ? 0 : pieces_.back().state_begin + pieces_.back().elements.size();
  state_.emplace(std::move(optimizer), optimizer_ranges(decay_all), weights_.owned(), gradients_.gradients(),
                 pool, num_state, state_file(settings, comm.world().rank));
  const StateTensors of_optimizer = state_->optimizer().state_tensors();
  state_tensors_.assign(of_optimizer.begin(), of_optimizer.end());
  if (has_gradient_feedback(layout_, settings_)) state_tensors_.push_back(kGradientFeedback);
  range_squares_.resize(static_cast<size_t>(state_->num_ranges()));
  ParameterAccess& of_host = *this;
  if (!settings.parameters_on_host) {
    model.bind_parameters(of_host);
    return;
  }
  // Where weights are fetched, the next group is waited for only once this one is computed with.
  const bool opens_ahead = weights_.node_has_all() && comm.world().num_nodes == 1;
  window_.emplace(model.device(), of_host, trained_window(model), opens_ahead);
  for (const std::span<std::byte> memory : weights_.memory()) window_->pin(memory);
  window_->pin(gradients_.memory());
  model.bind_parameters(*window_);
}

// This rank's part of every group; in stage 0 the parts of its whole rail.
void ShardedParameters::plan_pieces() {
  const World& world = comm_->world();
  int64_t state = 0;
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    for (int node = 0; node < world.num_nodes; ++node) {
      if (settings_.stage > 0 && node != world.node_rank) continue;
      const Part part = plan_.rail_part(g, node, world.local_rank);
      if (part.size() == 0) continue;
      pieces_.push_back({g, part, state});
      state += part.size();
    }
  }
}

// The intersections of parameters and pieces: alignment gaps belong to no parameter.
std::vector<ParameterRange> ShardedParameters::optimizer_ranges(bool decay_all) {
  std::vector<ParameterRange> ranges;
  const std::vector<Parameter>& parameters = model_->layout().parameters();
  size_t piece_index = 0;
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    first_range_.push_back(std::ssize(ranges));
    for (; piece_index < pieces_.size() && pieces_[piece_index].group == g; ++piece_index) {
      const Piece& piece = pieces_[piece_index];
      for (const Parameter& parameter : parameters) {
        const Part common =
            intersection(piece.elements, {parameter.offset, parameter.offset + parameter.num_elements});
        if (common.size() == 0) continue;
        ranges.push_back({weights_.owned_index(g, common.begin), common.size(),
                          decay_all || parameter.weight_decay, gradients_.index(g, common.begin),
                          piece.state_begin + common.begin - piece.elements.begin, common.begin,
                          shape_of(parameter)});
      }
    }
  }
  first_range_.push_back(std::ssize(ranges));
  return ranges;
}

std::byte* ShardedParameters::open_weights(int64_t group, WeightUse use) {
  std::byte* weights = weights_.open(group, use == WeightUse::kForward);
  if (packed_) packed_->complete(group);
  return weights;
}
void ShardedParameters::close_weights(int64_t group) { weights_.close(group); }
void ShardedParameters::reserve_packed_forms(std::span<const int64_t> bytes_by_group) {
  const World& world = comm_->world();
  const PackShare share = {world.local_rank, world.local_world_size};
  packed_.emplace(
      bytes_by_group, weights_, comm_->node(), *pool_,
      [this, share](int64_t group, std::byte* weights) { model_->pack_group(group, weights, share); });
}
std::byte* ShardedParameters::packed_forms(int64_t group) {
  return packed_ ? packed_->forms(group) : nullptr;
}
std::byte* ShardedParameters::open_gradients(int64_t group) { return gradients_.open(group); }
void ShardedParameters::close_gradients(int64_t group) { gradients_.close(group); }

const ShardedParameters::Piece* ShardedParameters::piece_of(int64_t group, int64_t element) const {
  for (const Piece& piece : pieces_) {
    if (piece.group == group && piece.elements.begin <= element && element < piece.elements.end)
      return &piece;
  }
  return nullptr;
}

bool ShardedParameters::loads_whole_node(LoadOnce once) const {
  return weights_.node_has_all() && !weights_.fetches_rounded() && once == LoadOnce::kPerNode;
}

// If the node keeps all weights, its ranks read them together: each reads the parts of its rail, which on
// this node it owns. Otherwise only the owners read.
std::vector<ElementRange> ShardedParameters::ranges_to_load(LoadOnce once) const {
  const World& world = comm_->world();
  const bool for_node = loads_whole_node(once);
  std::vector<ElementRange> ranges;
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    for (int node = 0; node < world.num_nodes; ++node) {
      if (node != world.node_rank && !for_node) continue;
      const Part part = plan_.rail_part(g, node, world.local_rank);
      if (part.size() > 0) ranges.push_back({part.begin, part.end});
    }
  }
  return ranges;
}

// Takes values of ranges_to_load(): they become masters where this rank keeps the optimizer state, otherwise
// weights, rounded like masters.
void ShardedParameters::write_loaded(int64_t begin, std::span<const float> values) {
  const Part given = {begin, begin + std::ssize(values)};
  const TensorView owned = weights_.owned();
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    const Part of_group = intersection(given, plan_.group(g));
    if (of_group.size() == 0) continue;
    for (int rank = 0; rank < plan_.world_size(); ++rank) {
      const Part common = intersection(of_group, plan_.part(g, rank));
      if (common.size() == 0) continue;
      const std::span<const float> part =
          values.subspan(static_cast<size_t>(common.begin - begin), static_cast<size_t>(common.size()));
      const int64_t at = weights_.owned_index(g, common.begin);
      if (const Piece* piece = piece_of(g, common.begin)) {
        state_->write_master(at, piece->state_begin + common.begin - piece->elements.begin, part);
      } else if (owned.dtype() == DType::kF32) {
        std::copy(part.begin(), part.end(), owned.as<float>() + at);
      } else {
        std::transform(part.begin(), part.end(), owned.as<bf16>() + at, master_weight);
      }
    }
  }
}

// A bfloat16 value in the files is an exact master: its remainder is 0, the initial value. Within a group the
// parts of a node are adjacent in memory.
std::span<bf16> ShardedParameters::loaded_bf16(int64_t begin, int64_t count) {
  int64_t group = 0;
  while (plan_.group(group).end <= begin) ++group;
  const int64_t end = std::min(begin + count, plan_.group(group).end);
  return {weights_.owned().as<bf16>() + weights_.owned_index(group, begin), static_cast<size_t>(end - begin)};
}

ShardedParameters::~ShardedParameters() { comm_->rail().release_buffers(); }

void ShardedParameters::load(const SafetensorsModel& file, LoadOnce once,
                             const std::function<void(const LoadProgress&)>& progress) {
  TESSERA_CHECK(once == LoadOnce::kPerNode || settings_.stage > 0, "stage {} fetches no weights",
                settings_.stage);
  const std::vector<ElementRange> ranges = ranges_to_load(once);
  LoadOptions options;
  options.ranges = ranges;
  options.progress = progress;
  if (settings_.weight_dtype == DType::kBF16) {
    options.bf16_destination = [this](int64_t begin, int64_t count) { return loaded_bf16(begin, count); };
  }
  const WeightSink sink = [this](int64_t begin, std::span<const float> values) {
    write_loaded(begin, values);
  };
  load_weights(file, model_->config(), model_->layout(), sink, *pool_, options);
  if (loads_whole_node(once)) {
    weights_.loaded();
  } else {
    for (int64_t g = 0; g < plan_.num_groups(); ++g) weights_.updated(g);
  }
  weights_changed();
}

void ShardedParameters::weights_changed() {
  if (packed_) packed_->weights_changed();
  if (window_) window_->weights_changed();
  model_->weights_changed();
}

WeightUpdate ShardedParameters::begin_pass(bool is_first, bool is_last) {
  TESSERA_CHECK(is_first || !settings_.optimizer_in_backward, "a step has several passes");
  updates_ = is_last && step_.has_value();
  has_begun_ = false;
  std::ranges::fill(range_squares_, 0.0);
  not_finite_.clear();
  const bool is_ignored = std::exchange(rehearses_, false) || (settings_.optimizer_in_backward && !updates_);
  gradients_.begin_pass(is_first, is_last, /*keeps_feedback=*/is_ignored);
  return gradients_.model_accumulates() && !is_first ? Update::kAdd : Update::kOverwrite;
}

void ShardedParameters::end_pass() {
  if (window_) window_->finish_gradients();
  gradients_.finish_pass();
  if (!updates_) return;
  for (int64_t g = 0; g < plan_.num_groups(); ++g) weights_.updated(g);
  weights_changed();
  step_.reset();
  updates_ = false;
}

// In stage 0 every node has the same sums: only the first node's count.
double ShardedParameters::gradient_squares() const {
  if (settings_.stage == 0 && comm_->world().node_rank > 0) return 0;
  const double norm = settings_.optimizer_in_backward
                          ? std::sqrt(std::accumulate(range_squares_.begin(), range_squares_.end(), 0.0))
                          : state_->gradient_norm();
  return norm * norm;
}

std::string ShardedParameters::not_finite_gradient() const {
  if (settings_.optimizer_in_backward) return not_finite_;
  for (const Piece& piece : pieces_) {
    if (const std::string name = not_finite_in(piece); !name.empty()) return name;
  }
  return "";
}

std::string ShardedParameters::not_finite_in(const Piece& piece) const {
  for (const Parameter& parameter : model_->layout().parameters()) {
    const Part common =
        intersection(piece.elements, {parameter.offset, parameter.offset + parameter.num_elements});
    if (common.size() == 0) continue;
    const int64_t begin = gradients_.index(piece.group, common.begin);
    if (first_not_finite(gradients_.gradients().rows(begin, begin + common.size()))) return parameter.name;
  }
  return "";
}

void ShardedParameters::update(const OptimizerStep& step, const ChangeHook& before_change) {
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    update_group(g, (g + 1) % plan_.num_groups(), step, before_change);
    weights_.updated(g);
  }
  weights_changed();
}

void ShardedParameters::update_group(int64_t group, int64_t next, const OptimizerStep& step,
                                     const ChangeHook& before_change) {
  const Part own = plan_.part(group, comm_->world().rank);
  if (before_change && own.size() > 0) before_change({own.begin, own.end});
  const auto first = [&](int64_t of) { return first_range_[static_cast<size_t>(of)]; };
  state_->announce(first(next), first(next + 1));
  state_->update(first(group), first(group + 1), step);
}

void ShardedParameters::begin(const OptimizerStep& step, double max_group_norm, ChangeHook before_change) {
  TESSERA_CHECK(max_group_norm == 0, "clipping of groups needs one rank");
  step_ = step;
  before_change_ = std::move(before_change);
  seconds_ = 0;
}

void ShardedParameters::group_summed(int64_t group) {
  for (int64_t range = first_range_[static_cast<size_t>(group)];
       range < first_range_[static_cast<size_t>(group + 1)]; ++range) {
    double& squares = range_squares_[static_cast<size_t>(range)] = state_->gradient_squares(range);
    if (std::isfinite(squares) || !not_finite_.empty()) continue;
    not_finite_ = not_finite_in(*piece_of(group, plan_.part(group, comm_->world().rank).begin));
  }
  // What follows a gradient that is not finite is left alone.
  if (!updates_ || !not_finite_.empty()) return;
  const Stopwatch time;
  has_begun_ = true;
  update_group(group, (group + plan_.num_groups() - 1) % plan_.num_groups(), *step_, before_change_);
  seconds_ += time.seconds();
}

std::vector<ElementRange> ShardedParameters::owned() const { return owned_of(plan_, comm_->world().rank); }

std::vector<ElementRange> ShardedParameters::kept() const {
  std::vector<ElementRange> ranges;
  for (const Piece& piece : pieces_) ranges.push_back({piece.elements.begin, piece.elements.end});
  return ranges;
}

template <typename Body>
void ShardedParameters::for_each_part(int64_t begin, int64_t count, const Body& body) const {
  int64_t num_found = 0;
  for (const Piece& piece : pieces_) {
    const Part common = intersection(piece.elements, {begin, begin + count});
    if (common.size() == 0) continue;
    body(weights_.owned_index(piece.group, common.begin),
         piece.state_begin + common.begin - piece.elements.begin, static_cast<size_t>(common.begin - begin),
         static_cast<size_t>(common.size()));
    num_found += common.size();
  }
  TESSERA_CHECK(num_found == count, "rank {} keeps {} of the elements [{}, {})", comm_->world().rank,
                num_found, begin, begin + count);
}

template <typename Body>
void ShardedParameters::for_each_owned(int64_t begin, int64_t count, const Body& body) const {
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    const Part common = intersection(plan_.part(g, comm_->world().rank), {begin, begin + count});
    if (common.size() == 0) continue;
    body(g, common.begin, static_cast<size_t>(common.begin - begin), static_cast<size_t>(common.size()));
  }
}

bool ShardedParameters::is_feedback(StateKind kind) const {
  return kind != StateKind::kMaster && tensor_index(kind) == state_->optimizer().state_tensors().size();
}

void ShardedParameters::settle_state(const ChangeHook& before_change) {
  gradients_.settle_feedback([&] {
    if (!before_change) return;
    for (const ElementRange& range : owned()) before_change(range);
  });
}

void ShardedParameters::read_state(StateKind kind, int64_t begin, std::span<float> values) const {
  if (is_feedback(kind)) {
    return for_each_owned(begin, std::ssize(values),
                          [&](int64_t group, int64_t element, size_t first, size_t count) {
                            gradients_.read_feedback(group, element, values.subspan(first, count));
                          });
  }
  for_each_part(begin, std::ssize(values), [&](int64_t weight, int64_t state, size_t first, size_t count) {
    state_->read(kind, weight, state, values.subspan(first, count));
  });
}

StoredSource ShardedParameters::stored_source() const {
  return [this](size_t part, DType dtype, int64_t begin, int64_t count, const StoredBody& body) {
    const bool is_model = part == StoredParts::kModel;
    if (is_model ? dtype != settings_.weight_dtype : is_feedback(StoredParts::kind(part))) return false;
    bool is_at_hand = true;
    for_each_part(begin, count, [&](int64_t weight, int64_t state, size_t first, size_t size) {
      const auto before = static_cast<int64_t>(first), part_count = static_cast<int64_t>(size);
      if (is_model) {
        body(before, bytes_of(weights_.owned().rows(weight, weight + part_count)), nullptr);
        return;
      }
      is_at_hand =
          state_->read_stored(StoredParts::kind(part), dtype, state, part_count,
                              [&](int64_t done, std::span<const std::byte> stored, const FileBytes* in_file) {
                                body(before + done, stored, in_file);
                              });
    });
    return is_at_hand;
  };
}

// In stage 0 a rank keeps the optimizer's state of elements that it does not own, but no errors of theirs.
void ShardedParameters::write_state(StateKind kind, int64_t begin, std::span<const float> values) {
  if (is_feedback(kind)) {
    return for_each_owned(begin, std::ssize(values),
                          [&](int64_t group, int64_t element, size_t first, size_t count) {
                            gradients_.write_feedback(group, element, values.subspan(first, count));
                          });
  }
  for_each_part(begin, std::ssize(values), [&](int64_t weight, int64_t state, size_t first, size_t count) {
    state_->write(kind, weight, state, values.subspan(first, count));
  });
}

// As after an update: other ranks fetch what they do not keep.
void ShardedParameters::state_written() {
  gradients_.feedback_written();
  for (int64_t g = 0; g < plan_.num_groups(); ++g) weights_.updated(g);
  weights_changed();
}

std::vector<ShardedParameters::Chunk> ShardedParameters::chunks() const {
  std::vector<Chunk> result;
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    const Part group = plan_.group(g);
    for (int64_t begin = group.begin; begin < group.end; begin += kExchangeElements) {
      result.push_back({g, {begin, std::min(begin + kExchangeElements, group.end)}});
    }
  }
  return result;
}

void ShardedParameters::exchange(const Chunk& chunk) {
  const World& world = comm_->world();
  const OpLabel label = {"master weights", chunk.group};
  comm_->node().barrier(label);  // rank 0 has read the previous content
  float* data = exchange_.as<float>().data();
  std::vector<Part> byte_parts;
  for (int node = 0; node < world.num_nodes; ++node) {
    const Part common = intersection(chunk.elements, plan_.rail_part(chunk.group, node, world.local_rank));
    const int64_t begin = common.size() == 0 ? 0 : common.begin - chunk.elements.begin;
    const int64_t element_bytes = dtype_bytes(DType::kF32);
    byte_parts.push_back({begin * element_bytes, (begin + common.size()) * element_bytes});
    const Piece* piece = common.size() == 0 ? nullptr : piece_of(chunk.group, common.begin);
    if (piece == nullptr) continue;
    state_->read_master(weights_.owned_index(chunk.group, common.begin),
                        piece->state_begin + common.begin - piece->elements.begin,
                        {data + begin, static_cast<size_t>(common.size())});
  }
  if (world.num_nodes > 1) {
    const auto bytes = static_cast<size_t>(chunk.elements.size() * dtype_bytes(DType::kF32));
    comm_->rail().wait(comm_->rail().all_gather({exchange_.data(), bytes}, byte_parts, label));
  }
  comm_->node().barrier(label);
}

// Rank 0's view: steps through the chunks as elements are requested.
class ShardedParameters::MasterReader {
 public:
  explicit MasterReader(ShardedParameters& parameters)
      : parameters_(parameters), chunks_(parameters.chunks()) {}

  void read(int64_t begin, std::span<float> values) {
    while (!values.empty()) {
      while (next_ == 0 || begin >= current().elements.end) advance();
      const Part& held = current().elements;
      TESSERA_CHECK(begin >= held.begin, "element {} asked for after {}", begin, held.begin);
      const int64_t count = std::min(std::ssize(values), held.end - begin);
      std::copy_n(parameters_.exchange_.as<float>().begin() + (begin - held.begin), count, values.begin());
      values = values.subspan(static_cast<size_t>(count));
      begin += count;
    }
  }
  // The other ranks expect every chunk to be exchanged.
  void finish() {
    while (next_ < chunks_.size()) advance();
  }

 private:
  const Chunk& current() const { return chunks_[next_ - 1]; }
  void advance() { parameters_.exchange(chunks_[next_++]); }

  ShardedParameters& parameters_;
  std::vector<Chunk> chunks_;
  size_t next_ = 0;
};

void ShardedParameters::export_masters(const std::function<void(const WeightSource&)>& write) {
  if (exchange_.data() == nullptr) {
    exchange_ = comm_->node().allocate("exchange of masters", kExchangeBytes);
  }
  MasterReader reader(*this);
  std::exception_ptr failure;
  if (comm_->world().rank == 0) {
    try {
      write([&reader](int64_t begin, std::span<float> values) { reader.read(begin, values); });
    } catch (...) {
      failure = std::current_exception();
    }
  }
  reader.finish();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera
