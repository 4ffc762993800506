#include "optim/state_parts.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/divide_up.h"
#include "base/memory.h"

namespace tessera {
namespace {

bool has_file(StateExtent extent) {
  return extent == StateExtent::kElements || extent == StateExtent::kHiddenElements ||
         extent == StateExtent::kOtherElements;
}

static_assert(kNumStateExtents == static_cast<size_t>(StateExtent::kColumns) + 1);

// The extent of a tensor, or of the remainders, which are the part after the last tensor.
StateExtent extent_of(StateTensors tensors, size_t part) {
  return part < tensors.size() ? tensors[part].extent : StateExtent::kElements;
}

// Where the parts begin if they follow one another, wider types first, in bytes.
std::vector<int64_t> offsets_in_sequence(StateTensors tensors, const std::vector<DType>& dtypes,
                                         const ValueCounts& counts) {
  std::vector<size_t> order(dtypes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t part) { return dtype_bytes(dtypes[part]); });
  std::vector<int64_t> offsets(dtypes.size());
  int64_t end = 0;
  for (const size_t part : order) {
    offsets[part] = end;
    end += state_bytes(dtypes[part], counts.of(extent_of(tensors, part)));
  }
  return offsets;
}

}  // namespace

ValueCounts::ValueCounts(int64_t num_elements, std::span<const ParameterRange> ranges) {
  for (size_t extent = 0; extent < kNumStateExtents; ++extent) {
    for (const ParameterRange& range : ranges) {
      counts_[extent] += num_values(static_cast<StateExtent>(extent), range.shape, range.count);
    }
  }
  of(StateExtent::kElements) = num_elements;
}

std::vector<DType> part_dtypes(StateTensors tensors, DType weight_dtype) {
  std::vector<DType> dtypes;
  for (const StateTensor& tensor : tensors) dtypes.push_back(tensor.dtype);
  if (weight_dtype == DType::kBF16) dtypes.push_back(DType::kI16);
  return dtypes;
}

int64_t remainder_bytes(int64_t num_elements, DType weight_dtype) {
  return weight_dtype == DType::kBF16 ? num_elements * dtype_bytes(DType::kI16) : 0;
}

int64_t state_tensor_bytes(StateTensors tensors, const ValueCounts& counts) {
  int64_t bytes = 0;
  for (const StateTensor& tensor : tensors) bytes += state_bytes(tensor.dtype, counts.of(tensor.extent));
  return bytes;
}

std::vector<FileParts> file_parts(StateTensors tensors, DType weight_dtype, const ValueCounts& counts,
                                  int64_t chunks_ahead) {
  const std::vector<DType> dtypes = part_dtypes(tensors, weight_dtype);
  const std::vector<int64_t> offsets = offsets_in_sequence(tensors, dtypes, counts);
  std::vector<FileParts> files;
  for (size_t part = 0; part < dtypes.size(); ++part) {
    const StateExtent extent = extent_of(tensors, part);
    if (!has_file(extent) || counts.of(extent) == 0) continue;
    auto file = std::ranges::find(files, extent, &FileParts::extent);
    if (file == files.end()) {
      const int64_t share = divide_up(chunks_ahead * counts.of(extent),
                                      std::max<int64_t>(1, counts.of(StateExtent::kElements)));
      files.push_back({.extent = extent,
                       .parts = {},
                       .in_file = {},
                       .num_values = counts.of(extent),
                       .chunks_ahead = std::max(share, kMinChunksAhead)});
      file = files.end() - 1;
    }
    file->parts.push_back(part);
    const int64_t phase_bytes = offsets[part] % kDirectAlignment;
    file->in_file.emplace_back(dtypes[part],
                               phase_bytes % FilePart::phase_alignment(dtypes[part]) == 0 ? phase_bytes : 0);
  }
  return files;
}

StateOnDisk state_on_disk(StateTensors tensors, DType weight_dtype, const ValueCounts& counts,
                          int64_t chunks_ahead) {
  StateOnDisk bytes;
  for (const StateTensor& tensor : tensors) {
    if (!has_file(tensor.extent)) bytes.memory_bytes += state_bytes(tensor.dtype, counts.of(tensor.extent));
  }
  for (const FileParts& file : file_parts(tensors, weight_dtype, counts, chunks_ahead)) {
    const StateFile::Sizes sizes(file.in_file, file.num_values, file.chunks_ahead);
    bytes.memory_bytes += sizes.memory_bytes();
    bytes.ahead_bytes += sizes.ahead_bytes();
    bytes.file_bytes += sizes.file_bytes();
    for (size_t i = 0; i < file.parts.size(); ++i) {
      if (file.parts[i] >= tensors.size()) continue;
      bytes.discarded_bytes +=
          sizes.num_chunks * StateFile::Sizes::part_bytes(file.in_file[i], sizes.chunk_elements);
    }
  }
  return bytes;
}

}  // namespace tessera
