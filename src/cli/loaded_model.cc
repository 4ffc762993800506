#include "cli/loaded_model.h"

#include <algorithm>

#include "base/error.h"
#include "base/float_types.h"
#include "base/text.h"
#include "checkpoint/model_folder.h"
#include "cli/terminal.h"
#include "formats/file_kind.h"
#include "formats/safetensors.h"
#include "ops/cpu_ops.h"
#include "platform/memory_info.h"

namespace tessera {
namespace {

// Writes float32 values as elements [begin, begin + values.size()) of the flat weights.
WeightSink weight_sink(TensorView weights) {
  if (weights.dtype() == DType::kF32) {
    float* data = weights.as<float>();
    return [data](int64_t begin, std::span<const float> values) {
      std::copy(values.begin(), values.end(), data + begin);
    };
  }
  bf16* data = weights.as<bf16>();
  return [data](int64_t begin, std::span<const float> values) {
    std::transform(values.begin(), values.end(), data + begin, [](float value) { return to_bf16(value); });
  };
}

}  // namespace

void declare_dtype_flag(FlagTable* table, std::string* target, const std::vector<std::string>& choices,
                        std::string help) {
  std::vector<std::string> accepted = choices;
  for (const std::string& choice : choices) {
    accepted.push_back(choice == "bfloat16" ? "bf16" : "fp" + choice.substr(choice.size() - 2));
  }
  table->add_choice("dtype", target, accepted, std::move(help)).value_name =
      fmt::format("{}", fmt::join(choices, "|"));
}

DType dtype_of_flag(const std::string& value) {
  if (value == "bfloat16" || value == "bf16") return DType::kBF16;
  return value.ends_with("16") ? DType::kF16 : DType::kF32;
}

LoadedModel::LoadedModel(const std::filesystem::path& folder, DType dtype, ThreadPool& pool,
                         const std::function<Use(const Model&)>& use, Communicator& comm) {
  check_is_model_folder(folder);
  const ModelConfig config = read_model_config(folder);
  ops_ = make_cpu_ops(pool);
  model_ = std::make_unique<Model>(config, dtype, *ops_);
  const ParameterLayout& layout = model_->layout();

  NodeGroup& node = comm.node();
  const int64_t needed = layout.num_elements() * dtype_bytes(dtype);
  const int64_t available = memory_info().free_for_process_bytes;
  const Use more = use ? use(*model_) : Use();
  if (needed + node.size() * more.bytes > available) {
    fail(ExitCode::kBadConfig, "{}: the weights take {} as {}{}, but only {} of memory are free",
         folder.string(), format_bytes(needed), dtype_name(dtype),
         more.bytes == 0 ? "" : fmt::format(", {} {}", more.purpose, format_bytes(more.bytes)),
         format_bytes(available));
  }
  node.barrier({"memory is enough"});
  weights_ = node.allocate("weights", needed);
  node.prefault(weights_, pool);
  const TensorView weights(weights_.data(), dtype, Shape({layout.num_elements()}));
  // Equal shares of the node's ranks.
  const auto share_begin = [&](int64_t index) { return layout.num_elements() * index / node.size(); };
  const ElementRange share = {share_begin(node.index()), share_begin(node.index() + 1)};
  StatusLine status;
  LoadOptions options;
  options.ranges = std::span(&share, 1);
  if (comm.world().rank == 0) {
    options.progress = [&](const LoadProgress& progress) {
      status.show(fmt::format("reading {}: {:.0f} % {:.1f} GB/s", folder.string(), 100 * progress.fraction(),
                              progress.bytes_per_second() * 1e-9));
    };
  }
  if (dtype == DType::kBF16) {
    options.bf16_destination = [&](int64_t begin, int64_t count) {
      return std::span(weights.as<bf16>() + begin, static_cast<size_t>(count));
    };
  }
  load_weights(SafetensorsModel::open(folder), config, layout, weight_sink(weights), pool, options);
  {
    const PatientScope patient(comm);  // disks may differ
    node.barrier({"weights read"});
  }
  model_->bind_parameters(weights, {});
}

}  // namespace tessera
