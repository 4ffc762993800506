#include "optim/optimizer_state.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/divide_up.h"
#include "kernels/elementwise/elementwise.h"

namespace tessera {
namespace {

// BF16 gradients widened at a time: 4 MiB of float32, still in cache when read again.
constexpr int64_t kWidenedBlock = 1 << 20;

// Elements a thread takes at a time when masters are read or written: 256 KiB of float32.
constexpr int64_t kCopyBlock = 64 * 1024;

// Float32 values of elements from `first` on.
void load_values(DType dtype, const std::byte* stored, int64_t first, std::span<float> values) {
  if (is_block_code(dtype)) {
    read_codes(dtype, stored, first, values);
  } else if (dtype == DType::kF32) {
    std::copy_n(reinterpret_cast<const float*>(stored) + first, values.size(), values.begin());
  } else {
    std::transform(reinterpret_cast<const bf16*>(stored) + first,
                   reinterpret_cast<const bf16*>(stored) + first + values.size(), values.begin(),
                   [](bf16 value) { return to_float(value); });
  }
}

void store_values(DType dtype, std::byte* stored, int64_t first, std::span<const float> values) {
  if (is_block_code(dtype)) {
    write_codes(dtype, stored, first, values);
  } else if (dtype == DType::kF32) {
    std::ranges::copy(values, reinterpret_cast<float*>(stored) + first);
  } else {
    std::ranges::transform(values, reinterpret_cast<bf16*>(stored) + first,
                           [](float value) { return to_bf16(value); });
  }
}

}  // namespace

int64_t optimizer_state_bytes(StateTensors tensors, int64_t num_elements, DType weight_dtype) {
  return state_bytes(tensors, num_elements) + remainder_bytes(num_elements, weight_dtype) +
         sum_of_squares_scratch_bytes(num_elements);
}

OptimizerState::OptimizerState(std::unique_ptr<const Optimizer> optimizer, std::vector<ParameterRange> ranges,
                               TensorView weights, ConstTensorView gradients, ThreadPool& pool,
                               std::optional<int64_t> num_state_elements,
                               const std::optional<StateFileSettings>& file)
    : optimizer_(std::move(optimizer)),
      ranges_(std::move(ranges)),
      weights_(weights),
      gradients_(gradients),
      pool_(&pool),
      num_state_elements_(num_state_elements.value_or(weights.num_elements())),
      dtypes_(part_dtypes(optimizer_->state_tensors(), weights.dtype())),
      elementwise_(is_elementwise(optimizer_->state_tensors())),
      norm_scratch_(sum_of_squares_scratch_bytes(num_state_elements_)) {
  TESSERA_CHECK(weights.dtype() == DType::kBF16 || weights.dtype() == DType::kF32, "weights are {}",
                dtype_name(weights.dtype()));
  TESSERA_CHECK(gradients.dtype() == DType::kF32 || gradients.dtype() == DType::kBF16, "gradients are {}",
                dtype_name(gradients.dtype()));
  TESSERA_CHECK(optimizer_->state_tensors().size() <= kMaxStateTensors);
  check_shapes();
  if (file) open_files(*file);
  allocate_parts();
  workspace_ = PageBuffer(workspace_bytes());
  if (gradients.dtype() == DType::kBF16) widened_ = PageBuffer(kWidenedBlock * dtype_bytes(DType::kF32));
  int64_t end_of_state = 0;
  for (const ParameterRange& range : ranges_) {
    TESSERA_CHECK(range.begin >= 0 && range.count >= 0 && range.begin + range.count <= weights.num_elements(),
                  "range of {} elements at {} of {}", range.count, range.begin, weights.num_elements());
    TESSERA_CHECK(0 <= range.gradient_begin && range.gradient_begin + range.count <= gradients.num_elements(),
                  "gradient of {} elements at {} of {}", range.count, range.gradient_begin,
                  gradients.num_elements());
    TESSERA_CHECK(range.state_begin >= end_of_state, "state at {} after {}", range.state_begin, end_of_state);
    end_of_state = range.state_begin + range.count;
    check_elements(range.begin, range.state_begin, range.count);
    for (const StateTensor& tensor : optimizer_->state_tensors()) {
      const int64_t block = state_block(tensor.dtype);
      TESSERA_CHECK(range.state_begin % block == 0 && range.first_element % block == 0,
                    "{} of elements from {} on at {}", tensor.name, range.first_element, range.state_begin);
    }
  }
}

void OptimizerState::check_shapes() const {
  for (const ParameterRange& range : ranges_) {
    if (!is_indivisible(optimizer_->state_tensors(), range.shape)) continue;
    TESSERA_CHECK(!range.shape.is_matrix() || range.count == range.shape.rows * range.shape.columns,
                  "{} elements of [{}, {}]", range.count, range.shape.rows, range.shape.columns);
  }
}

int64_t OptimizerState::workspace_bytes() const {
  int64_t bytes = 0;
  for (const ParameterRange& range : ranges_) {
    if (!is_indivisible(optimizer_->state_tensors(), range.shape)) continue;
    bytes = std::max(bytes, optimizer_->workspace_bytes(range.shape, weights_.dtype(), pool_->num_threads()));
  }
  return bytes;
}

void OptimizerState::open_files(const StateFileSettings& settings) {
  file_parts_ = file_parts(optimizer_->state_tensors(), weights_.dtype(),
                           ValueCounts(num_state_elements_, ranges_), settings.chunks_ahead);
  for (size_t file = 0; file < file_parts_.size(); ++file) {
    const FileParts& of = file_parts_[file];
    StateFileSettings own = settings;
    own.chunks_ahead = of.chunks_ahead;
    if (file > 0) own.path += fmt::format("-{}", file);
    files_.push_back(std::make_unique<StateFile>(own, of.in_file, of.num_values));
    for (size_t i = 0; i < of.parts.size(); ++i) places_[of.parts[i]] = Place{file, i};
  }
}

void OptimizerState::allocate_parts() {
  const StateTensors tensors = optimizer_->state_tensors();
  std::array<int64_t, kMaxStateTensors> num_stored = {};
  for (const ParameterRange& range : ranges_) {
    if (elementwise_) break;
    value_begin_.push_back(num_stored);
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      num_stored[tensor] += num_values(tensors[tensor].extent, range.shape, range.count);
    }
  }
  for (size_t part = 0; part < dtypes_.size(); ++part) {
    const bool per_element = elementwise_ || part == remainder_part();
    const int64_t count = per_element ? num_state_elements_ : num_stored[part];
    parts_.emplace_back(places_[part] ? 0 : state_bytes(dtypes_[part], count));
  }
}

int64_t OptimizerState::value_begin(size_t range_index, size_t part) const {
  const bool per_element = elementwise_ || part == remainder_part();
  return per_element ? ranges_[range_index].state_begin : value_begin_[range_index][part];
}

int64_t OptimizerState::value_index(size_t tensor, int64_t state_begin, int64_t count) const {
  if (elementwise_) return state_begin;
  const auto after = std::ranges::upper_bound(ranges_, state_begin, {}, &ParameterRange::state_begin);
  TESSERA_CHECK(after != ranges_.begin(), "state at {}", state_begin);
  const ParameterRange& range = *(after - 1);
  const StateTensor& of = optimizer_->state_tensors()[tensor];
  const int64_t first = state_begin - range.state_begin;
  const int64_t num_stored = num_values(of.extent, range.shape, range.count);
  TESSERA_CHECK(first + count <= num_stored, "{}: values [{}, {}) of {}", of.name, first, first + count,
                num_stored);
  return value_begin_[static_cast<size_t>(after - 1 - ranges_.begin())][tensor] + first;
}

template <typename Body>
void OptimizerState::for_each_block(const ParameterRange& range, const Body& body) const {
  if (gradients_.dtype() == DType::kF32) {
    body(int64_t{0},
         std::span(gradients_.as<float>() + range.gradient_begin, static_cast<size_t>(range.count)));
    return;
  }
  for (int64_t begin = 0; begin < range.count; begin += kWidenedBlock) {
    const int64_t count = std::min(kWidenedBlock, range.count - begin);
    const bf16* from = gradients_.as<bf16>() + range.gradient_begin + begin;
    float* to = widened_.as<float>().data();
    pool_->parallel_blocks(count, kCopyBlock, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) to[i] = to_float(from[i]);
    });
    body(begin, std::span<const float>(to, static_cast<size_t>(count)));
  }
}

double OptimizerState::gradient_squares(int64_t range) const {
  double sum = 0;
  for_each_block(ranges_[static_cast<size_t>(range)],
                 [&](int64_t /*begin*/, std::span<const float> gradient) {
                   sum += sum_of_squares(gradient, norm_scratch_.as<std::byte>(), *pool_);
                 });
  return sum;
}

double OptimizerState::gradient_norm() const {
  // Range by range, because alignment gaps may hold anything.
  double sum = 0;
  for (int64_t range = 0; range < std::ssize(ranges_); ++range) sum += gradient_squares(range);
  return std::sqrt(sum);
}

void OptimizerState::update(int64_t first, int64_t last, const OptimizerStep& step) {
  for (size_t file = 0; file < files_.size(); ++file) end_chunks_[file] = chunks_of(file, first, last).second;
  for (int64_t i = first; i < last; ++i) {
    const auto range = static_cast<size_t>(i);
    if (is_indivisible(optimizer_->state_tensors(), ranges_[range].shape)) {
      update_whole(range, step);
    } else {
      update_blocks(range, step);
    }
  }
}

void OptimizerState::update_blocks(size_t range_index, const OptimizerStep& step) {
  const ParameterRange& range = ranges_[range_index];
  for_each_block(range, [&](int64_t begin, std::span<const float> gradient) {
    while (!gradient.empty()) {
      const int64_t count = open_parts(range_index, begin, std::ssize(gradient));
      const int64_t at = range.begin + begin;
      optimizer_->update({.weights = weights_.rows(at, at + count),
                          .remainders = open_remainders(),
                          .gradient = gradient.first(static_cast<size_t>(count)),
                          .state = open_tensors(),
                          .first_element = range.first_element + begin,
                          .weight_decay = range.weight_decay},
                         step, *pool_);
      gradient = gradient.subspan(static_cast<size_t>(count));
      begin += count;
    }
  });
}

void OptimizerState::update_whole(size_t range_index, const OptimizerStep& step) {
  const ParameterRange& range = ranges_[range_index];
  const auto for_each_opened = [&](Opened opened, const auto& body) {
    for (int64_t begin = 0; begin < range.count;) {
      const int64_t count = open_parts(range_index, begin, range.count - begin, opened);
      body(begin, count);
      begin += count;
    }
  };
  open_parts(range_index, 0, 0, Opened::kTensors);
  const StateFile::Parts in_memory = open_;
  const WholeParameter parameter = {
      .gradient = gradients_.rows(range.gradient_begin, range.gradient_begin + range.count),
      .shape = range.shape,
      .weight_dtype = weights_.dtype(),
      .weight_decay = range.weight_decay,
      .state = std::span(in_memory).first(optimizer_->state_tensors().size()),
      .workspace = workspace_.as<std::byte>()};
  for_each_opened(Opened::kTensors, [&](int64_t begin, int64_t count) {
    optimizer_->update_moments(parameter, {.begin = begin, .count = count, .state = open_tensors()}, step,
                               *pool_);
  });
  optimizer_->solve(parameter, step, *pool_);
  for_each_opened(Opened::kRemainders, [&](int64_t begin, int64_t count) {
    const int64_t at = range.begin + begin;
    optimizer_->update_masters(parameter,
                               {.begin = begin,
                                .count = count,
                                .state = {},
                                .weights = weights_.rows(at, at + count),
                                .remainders = open_remainders()},
                               step, *pool_);
  });
}

int16_t* OptimizerState::open_remainders() const {
  return weights_.dtype() == DType::kBF16 ? reinterpret_cast<int16_t*>(open_[remainder_part()]) : nullptr;
}

std::span<std::byte* const> OptimizerState::open_tensors() const {
  return std::span(open_).first(optimizer_->state_tensors().size());
}

bool OptimizerState::is_opened(const FileParts& file, Opened opened) const {
  return opened == Opened::kAll || std::ranges::any_of(file.parts, [&](size_t part) {
           return (part == remainder_part()) == (opened == Opened::kRemainders);
         });
}

int64_t OptimizerState::open_parts(size_t range_index, int64_t begin, int64_t count, Opened opened) {
  const ParameterRange& range = ranges_[range_index];
  for (size_t part = 0; part < dtypes_.size(); ++part) {
    const int64_t first = value_begin(range_index, part) + begin;
    // Past the end of a tensor without values for this range.
    const int64_t offset = std::min(state_bytes(dtypes_[part], first), parts_[part].size_bytes());
    open_[part] = parts_[part].data() + offset;
  }
  for (size_t file = 0; file < files_.size() && count > 0; ++file) {
    const FileParts& of = file_parts_[file];
    if (!is_opened(of, opened) || num_values(of.extent, range.shape, range.count) == 0) continue;
    const int64_t at = value_begin(range_index, of.parts.front()) + begin;
    const int64_t chunk_elements = files_[file]->chunk_elements();
    const StateFile::Parts& chunk = files_[file]->open(at / chunk_elements, end_chunks_[file]);
    const int64_t first = at % chunk_elements;
    for (size_t i = 0; i < of.parts.size(); ++i) {
      open_[of.parts[i]] = chunk[i] + state_bytes(of.in_file[i].dtype, first);
    }
    count = std::min(count, chunk_elements - first);
  }
  return count;
}

std::pair<int64_t, int64_t> OptimizerState::chunks_of(size_t file, int64_t first, int64_t last) const {
  const FileParts& of = file_parts_[file];
  const auto values_of = [&](int64_t range) {
    const ParameterRange& at = ranges_[static_cast<size_t>(range)];
    return num_values(of.extent, at.shape, at.count);
  };
  while (first < last && values_of(first) == 0) ++first;
  while (first < last && values_of(last - 1) == 0) --last;
  if (first == last) return {0, 0};
  const auto begin_of = [&](int64_t range) {
    return value_begin(static_cast<size_t>(range), of.parts.front());
  };
  const int64_t chunk_elements = files_[file]->chunk_elements();
  return {begin_of(first) / chunk_elements,
          divide_up(begin_of(last - 1) + values_of(last - 1), chunk_elements)};
}

void OptimizerState::announce(int64_t first, int64_t last) {
  for (size_t file = 0; file < files_.size(); ++file) {
    const auto [begin, end] = chunks_of(file, first, last);
    files_[file]->announce(begin, end);
  }
}

void OptimizerState::discard_tensors() {
  for (size_t tensor = 0; tensor < optimizer_->state_tensors().size(); ++tensor) {
    if (places_[tensor]) files_[places_[tensor]->file]->discard(places_[tensor]->part);
  }
}

AsyncFileStatistics OptimizerState::file_statistics() const {
  AsyncFileStatistics sum;
  for (const std::unique_ptr<StateFile>& file : files_) sum += file->statistics();
  return sum;
}

template <typename Body>
void OptimizerState::read_part(size_t part, int64_t state_begin, int64_t count, const Body& body) const {
  if (const std::optional<Place>& place = places_[part]) {
    files_[place->file]->read(place->part, state_begin, count, body);
  } else {
    body(parts_[part].data(), state_begin, 0, count);
  }
}

template <typename Body>
void OptimizerState::write_part(size_t part, int64_t state_begin, int64_t count, const Body& body) {
  if (const std::optional<Place>& place = places_[part]) {
    files_[place->file]->write(place->part, state_begin, count, body);
  } else {
    body(parts_[part].data(), state_begin, 0, count);
  }
}

void OptimizerState::read_master(int64_t begin, int64_t state_begin, std::span<float> destination) const {
  // From a file in long pieces, one after the other.
  const int64_t block = files_.empty() ? kCopyBlock : std::ssize(destination);
  pool_->parallel_blocks(std::ssize(destination), block, [&](int64_t first, int64_t last) {
    read_master_alone(begin + first, state_begin + first,
                      destination.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first)));
  });
}

void OptimizerState::read_master_alone(int64_t begin, int64_t state_begin,
                                       std::span<float> destination) const {
  check_elements(begin, state_begin, std::ssize(destination));
  if (weights_.dtype() == DType::kF32) {
    std::copy_n(weights_.as<float>() + begin, destination.size(), destination.begin());
    return;
  }
  read_part(remainder_part(), state_begin, std::ssize(destination),
            [&](const std::byte* stored, int64_t first, int64_t done, int64_t count) {
              const bf16* weight = weights_.as<bf16>() + begin + done;
              const int16_t* remainder = reinterpret_cast<const int16_t*>(stored) + first;
              float* master = destination.data() + done;
              for (int64_t i = 0; i < count; ++i) master[i] = join_master(weight[i], remainder[i]);
            });
}

void OptimizerState::write_master(int64_t begin, int64_t state_begin, std::span<const float> source) {
  const int64_t block = files_.empty() ? kCopyBlock : std::ssize(source);
  pool_->parallel_blocks(std::ssize(source), block, [&](int64_t first, int64_t last) {
    write_master_alone(begin + first, state_begin + first,
                       source.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first)));
  });
}

void OptimizerState::write_master_alone(int64_t begin, int64_t state_begin, std::span<const float> source) {
  check_elements(begin, state_begin, std::ssize(source));
  if (weights_.dtype() == DType::kF32) {
    std::ranges::copy(source, weights_.as<float>() + begin);
    return;
  }
  write_part(remainder_part(), state_begin, std::ssize(source),
             [&](std::byte* stored, int64_t first, int64_t done, int64_t count) {
               bf16* weight = weights_.as<bf16>() + begin + done;
               int16_t* remainder = reinterpret_cast<int16_t*>(stored) + first;
               const float* master = source.data() + done;
               for (int64_t i = 0; i < count; ++i) {
                 weight[i] = master_weight(master[i]);
                 remainder[i] = master_remainder(master[i]);
               }
             });
}

void OptimizerState::read(StateKind kind, int64_t begin, int64_t state_begin, std::span<float> values) const {
  if (kind == StateKind::kMaster) {
    read_master_alone(begin, state_begin, values);
    return;
  }
  check_elements(begin, state_begin, std::ssize(values));
  const size_t part = tensor_index(kind);
  read_part(part, value_index(part, state_begin, std::ssize(values)), std::ssize(values),
            [&](const std::byte* stored, int64_t first, int64_t done, int64_t count) {
              load_values(dtypes_[part], stored, first,
                          values.subspan(static_cast<size_t>(done), static_cast<size_t>(count)));
            });
}

void OptimizerState::write(StateKind kind, int64_t begin, int64_t state_begin,
                           std::span<const float> values) {
  if (kind == StateKind::kMaster) {
    write_master(begin, state_begin, values);
    return;
  }
  check_elements(begin, state_begin, std::ssize(values));
  const size_t part = tensor_index(kind);
  write_part(part, value_index(part, state_begin, std::ssize(values)), std::ssize(values),
             [&](std::byte* stored, int64_t first, int64_t done, int64_t count) {
               store_values(dtypes_[part], stored, first,
                            values.subspan(static_cast<size_t>(done), static_cast<size_t>(count)));
             });
}

bool OptimizerState::read_stored(StateKind kind, DType dtype, int64_t state_begin, int64_t count,
                                 const StoredBody& body) const {
  const size_t part = kind == StateKind::kMaster ? remainder_part() : tensor_index(kind);
  if (part >= dtypes_.size() || dtypes_[part] != dtype) return false;
  const int64_t begin = kind == StateKind::kMaster ? state_begin : value_index(part, state_begin, count);
  if (const std::optional<Place>& place = places_[part]) {
    files_[place->file]->read_stored(place->part, begin, count, body);
    return true;
  }
  const int64_t begin_bytes = state_bytes(dtype, begin);
  const auto size_bytes = static_cast<size_t>(state_bytes(dtype, begin + count) - begin_bytes);
  body(0, {parts_[part].data() + begin_bytes, size_bytes}, nullptr);
  return true;
}

void OptimizerState::check_elements(int64_t begin, int64_t state_begin, int64_t count) const {
  TESSERA_CHECK(begin >= 0 && count >= 0 && begin + count <= weights_.num_elements(),
                "{} elements at {} of {}", count, begin, weights_.num_elements());
  TESSERA_CHECK(state_begin >= 0 && state_begin + count <= num_state_elements_,
                "state of {} elements at {} of {}", count, state_begin, num_state_elements_);
}

}  // namespace tessera
