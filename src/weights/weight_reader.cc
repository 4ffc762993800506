#include "weights/weight_reader.h"

#include <algorithm>

#include "base/memory.h"
#include "tensor/device.h"

namespace tessera {

void WeightReader::expect(const Parameter& parameter) {
  const std::optional<StoredParameter> found = find_parameter(file_, config_, parameter);
  if (found) done_.bytes_total += found->bytes_of(parameter.num_elements);
}

void WeightReader::expect_all() {
  for (const Parameter& parameter : layout_.parameters()) expect(parameter);
}

void WeightReader::read(ElementRange range, const WeightSink& sink, const Bf16Destination& bf16_destination) {
  LoadProgress last;
  LoadOptions options;
  options.ranges = std::span(&range, 1);
  options.bf16_destination = bf16_destination;
  options.sums = sums_;
  options.progress = [&](const LoadProgress& of_part) {
    last = of_part;
    if (!progress_) return;
    progress_({done_.bytes_done + of_part.bytes_done, std::max(done_.bytes_total, of_part.bytes_total),
               done_.seconds + of_part.seconds});
  };
  load_weights(tensors_, sink, pool_, options);
  done_.bytes_done += last.bytes_done;
  done_.seconds += last.seconds;
}

void WeightReader::read(ElementRange range, TensorView to) {
  const auto part = [&](int64_t begin, int64_t count) {
    return to.rows(begin - range.begin, begin - range.begin + count);
  };
  const WeightSink sink = [&](int64_t begin, std::span<const float> values) {
    const TensorView place = part(begin, std::ssize(values));
    if (place.dtype() == DType::kF32) {
      std::copy(values.begin(), values.end(), place.as<float>());
    } else {
      std::transform(values.begin(), values.end(), place.as<bf16>(), to_bf16);
    }
  };
  if (to.dtype() == DType::kF32) return read(range, sink);
  read(range, sink, [&](int64_t begin, int64_t count) {
    return std::span(part(begin, count).as<bf16>(), static_cast<size_t>(count));
  });
}

void fill_by_parts(std::span<const int64_t> begins, TensorView to,
                   FunctionRef<void(int64_t index, std::byte* buffer)> fill) {
  const int64_t num_parts = std::ssize(begins) - 1;
  const auto begin_of = [&](int64_t index) { return begins[static_cast<size_t>(index)]; };
  int64_t largest = 0;
  for (int64_t i = 0; i < num_parts; ++i) largest = std::max(largest, begin_of(i + 1) - begin_of(i));
  const PageBuffer buffer(largest);
  for (int64_t i = 0; i < num_parts; ++i) {
    const int64_t size = begin_of(i + 1) - begin_of(i);
    if (size == 0) continue;
    std::fill_n(buffer.data(), size, std::byte{0});
    fill(i, buffer.data());
    copy(ConstTensorView(buffer.data(), DType::kU8, {size}), to.rows(begin_of(i), begin_of(i + 1)));
  }
}

std::vector<int64_t> group_begins(const ParameterLayout& layout, DType dtype) {
  std::vector<int64_t> begins;
  for (const ParameterLayout::Group& group : layout.groups())
    begins.push_back(group.begin * dtype_bytes(dtype));
  begins.push_back(layout.num_elements() * dtype_bytes(dtype));
  return begins;
}

void load_by_groups(WeightReader& reader, TensorView weights) {
  const auto& groups = reader.layout().groups();
  const TensorView bytes(weights.address(), DType::kU8, {weights.size_bytes()}, weights.device());
  fill_by_parts(group_begins(reader.layout(), weights.dtype()), bytes, [&](int64_t index, std::byte* buffer) {
    const ParameterLayout::Group& group = groups[static_cast<size_t>(index)];
    reader.read({group.begin, group.end}, TensorView(buffer, weights.dtype(), {group.end - group.begin}));
  });
}

}  // namespace tessera
