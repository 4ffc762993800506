#include "train/parameters/frozen_weights.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace tessera {

FrozenWeights::FrozenWeights(TrainableModel& model, Communicator& comm, ThreadPool& pool)
    : model_(&model), comm_(&comm), pool_(&pool) {
  weights_ = comm.node().allocate("frozen weights",
                                  model.weight_layout().num_elements() * dtype_bytes(model.dtype()));
  comm.node().prefault(weights_, pool);
  model.bind_frozen(static_cast<ParameterAccess&>(*this));
}

std::byte* FrozenWeights::open_weights(int64_t group, WeightUse /*use*/) {
  const int64_t begin = model_->weight_layout().groups()[static_cast<size_t>(group)].begin;
  return weights_.data() + begin * dtype_bytes(model_->dtype());
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

void FrozenWeights::load(const SafetensorsModel& file,
                         const std::function<void(const LoadProgress&)>& progress) {
  NodeGroup& node = comm_->node();
  const ParameterLayout& layout = model_->weight_layout();
  const TensorView weights(weights_.data(), model_->dtype(), {layout.num_elements()});
  const auto share_begin = [&](int64_t index) { return layout.num_elements() * index / node.size(); };
  const ElementRange share = {share_begin(node.index()), share_begin(node.index() + 1)};
  LoadOptions options;
  options.ranges = std::span(&share, 1);
  options.progress = progress;
  if (model_->dtype() == DType::kBF16) {
    options.bf16_destination = [&](int64_t begin, int64_t count) {
      return std::span(weights.as<bf16>() + begin, static_cast<size_t>(count));
    };
  }
  const WeightSink sink = [&](int64_t begin, std::span<const float> values) {
    if (weights.dtype() == DType::kF32) {
      std::copy(values.begin(), values.end(), weights.as<float>() + begin);
    } else {
      std::transform(values.begin(), values.end(), weights.as<bf16>() + begin, to_bf16);
    }
  };
  load_weights(file, model_->config(), layout, sink, *pool_, options);
  node.barrier({"frozen weights read"});
  if (forms_.empty()) return;
  for (int64_t group = 0; group < std::ssize(layout.groups()); ++group) {
    model_->pack_frozen_group(group, open_weights(group, WeightUse::kForward), {node.index(), node.size()});
  }
  node.barrier({"frozen weights packed"});
}

}  // namespace tessera
