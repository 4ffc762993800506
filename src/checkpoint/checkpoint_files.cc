#include "checkpoint/checkpoint_files.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/error.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr std::string_view kCheckpointPrefix = "checkpoint-";

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{}", kCheckpointPrefix, step); }

std::optional<int64_t> parse_checkpoint_name(std::string_view name) {
  if (!name.starts_with(kCheckpointPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kCheckpointPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  // Only names that checkpoint_name() produces: no sign, no leading zero.
  if (error != std::errc() || end != digits.data() + digits.size() || checkpoint_name(step) != name) {
    return std::nullopt;
  }
  return step >= 0 ? std::optional(step) : std::nullopt;
}

std::filesystem::path make_previous_folder(const std::filesystem::path& output_dir) {
  const auto numbered = [&](int64_t number) { return output_dir / fmt::format("previous-{}", number); };
  int64_t number = 1;
  for (std::error_code error; std::filesystem::exists(numbered(number), error);) ++number;
  create_folder(numbered(number));
  return numbered(number);
}

std::string state_file_name(int64_t rank, int64_t world_size) {
  return fmt::format("{}/state-{:05}-of-{:05}.safetensors", kStateFolder, rank + 1, world_size);
}

std::string state_index_name(int64_t rank, int64_t world_size) {
  return fmt::format("{}/state-{:05}-of-{:05}.json", kStateFolder, rank + 1, world_size);
}

StoredParts::StoredParts(DType model_dtype, StateTensors tensors) : model_dtype_(model_dtype) {
  TESSERA_CHECK(tensors.size() <= kMaxStateTensors, "{} tensors", tensors.size());
  const bool is_half = model_dtype == DType::kBF16;
  parts_.push_back({"", model_dtype});
  parts_.push_back(
      {is_half ? "remainder" : "master",
       model_dtype == DType::kF32 ? std::nullopt : std::optional(is_half ? DType::kI16 : DType::kF32)});
  for (const StateTensor& tensor : tensors) {
    parts_.push_back({std::string(tensor.name), tensor.dtype, tensor.extent});
  }
}

int64_t StoredParts::num_stored(size_t part, const Parameter& parameter, int64_t begin, int64_t count) const {
  const int64_t values = num_values(parts_[part].extent, shape_of(parameter), parameter.num_elements);
  return std::clamp<int64_t>(values - begin, 0, count);
}

std::string StoredParts::tensor_name(size_t part, std::string_view parameter) const {
  return fmt::format("{}/{}", parts_[part].prefix, parameter);
}

std::optional<size_t> StoredParts::find(std::string_view tensor) const {
  for (size_t part = kFirstTensor; part < count(); ++part) {
    if (parts_[part].prefix == tensor) return part;
  }
  return std::nullopt;
}

int64_t stored_bytes(const ParameterLayout& layout, const std::vector<ElementRange>& ranges,
                     const StoredParts& stored) {
  int64_t bytes = 0;
  for (const OwnedPart& owned : owned_parts(layout, ranges)) {
    for (size_t part = 0; part < stored.count(); ++part) {
      const int64_t count = stored.num_stored(part, *owned.parameter, owned.begin, owned.end - owned.begin);
      bytes += stored.bytes(part, count);
    }
  }
  return bytes;
}

std::vector<int64_t> stored_shape(DType dtype, int64_t count) {
  if (!is_block_code(dtype)) return {count};
  return {divide_up(count, kCodeBlock), kCodeBlockBytes};
}

SafetensorsLayout state_file_layout(const std::vector<OwnedPart>& parts, const StoredParts& stored) {
  std::vector<SafetensorsSpec> tensors;
  const auto add_part = [&](size_t part) {
    const std::optional<DType> dtype = stored.dtype(part);
    if (!dtype) return;
    int64_t count = 0;  // of the parameter so far
    for (size_t i = 0; i < parts.size(); ++i) {
      const Parameter& parameter = *parts[i].parameter;
      count += stored.num_stored(part, parameter, parts[i].begin, parts[i].end - parts[i].begin);
      if (i + 1 < parts.size() && parts[i + 1].parameter == &parameter) continue;
      if (count > 0) {
        tensors.push_back({stored.tensor_name(part, parameter.name), stored_shape(*dtype, count), *dtype});
      }
      count = 0;
    }
  };
  for (size_t part = StoredParts::kFirstTensor; part < stored.count(); ++part) add_part(part);
  add_part(StoredParts::kMaster);
  return SafetensorsLayout(std::move(tensors), kSharedPageBytes);
}

}  // namespace tessera
