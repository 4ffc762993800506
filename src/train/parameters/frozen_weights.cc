#include "train/parameters/frozen_weights.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "kernels/quantized_weight/quantized_weight.h"
#include "plan/memory_plan.h"

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

// Elements of a quantised parameter that are read at a time, in float32: 4 MiB.
constexpr int64_t kPieceElements = 1 << 20;

// Bytes of a parameter in the files.
int64_t file_bytes(const SafetensorsModel& file, const Parameter& parameter) {
  const auto at = file.tensors().find(parameter.name);
  return at == file.tensors().end() ? 0 : parameter.num_elements * dtype_bytes(at->second.entry->dtype);
}

}  // namespace

// Reads one part of the model after another and reports them as one.
struct FrozenWeights::Reader {
  const SafetensorsModel& file;
  const TrainableModel& model;
  ThreadPool& pool;
  const std::function<void(const LoadProgress&)>& progress;
  LoadProgress done = {};

  // The files' values of these elements.
  void read(ElementRange range, const WeightSink& sink, const Bf16Destination& bf16_destination = {}) {
    LoadProgress last;
    LoadOptions options;
    options.ranges = std::span(&range, 1);
    options.bf16_destination = bf16_destination;
    options.progress = [&](const LoadProgress& of_part) {
      last = of_part;
      if (!progress) return;
      progress({done.bytes_done + of_part.bytes_done, std::max(done.bytes_total, of_part.bytes_total),
                done.seconds + of_part.seconds});
    };
    load_weights(file, model.config(), model.weight_layout(), sink, pool, options);
    done.bytes_done += last.bytes_done;
    done.seconds += last.seconds;
  }

  // A parameter that is kept as it is, or a range of several.
  void read_elements(ElementRange range, std::byte* to) {
    const TensorView elements(to, model.dtype(), {range.end - range.begin});
    const auto part = [&](int64_t begin, int64_t count) {
      return elements.rows(begin - range.begin, begin - range.begin + count);
    };
    const WeightSink sink = [&](int64_t begin, std::span<const float> values) {
      const TensorView place = part(begin, std::ssize(values));
      if (place.dtype() == DType::kF32) {
        std::copy(values.begin(), values.end(), place.as<float>());
      } else {
        std::transform(values.begin(), values.end(), place.as<bf16>(), to_bf16);
      }
    };
    if (model.dtype() == DType::kF32) return read(range, sink);
    read(range, sink, [&](int64_t begin, int64_t count) {
      return std::span(part(begin, count).as<bf16>(), static_cast<size_t>(count));
    });
  }

  // In pieces of whole rows, so that no parameter is ever complete in more than its quantised form.
  void read_quantized(const Parameter& parameter, const BoundParameters::Place& place) {
    const int64_t rows = parameter.shape[0], K = parameter.shape[1];
    const int64_t rows_at_once = std::clamp<int64_t>(kPieceElements / K, 1, rows);
    std::vector<float> piece(static_cast<size_t>(rows_at_once * K));
    for (int64_t row = 0; row < rows; row += rows_at_once) {
      const int64_t count = std::min(rows_at_once, rows - row);
      const int64_t first = parameter.offset + row * K;
      read({first, first + count * K}, [&](int64_t begin, std::span<const float> values) {
        std::ranges::copy(values, piece.begin() + (begin - first));
      });
      quantize_rows(ConstTensorView(piece.data(), DType::kF32, {count, K}), place.first_row + row,
                    place.matrix, pool);
    }
  }

  // A parameter whose group begins at `of_group`.
  void read_parameter(const Parameter& parameter, std::byte* of_group) {
    const BoundParameters::Place place = model.frozen_place(parameter, of_group);
    if (place.elements == nullptr) return read_quantized(parameter, place);
    read_elements({parameter.offset, parameter.offset + parameter.num_elements}, place.elements);
  }
};

// One layer after another, each of them complete in memory while the one before is written.
void FrozenWeights::load_into_file(Reader reader) {
  const ParameterLayout& layout = model_->weight_layout();
  for (const Parameter& parameter : layout.parameters()) {
    reader.done.bytes_total += file_bytes(reader.file, parameter);
  }
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

// Group by group through the host's memory.
void FrozenWeights::load_to_device(Reader reader) {
  const ParameterLayout& layout = model_->weight_layout();
  int64_t largest = 0;
  for (int64_t group = 0; group < std::ssize(layout.groups()); ++group) {
    largest = std::max(largest, group_bytes(group));
  }
  for (const Parameter& parameter : layout.parameters()) {
    reader.done.bytes_total += file_bytes(reader.file, parameter);
  }
  PageBuffer memory(largest);
  auto next = layout.parameters().begin();
  for (int64_t group = 0; group < std::ssize(layout.groups()); ++group) {
    std::fill_n(memory.data(), group_bytes(group), std::byte{0});
    for (; next != layout.parameters().end() && next->group == group; ++next) {
      reader.read_parameter(*next, memory.data());
    }
    const int64_t begin = model_->frozen_begin(group), end = model_->frozen_begin(group + 1);
    copy(ConstTensorView(memory.data(), DType::kU8, {end - begin}),
         on_device_.view(DType::kU8, {model_->frozen_bytes()}).rows(begin, end));
  }
}

void FrozenWeights::load(const SafetensorsModel& file,
                         const std::function<void(const LoadProgress&)>& progress) {
  NodeGroup& node = comm_->node();
  const ParameterLayout& layout = model_->weight_layout();
  const auto share_begin = [&](int64_t index) { return layout.num_elements() * index / node.size(); };
  const ElementRange share = {share_begin(node.index()), share_begin(node.index() + 1)};
  Reader reader = {file, *model_, *pool_, progress};
  if (file_) return load_into_file(reader);
  if (on_device_.size_bytes() > 0) return load_to_device(reader);
  if (model_->config().base_quantization == Quantization::kNone) {
    reader.read_elements(share, weights_.data() + share.begin * dtype_bytes(model_->dtype()));
  } else {
    // Whole parameters: those that begin in this rank's share.
    std::vector<const Parameter*> own;
    for (const Parameter& parameter : layout.parameters()) {
      if (parameter.offset < share.begin || share.end <= parameter.offset) continue;
      own.push_back(&parameter);
      reader.done.bytes_total += file_bytes(file, parameter);
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
