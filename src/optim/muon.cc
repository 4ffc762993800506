#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "optim/masters.h"
#include "optim/newton_schulz.h"
#include "tensor/arena.h"

namespace tessera {
namespace {

// Elements a thread takes at a time: 256 KiB of float32.
constexpr int64_t kMuonBlock = 64 * 1024;

double rate_factor(MuonRate rate, const ParameterShape& shape) {
  const auto rows = static_cast<double>(shape.rows), columns = static_cast<double>(shape.columns);
  return rate == MuonRate::kOriginal ? std::sqrt(std::max(1.0, rows / columns))
                                     : 0.2 * std::sqrt(std::max(rows, columns));
}

}  // namespace

int64_t Muon::workspace_bytes(const ParameterShape& shape, DType weight_dtype, int64_t num_threads) const {
  if (!shape.is_hidden) return 0;
  Arena arena = Arena::measuring();
  arena.allocate_bytes(shape.rows * shape.columns * dtype_bytes(DType::kF32));
  arena.allocate_bytes(newton_schulz_workspace_bytes(shape.rows, shape.columns, weight_dtype, num_threads));
  return arena.high_water_bytes();
}

void Muon::update_whole(const WholeParameter& parameter, const OptimizerStep& step,
                        std::span<std::byte> workspace, ThreadPool& pool) const {
  const ParameterShape& shape = parameter.shape;
  const DType dtype = parameter.weights.dtype();
  const int64_t count = shape.rows * shape.columns;
  Arena arena(workspace);
  auto* const update = reinterpret_cast<float*>(arena.allocate_bytes(count * dtype_bytes(DType::kF32)));
  const int64_t inner_bytes =
      newton_schulz_workspace_bytes(shape.rows, shape.columns, dtype, pool.num_threads());
  const std::span inner(arena.allocate_bytes(inner_bytes), static_cast<size_t>(inner_bytes));

  auto* const momentum = reinterpret_cast<float*>(parameter.state[2]);
  const auto scale = static_cast<float>(step.gradient_scale);
  const auto follow = static_cast<float>(1 - settings_.muon_momentum);
  const double decay = parameter.weight_decay ? settings_.weight_decay : 0;
  const auto kept = static_cast<float>(1 - step.learning_rate * decay);
  const auto rate = static_cast<float>(step.learning_rate * rate_factor(settings_.muon_rate, shape));
  with_types(parameter, [&](auto masters, auto gradient) {
    pool.parallel_blocks(count, kMuonBlock, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float g = to_float(gradient[i]) * scale;
        const float m = momentum[i] + follow * (g - momentum[i]);
        momentum[i] = m;
        update[i] = m - follow * (m - g);
      }
    });
    newton_schulz(TensorView(update, DType::kF32, {shape.rows, shape.columns}), dtype, inner, pool);
    pool.parallel_blocks(count, kMuonBlock, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) masters.store(i, masters.load(i) * kept - rate * update[i]);
    });
  });
}

}  // namespace tessera
