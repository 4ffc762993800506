#include "weights/export_gguf.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "formats/gguf/gguf_architecture.h"
#include "formats/gguf/gguf_model.h"
#include "formats/gguf/q8_0.h"
#include "formats/huggingface/convert.h"
#include "io/disk_space.h"
#include "io/file.h"
#include "io/output_file.h"
#include "model/families/families.h"
#include "weights/gguf_plan.h"
#include "weights/merged_adapters.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

DType element_type(GgmlType type) {
  if (type == GgmlType::kBF16) return DType::kBF16;
  return type == GgmlType::kF16 ? DType::kF16 : DType::kF32;
}

// Infinities and NaN have all bits of `exponent` set. Unlike check_saved_weights(), which says which value is
// not finite, a loop that the compiler vectorizes.
template <typename Bits>
bool all_finite(const std::byte* data, size_t count, Bits exponent) {
  const auto* bits = reinterpret_cast<const Bits*>(data);
  Bits any = 0;
  for (size_t i = 0; i < count; ++i) any |= static_cast<Bits>((bits[i] & exponent) == exponent);
  return any == 0;
}

// A file under a hidden name, renamed once it is complete.
class UnfinishedFile {
 public:
  UnfinishedFile(fs::path path, int64_t size_bytes)
      : path_(std::move(path)),
        // Named like AtomicFile's temporary files, so that remove_abandoned_files() recognizes them.
        file_(OutputFile::create(folder_of(path_) / fmt::format(".{}.tmp-{}-{}", path_.filename().native(),
                                                                ::getpid(), std::random_device()()),
                                 size_bytes)) {}
  ~UnfinishedFile() {
    std::error_code ignored;
    if (!is_complete_) fs::remove(file_.path(), ignored);
  }
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  const OutputFile& file() const { return file_; }

  void commit() {
    file_.sync();
    file_.close();
    if (::rename(file_.path().c_str(), path_.c_str()) != 0) fail_write(path_, "rename", errno);
    is_complete_ = true;
    fsync_folder(folder_of(path_));
  }

 private:
  fs::path path_;
  OutputFile file_;
  bool is_complete_ = false;
};

// Parameters whose elements a file has in another order: pieces are kept until all have come.
class CollectedParameters {
 public:
  // All elements, once the last piece of `parameter` is here; empty until then. Thread-safe: pieces do not
  // overlap.
  std::vector<float> add(const Parameter& parameter, int64_t begin, std::span<const float> values) {
    Collected* collected = nullptr;
    {
      const std::lock_guard lock(mutex_);
      collected = &parameters_[parameter.offset];
      if (collected->values.empty()) collected->values.resize(static_cast<size_t>(parameter.num_elements));
    }
    std::ranges::copy(values, collected->values.begin() + begin);
    const std::lock_guard lock(mutex_);
    collected->num_here += std::ssize(values);
    if (collected->num_here < parameter.num_elements) return {};
    std::vector<float> all = std::move(collected->values);
    parameters_.erase(parameter.offset);
    return all;
  }

 private:
  struct Collected {
    std::vector<float> values;
    int64_t num_here = 0;
  };
  std::mutex mutex_;
  std::map<int64_t, Collected> parameters_;  // by Parameter::offset; references stay valid
};

// Converts pieces of weights and writes them to their places. Thread-safe.
class TensorWriter {
 public:
  TensorWriter(const ModelConfig& config, const ParameterLayout& layout, const GgufPlan& plan,
               const std::vector<GgufTensor>& tensors, const MergedAdapters& adapters, const OutputFile& file)
      : config_(config), layout_(layout), plan_(plan), tensors_(tensors), adapters_(adapters), file_(file) {}

  // Elements of one parameter: load_weights() never joins two.
  void write(int64_t flat_begin, std::span<const float> values) {
    const std::vector<Parameter>& parameters = layout_.parameters();
    const auto next = std::upper_bound(parameters.begin(), parameters.end(), flat_begin,
                                       [](int64_t at, const Parameter& p) { return at < p.offset; });
    const auto index = next - parameters.begin() - 1;
    const Parameter& parameter = parameters[static_cast<size_t>(index)];
    const int64_t begin = flat_begin - parameter.offset;
    thread_local std::vector<float> merged;
    const float offset = parameter.kind == ParameterKind::kNorm ? gguf_norm_offset(config_) : 0;
    if (!adapters_.empty() || offset != 0) {
      merged.assign(values.begin(), values.end());
      if (!adapters_.empty()) adapters_.add(parameter, begin, merged);
      if (offset != 0) std::ranges::for_each(merged, [offset](float& weight) { weight += offset; });
      values = merged;
    }
    const std::vector<GgufPlace>& places = plan_.places[static_cast<size_t>(index)];
    if (places.front().is_copy()) return write_piece(parameter, places.front(), begin, values);
    const std::vector<float> all = collected_.add(parameter, begin, values);
    if (all.empty()) return;
    for (const GgufPlace& place : places)
      write_piece(parameter, place, 0, gguf_elements(all, parameter.shape.back(), place));
  }

 private:
  void write_piece(const Parameter& parameter, const GgufPlace& place, int64_t begin,
                   std::span<const float> values) const {
    const GgufTensor& tensor = tensors_[place.tensor];
    thread_local std::vector<std::byte> buffer;
    convert(parameter, tensor, begin, values, &buffer);
    const int64_t at = place.first_element + begin;
    const int64_t num_heads = num_reordered_heads(config_, parameter.name);
    if (num_heads > 0) {
      write_rows(tensor, parameter.shape[0] / num_heads, at, std::ssize(values), buffer);
    } else {
      write_at(tensor, at, buffer);
      file_.start_writeback(tensor.offset_bytes + stored_bytes(tensor, at), std::ssize(buffer));
    }
  }

  static int64_t stored_bytes(const GgufTensor& tensor, int64_t count) {
    return count / tensor.type->block_elements * tensor.type->block_bytes;
  }

  static void convert(const Parameter& parameter, const GgufTensor& tensor, int64_t begin,
                      std::span<const float> values, std::vector<std::byte>* stored) {
    const auto type = static_cast<GgmlType>(tensor.type->number);
    const auto* source = reinterpret_cast<const std::byte*>(values.data());
    stored->resize(static_cast<size_t>(stored_bytes(tensor, std::ssize(values))));
    if (type == GgmlType::kQ8_0) {
      if (!all_finite<uint32_t>(source, values.size(), 0x7F800000))
        check_saved_weights(parameter, begin, values, DType::kF32, source);
      quantize_q8_0(values.data(), std::ssize(values), stored->data());
      return;
    }
    const DType dtype = element_type(type);
    convert_elements(DType::kF32, source, dtype, stored->data(), std::ssize(values));
    const bool is_finite =
        dtype == DType::kF32
            ? all_finite<uint32_t>(stored->data(), values.size(), 0x7F800000)
            : all_finite<uint16_t>(stored->data(), values.size(), dtype == DType::kBF16 ? 0x7F80 : 0x7C00);
    if (!is_finite) check_saved_weights(parameter, begin, values, dtype, stored->data());
  }

  void write_at(const GgufTensor& tensor, int64_t element, std::span<const std::byte> stored) const {
    file_.write_at(tensor.offset_bytes + stored_bytes(tensor, element), stored);
  }

  // num_reordered_heads() has the order.
  void write_rows(const GgufTensor& tensor, int64_t head_rows, int64_t begin, int64_t count,
                  std::span<const std::byte> stored) const {
    const int64_t columns = tensor.shape.size() == 1 ? 1 : tensor.shape[0];
    for (int64_t at = begin; at < begin + count;) {
      const int64_t row = at / columns, column = at % columns;
      const int64_t now = std::min(columns - column, begin + count - at);
      const int64_t in_head = row % head_rows;
      const int64_t half = head_rows / 2;
      const int64_t new_row = row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
      const auto from = static_cast<size_t>(stored_bytes(tensor, at - begin));
      write_at(tensor, new_row * columns + column,
               stored.subspan(from, static_cast<size_t>(stored_bytes(tensor, now))));
      at += now;
    }
  }

  const ModelConfig& config_;
  const ParameterLayout& layout_;
  const GgufPlan& plan_;
  const std::vector<GgufTensor>& tensors_;
  const MergedAdapters& adapters_;
  const OutputFile& file_;
  CollectedParameters collected_;
};

// LlamaFileType of gguf-py.
uint32_t file_type(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return 0;
    case GgmlType::kF16:
      return 1;
    case GgmlType::kQ8_0:
      return 7;
    case GgmlType::kBF16:
      return 32;
  }
  TESSERA_CHECK(false, "type {}", static_cast<uint32_t>(type));
  return 0;
}

}  // namespace

void export_gguf(const fs::path& model, const ModelConfig& config, const GgufExportOptions& options,
                 const fs::path& output, ThreadPool& pool) {
  refuse_special_file(output);
  constexpr uint32_t kQuantizationVersion = 2;  // ggml.h, GGML_QNT_VERSION
  const ParameterLayout layout = parameter_layout(config);
  std::vector<GgufField> fields = gguf_model_fields(config, model.native());
  fields.push_back({"general.type", GgufScalar(std::string("model"))});
  const GgufPlan plan = gguf_plan(config, layout, options.type);
  fields.push_back(
      {"general.size_label", GgufScalar(gguf_size_label(layout.num_parameters(), plan.num_expert_parameters,
                                                        config.experts ? config.experts->num_experts : 0))});
  fields.push_back({"general.file_type", GgufScalar(file_type(options.type))});
  fields.push_back({"general.quantization_version", GgufScalar(kQuantizationVersion)});
  fields.insert(fields.end(), options.fields.begin(), options.fields.end());
  std::vector<GgufTensor> tensors = plan.tensors;
  const std::vector<GgufRopeTensor> rope_tensors = gguf_rope_tensors(config);
  for (const auto& [name, values] : rope_tensors)
    tensors.push_back({.name = name, .shape = {std::ssize(values)}, .type = &ggml_type(GgmlType::kF32)});
  const GgufLayout places = gguf_layout(fields, std::move(tensors));

  for (const std::string& difference : gguf_differences(config))
    log_warning("{}: {}", model.native(), difference);
  const SafetensorsModel weights = SafetensorsModel::open(model);
  const MergedAdapters adapters(options.adapters, config, pool);
  check_disk_space(output, places.file_bytes);
  UnfinishedFile unfinished(output, places.file_bytes);
  unfinished.file().write_at(0, places.header);
  for (size_t i = 0; i < rope_tensors.size(); ++i)
    unfinished.file().write_at(places.tensors[plan.tensors.size() + i].offset_bytes,
                               std::as_bytes(std::span(rope_tensors[i].values)));
  TensorWriter writer(config, layout, plan, places.tensors, adapters, unfinished.file());
  load_weights(weights, config, layout,
               [&](int64_t begin, std::span<const float> values) { writer.write(begin, values); }, pool,
               {.progress = options.progress});
  unfinished.commit();
}

}  // namespace tessera
