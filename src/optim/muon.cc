#include "optim/muon.h"

#include <algorithm>
#include <cmath>

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

struct MuonWorkspace {
  float* update;               // [rows, columns]
  std::span<std::byte> inner;  // of newton_schulz()
};

MuonWorkspace lay_out_muon(Arena& arena, const ParameterShape& shape, DType weight_dtype,
                           int64_t num_threads) {
  MuonWorkspace out;
  out.update =
      reinterpret_cast<float*>(arena.allocate_bytes(shape.rows * shape.columns * dtype_bytes(DType::kF32)));
  const int64_t bytes = newton_schulz_workspace_bytes(shape.rows, shape.columns, weight_dtype, num_threads);
  out.inner = {arena.allocate_bytes(bytes), static_cast<size_t>(bytes)};
  return out;
}

MuonWorkspace workspace_of(const WholeParameter& parameter, const ThreadPool& pool) {
  Arena arena(parameter.workspace);
  return lay_out_muon(arena, parameter.shape, parameter.weight_dtype, pool.num_threads());
}

}  // namespace

int64_t Muon::workspace_bytes(const ParameterShape& shape, DType weight_dtype, int64_t num_threads) const {
  if (!shape.is_hidden) return 0;
  Arena arena = Arena::measuring();
  lay_out_muon(arena, shape, weight_dtype, num_threads);
  return arena.high_water_bytes();
}

void Muon::update_moments(const WholeParameter& parameter, const WholeBlock& block, const OptimizerStep& step,
                          ThreadPool& pool) const {
  auto* const momentum = reinterpret_cast<float*>(block.state[2]);
  float* const update = workspace_of(parameter, pool).update + block.begin;
  const auto scale = static_cast<float>(step.gradient_scale);
  const auto follow = static_cast<float>(1 - settings_.muon_momentum);
  with_gradient(parameter, block.begin, [&](auto gradient) {
    pool.parallel_blocks(block.count, kMuonBlock, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float g = to_float(gradient[i]) * scale;
        const float m = momentum[i] + follow * (g - momentum[i]);
        momentum[i] = m;
        update[i] = m - follow * (m - g);
      }
    });
  });
}

void Muon::solve(const WholeParameter& parameter, const OptimizerStep& /*step*/, ThreadPool& pool) const {
  const MuonWorkspace workspace = workspace_of(parameter, pool);
  const TensorView update(workspace.update, DType::kF32, {parameter.shape.rows, parameter.shape.columns});
  newton_schulz(update, parameter.weight_dtype, workspace.inner, pool);
}

void Muon::update_masters(const WholeParameter& parameter, const WholeBlock& block, const OptimizerStep& step,
                          ThreadPool& pool) const {
  const float* const update = workspace_of(parameter, pool).update + block.begin;
  const double decay = parameter.weight_decay ? settings_.weight_decay : 0;
  const auto kept = static_cast<float>(1 - step.learning_rate * decay);
  const auto rate =
      static_cast<float>(step.learning_rate * rate_factor(settings_.muon_rate, parameter.shape));
  with_masters(block.weights, block.remainders, [&](auto masters) {
    pool.parallel_blocks(block.count, kMuonBlock, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) masters.store(i, masters.load(i) * kept - rate * update[i]);
    });
  });
}

}  // namespace tessera
