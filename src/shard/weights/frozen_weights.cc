#include "shard/weights/frozen_weights.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "kernels/quantized_weight/quantized_weight.h"
#include "shard/layout/model_places.h"
#include "weights/weight_reader.h"

namespace tessera {

FrozenWeights::FrozenWeights(TrainableModel& model, Communicator& comm, ThreadPool& pool,
                             const ZeroSettings& settings)
    : model_(&model), comm_(&comm), pool_(&pool) {
  if (model.device().own_memory() && !settings.parameters_on_host) {
    on_device_ = model.device().allocate(model.frozen_bytes());
    model.bind_frozen(on_device_.view(DType::kU8, {model.frozen_bytes()}));
    return;
  }
  LayerPlaces places = frozen_places(model, settings);
  weights_ = comm.node().allocate("frozen weights", places.memory_bytes);
  comm.node().prefault(weights_, pool);
  if (places.file_bytes > 0) {
    TESSERA_CHECK(comm.world().world_size == 1, "{} ranks", comm.world().world_size);
    file_.emplace(settings.frozen_folder->path / "rank-0.frozen", settings.frozen_folder->transfers,
                  weights_.data(), std::move(places));
  }
  ParameterAccess& of_host = *this;
  if (!settings.parameters_on_host) {
    model.bind_frozen(of_host);
    return;
  }
  window_.emplace(model.device(), of_host, frozen_window(model), /*opens_ahead=*/!file_);
  window_->pin(weights_.as<std::byte>());
  model.bind_frozen(*window_);
}

std::byte* FrozenWeights::open_weights(int64_t group, WeightUse use) {
  if (file_) return file_->open(group, use == WeightUse::kForward);
  return weights_.data() + model_->frozen_begin(group);
}

std::byte* FrozenWeights::open_gradients(int64_t group) {
  TESSERA_CHECK(false, "gradients of frozen weights, group {}", group);
  return nullptr;
}

void FrozenWeights::close_gradients(int64_t group) { open_gradients(group); }

void FrozenWeights::reserve_packed_forms(std::span<const int64_t> bytes_by_group) {
  packed_ = comm_->node().allocate("packed frozen weights",
                                   std::reduce(bytes_by_group.begin(), bytes_by_group.end()));
  comm_->node().prefault(packed_, *pool_);
  std::byte* next = packed_.data();
  for (const int64_t size_bytes : bytes_by_group) {
    forms_.push_back(size_bytes == 0 ? nullptr : next);
    next += size_bytes;
  }
}

namespace {

// Elements of a quantized parameter that are read at a time, in float32: 4 MiB.
constexpr int64_t kPieceElements = 1 << 20;

}  // namespace

struct FrozenWeights::Reader {
  const TrainableModel& model;
  WeightReader weights;
  ValueSums sums = {};

  Reader(const SafetensorsModel& file, const TrainableModel& of_model, ThreadPool& pool,
         const std::function<void(const LoadProgress&)>& progress)
      : model(of_model), weights(file, of_model.config(), of_model.weight_layout(), pool, progress) {
    weights.add_to(&sums);
  }

  // In pieces of whole rows, so that no parameter is ever complete in more than its quantized form.
  void read_quantized(const Parameter& parameter, const BoundParameters::Place& place) {
    const int64_t rows = parameter.shape[0], K = parameter.shape[1];
    const int64_t rows_at_once = std::clamp<int64_t>(kPieceElements / K, 1, rows);
    std::vector<float> piece(static_cast<size_t>(rows_at_once * K));
    MatrixQuantizer quantizer(place.matrix, place.first_row);
    if (place.matrix.is_4_bit() && K % 16 == 0 && K % kNf4Block != 0) {
      log_warning_once(fmt::format(
          "nf4: the rows of {} have {} elements, no multiple of {}: bitsandbytes on processors with "
          "AVX-512 multiplies them by scales of other blocks; here each has that of its own",
          parameter.name, K, kNf4Block));
    }
    for (int64_t row = 0; row < rows; row += rows_at_once) {
      const int64_t count = std::min(rows_at_once, rows - row);
      const int64_t first = parameter.offset + row * K;
      weights.read({first, first + count * K}, [&](int64_t begin, std::span<const float> values) {
        std::ranges::copy(values, piece.begin() + (begin - first));
      });
      quantizer.add(ConstTensorView(piece.data(), DType::kF32, {count, K}), weights.pool());
    }
  }

  // A parameter whose group begins at `of_group`.
  void read_parameter(const Parameter& parameter, std::byte* of_group) {
    const BoundParameters::Place place = model.frozen_place(parameter, of_group);
    if (place.elements == nullptr) return read_quantized(parameter, place);
    weights.read({parameter.offset, parameter.offset + parameter.num_elements},
                 {place.elements, model.dtype(), {parameter.num_elements}});
  }
};

// One layer after another, each of them complete in memory while the one before is written.
void FrozenWeights::load_into_file(Reader& reader) {
  const ParameterLayout& layout = model_->weight_layout();
  reader.weights.expect_all();
  auto next = layout.parameters().begin();
  for (int64_t group = 0; group < std::ssize(layout.groups()); ++group) {
    std::byte* const to = file_->overwrite(group);
    // Nothing of the layer that was here before stays in a gap.
    std::fill_n(to, group_bytes(group), std::byte{0});
    for (; next != layout.parameters().end() && next->group == group; ++next)
      reader.read_parameter(*next, to);
    file_->updated(group);
  }
  file_->finish_updates();
}

void FrozenWeights::load_to_device(Reader& reader) {
  const ParameterLayout& layout = model_->weight_layout();
  reader.weights.expect_all();
  std::vector<int64_t> begins;
  for (int64_t group = 0; group <= std::ssize(layout.groups()); ++group) {
    begins.push_back(model_->frozen_begin(group));
  }
  auto next = layout.parameters().begin();
  fill_by_parts(begins, on_device_.view(DType::kU8, {model_->frozen_bytes()}),
                [&](int64_t group, std::byte* buffer) {
                  for (; next != layout.parameters().end() && next->group == group; ++next) {
                    reader.read_parameter(*next, buffer);
                  }
                });
}

ValueSums FrozenWeights::load(const SafetensorsModel& file,
                              const std::function<void(const LoadProgress&)>& progress) {
  Reader reader(file, *model_, *pool_, progress);
  load_from(reader);
  return sums_of_nodes(reader.sums);
}

// The ranks of a node read a share of the model each, or with memory of their own all of it.
ValueSums FrozenWeights::sums_of_nodes(const ValueSums& own) const {
  const bool reads_all = file_ || on_device_.size_bytes() > 0;
  const World& world = comm_->world();
  std::vector<ValueSums> by_node(static_cast<size_t>(world.num_nodes));
  struct OfRank {
    int node;
    ValueSums sums;
  };
  for (const auto& [node, sums] : comm_->all_gather(OfRank{world.node_rank, own}, {"base model"})) {
    ValueSums& of_node = by_node[static_cast<size_t>(node)];
    if (reads_all) of_node = {};
    of_node += sums;
  }
  for (size_t node = 1; node < by_node.size(); ++node) {
    if (by_node[node] == by_node[0]) continue;
    fail(ExitCode::kBadConfig, "node {} has another model than node 0: the values of its weights differ",
         node);
  }
  return by_node[0];
}

void FrozenWeights::load_from(Reader& reader) {
  NodeGroup& node = comm_->node();
  const ParameterLayout& layout = model_->weight_layout();
  const auto share_begin = [&](int64_t index) { return layout.num_elements() * index / node.size(); };
  const ElementRange share = {share_begin(node.index()), share_begin(node.index() + 1)};
  if (file_) return load_into_file(reader);
  if (on_device_.size_bytes() > 0) return load_to_device(reader);
  if (model_->config().base_quantization == Quantization::kNone) {
    reader.weights.read(share, {weights_.data() + share.begin * dtype_bytes(model_->dtype()),
                                model_->dtype(),
                                {share.end - share.begin}});
  } else {
    // Whole parameters: those that begin in this rank's share.
    std::vector<const Parameter*> own;
    for (const Parameter& parameter : layout.parameters()) {
      if (parameter.offset < share.begin || share.end <= parameter.offset) continue;
      own.push_back(&parameter);
      reader.weights.expect(parameter);
    }
    for (const Parameter* parameter : own) {
      reader.read_parameter(*parameter, weights_.data() + model_->frozen_begin(parameter->group));
    }
  }
  node.barrier({"frozen weights read"});
  if (forms_.empty()) return;
  for (int64_t group = 0; group < std::ssize(layout.groups()); ++group) {
    model_->pack_frozen_group(group, open_weights(group, WeightUse::kForward), {node.index(), node.size()});
  }
  node.barrier({"frozen weights packed"});
}

}  // namespace tessera
