#include "shard/outer/outer_optimizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/block_code/block_code.h"

namespace tessera {
namespace {

constexpr const char* kDifferences = "differences of weights";
constexpr const char* kUpdates = "outer updates";
// Elements that a thread takes at a time; blocks of codes are not cut.
constexpr int64_t kBlockElements = int64_t{1} << 16;
static_assert(kBlockElements % kCodeBlock == 0);

constexpr int64_t kF32Bytes = sizeof(float);

size_t at(int64_t index) { return static_cast<size_t>(index); }

// Calls body(piece, first element in the piece, first value, count) for each piece's part of elements
// [begin, begin + count); returns how many there are.
template <typename Body>
int64_t for_each_part(int64_t begin, int64_t count, int64_t num_pieces, const auto& range_of,
                      const Body& body) {
  int64_t found = 0;
  for (int64_t piece = 0; piece < num_pieces; ++piece) {
    const Part range = range_of(piece);
    const int64_t first = std::max(begin, range.begin);
    const int64_t size = std::min(begin + count, range.end) - first;
    if (size <= 0) continue;
    body(piece, first - range.begin, first - begin, size);
    found += size;
  }
  return found;
}

}  // namespace

OuterOptimizer::OuterOptimizer(OuterPlan plan, const ZeroSettings& settings, NetworkGroup& rail,
                               ThreadPool& pool)
    : plan_(std::move(plan)),
      settings_(settings),
      rail_(&rail),
      pool_(&pool),
      weights_(kF32Bytes * plan_.num_kept()),
      momentum_(kF32Bytes * plan_.num_owned(rail.index())),
      feedback_(is_quantized() ? static_cast<int64_t>(sizeof(bf16)) * plan_.num_kept() : 0),
      differences_(kF32Bytes * plan_.num_buffered()),
      updates_(dtype_bytes(settings.network_dtype) * plan_.num_buffered()),
      tickets_(at(plan_.num_pieces())) {
  int64_t weights = 0, momentum = 0;
  for (int64_t piece = 0; piece < plan_.num_pieces(); ++piece) {
    weight_begin_.push_back(weights);
    momentum_begin_.push_back(momentum);
    weights += plan_.piece(piece).size();
    momentum += plan_.owned(piece, rail.index()).size();
  }
}

OuterOptimizer::~OuterOptimizer() { rail_->release_buffers(); }

std::span<float> OuterOptimizer::difference(int64_t piece) const {
  return differences_.as<float>().subspan(at(plan_.buffer_begin(piece)), at(plan_.piece(piece).size()));
}

std::span<std::byte> OuterOptimizer::update(int64_t piece) const {
  const int64_t size = dtype_bytes(settings_.network_dtype);
  return updates_.as<std::byte>().subspan(at(size * plan_.buffer_begin(piece)),
                                          at(size * plan_.piece(piece).size()));
}

std::vector<Part> OuterOptimizer::parts(int64_t piece, int64_t unit) const {
  const int64_t begin = plan_.piece(piece).begin;
  std::vector<Part> parts;
  for (int node = 0; node < plan_.num_nodes(); ++node) {
    const Part owned = plan_.owned(piece, node);
    parts.push_back({unit * (owned.begin - begin), unit * (owned.end - begin)});
  }
  return parts;
}

Part OuterOptimizer::own_in(int64_t piece) const {
  const Part own = plan_.owned(piece, rail_->index());
  return {own.begin - plan_.piece(piece).begin, own.end - plan_.piece(piece).begin};
}

void OuterOptimizer::begin(int64_t piece, const NodeWeights& node, bool exactly) {
  const std::span<float> to = difference(piece);
  const float* outer = weights_.as<float>().data() + weight_begin_[at(piece)];
  bf16* errors = is_quantized() ? feedback_.as<bf16>().data() + weight_begin_[at(piece)] : nullptr;
  pool_->parallel_blocks(std::ssize(to), kBlockElements, [&](int64_t begin, int64_t end) {
    node.read(plan_.piece(piece).begin + begin, to.subspan(at(begin), at(end - begin)));
    for (int64_t i = begin; i < end; ++i) to[at(i)] = outer[i] - to[at(i)];
    if (!exactly || errors == nullptr) return;
    for (int64_t i = begin; i < end; ++i) to[at(i)] += to_float(std::exchange(errors[i], bf16{0}));
  });
  const OpLabel label = {kDifferences, piece};
  NetworkGroup::Ticket& ticket = tickets_[at(piece)];
  if (errors != nullptr && !exactly) {
    ticket = rail_->reduce_scatter_coded(*settings_.quantized_gradients, to, {.errors = errors},
                                         parts(piece, 1), label);
  } else if (settings_.network_dtype == DType::kF32) {
    ticket = rail_->reduce_scatter_f32(to, parts(piece, 1), label);
  } else {
    ticket = rail_->reduce_scatter(to, parts(piece, 1), label);
  }
}

void OuterOptimizer::step(int64_t piece) {
  rail_->wait(tickets_[at(piece)]);
  const Part own = own_in(piece);
  const float* sum = difference(piece).data() + own.begin;
  float* momentum = momentum_.as<float>().data() + momentum_begin_[at(piece)];
  const auto nodes = static_cast<float>(plan_.num_nodes());
  const auto rate = static_cast<float>(settings_.outer->learning_rate);
  const auto factor = static_cast<float>(settings_.outer->momentum);
  const std::span<std::byte> bytes = update(piece);
  const bool is_f32 = settings_.network_dtype == DType::kF32;
  auto* update_f32 = reinterpret_cast<float*>(bytes.data()) + own.begin;
  auto* update_bf16 = reinterpret_cast<bf16*>(bytes.data()) + own.begin;
  pool_->parallel_blocks(own.size(), kBlockElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float difference = sum[i] / nodes;
      momentum[i] = factor * momentum[i] + difference;
      const float value = rate * (difference + factor * momentum[i]);
      if (is_f32) {
        update_f32[i] = value;
      } else {
        update_bf16[i] = to_bf16(value);
      }
    }
  });
  tickets_[at(piece)] =
      rail_->all_gather(bytes, parts(piece, dtype_bytes(settings_.network_dtype)), {kUpdates, piece});
}

void OuterOptimizer::finish(int64_t piece, const NodeWeights& node, double alpha) {
  rail_->wait(tickets_[at(piece)]);
  const std::span<float> own_weights = difference(piece);  // no longer needed
  float* outer = weights_.as<float>().data() + weight_begin_[at(piece)];
  const std::byte* bytes = update(piece).data();
  const bool is_f32 = settings_.network_dtype == DType::kF32;
  const auto share = static_cast<float>(alpha);
  pool_->parallel_blocks(std::ssize(own_weights), kBlockElements, [&](int64_t begin, int64_t end) {
    const int64_t first = plan_.piece(piece).begin + begin;
    const std::span<float> values = own_weights.subspan(at(begin), at(end - begin));
    if (alpha > 0) node.read(first, values);
    for (int64_t i = begin; i < end; ++i) {
      outer[i] -= is_f32 ? reinterpret_cast<const float*>(bytes)[i]
                         : to_float(reinterpret_cast<const bf16*>(bytes)[i]);
      float& own = own_weights[at(i)];
      own = alpha > 0 ? outer[i] + share * (own - outer[i]) : outer[i];
    }
    node.write(first, values);
  });
}

void OuterOptimizer::average(int64_t piece, const NodeWeights& of_node, const char* what) {
  const std::span<float> values = difference(piece);
  const int64_t first = plan_.piece(piece).begin;
  pool_->parallel_blocks(std::ssize(values), kBlockElements, [&](int64_t begin, int64_t end) {
    of_node.read(first + begin, values.subspan(at(begin), at(end - begin)));
  });
  rail_->wait(rail_->reduce_scatter_f32(values, parts(piece, 1), {what, piece}));
  const Part own = own_in(piece);
  const auto nodes = static_cast<float>(plan_.num_nodes());
  for (int64_t i = own.begin; i < own.end; ++i) values[at(i)] /= nodes;
  rail_->wait(rail_->all_gather(std::as_writable_bytes(values), parts(piece, kF32Bytes), {what, piece}));
  pool_->parallel_blocks(std::ssize(values), kBlockElements, [&](int64_t begin, int64_t end) {
    of_node.write(first + begin, values.subspan(at(begin), at(end - begin)));
  });
}

// Calls copy(values, kept, count) for runs of elements that follow each other in both.
template <typename Copy>
int64_t OuterOptimizer::for_each_kept(Kept kept, int64_t begin, int64_t count, const Copy& copy) const {
  const bool is_weights = kept == Kept::kWeights;
  float* const from = (is_weights ? weights_ : momentum_).as<float>().data();
  const std::vector<int64_t>& begins = is_weights ? weight_begin_ : momentum_begin_;
  return for_each_part(
      begin, count, plan_.num_pieces(),
      [&](int64_t piece) { return is_weights ? plan_.piece(piece) : plan_.owned(piece, rail_->index()); },
      [&](int64_t piece, int64_t in_part, int64_t first, int64_t size) {
        copy(first, from + begins[at(piece)] + in_part, size);
      });
}

void OuterOptimizer::read(Kept kept, int64_t begin, std::span<float> values) const {
  const int64_t found =
      for_each_kept(kept, begin, std::ssize(values), [&](int64_t first, const float* from, int64_t count) {
        std::copy_n(from, count, values.begin() + first);
      });
  TESSERA_CHECK(found == std::ssize(values), "{} of the elements [{}, {}) are kept", found, begin,
                begin + std::ssize(values));
}

void OuterOptimizer::write(Kept kept, int64_t begin, std::span<const float> values) {
  for_each_kept(kept, begin, std::ssize(values), [&](int64_t first, float* to, int64_t count) {
    std::copy_n(values.begin() + first, count, to);
  });
}

}  // namespace tessera
