#include "cli/model/loaded_model.h"

#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "cli/model/adapter_folders.h"
#include "cli/terminal/terminal.h"
#include "formats/file_kind.h"
#include "formats/json.h"
#include "formats/safetensors/safetensors.h"
#include "io/file.h"
#include "model/families/families.h"
#include "platform/memory_info.h"
#include "weights/model_folder.h"
#include "weights/weight_reader.h"

namespace tessera {
std::vector<int64_t> generation_end_ids(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kGenerationConfigName;
  std::error_code error;
  if (folder.empty() || !std::filesystem::exists(path, error)) return {};
  const std::string origin = path.native();
  const Json document = parse_json(read_text_file(path), origin);
  const JsonNode ends = JsonNode(document, origin)["eos_token_id"];
  std::vector<int64_t> ids;
  if (ends.is_null()) return ids;
  for (const JsonNode& end : ends.is_list() ? ends.list() : std::vector{ends}) ids.push_back(end.integer());
  return ids;
}

OpsFactory ops_of_flag(DeviceKind device) {
  return [device](ThreadPool& pool) { return make_ops(device, pool); };
}

void check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config, const std::string& model) {
  if (tokenizer.num_model_ids() <= config.vocab_size) return;
  fail(ExitCode::kBadConfig, "{}: the tokenizer has {}, config.json only vocab_size {}", model,
       count_of(tokenizer.num_model_ids(), "token"), config.vocab_size);
}

int64_t free_bytes_of(const Device& device) {
  const std::optional<Device::OwnMemory> own = device.own_memory();
  return own ? own->free_bytes : memory_info().free_for_process_bytes;
}

LoadedModel::LoadedModel(const std::filesystem::path& model, const std::filesystem::path& given_adapter,
                         DType dtype, const OpsFactory& make, ThreadPool& pool,
                         const std::function<Use(const TrainableModel&)>& use, Communicator& comm) {
  check_is_model_folder(model);
  const bool is_adapter = given_adapter.empty() && is_adapter_folder(model);
  const std::filesystem::path folder = is_adapter ? std::filesystem::path(base_model_of(model)) : model;
  const std::filesystem::path adapter = is_adapter ? model : given_adapter;
  ModelConfig config = read_model_config(folder);
  end_ids_.insert(config.eos_token_ids.begin(), config.eos_token_ids.end());
  for (const std::filesystem::path& part : {folder, adapter}) {
    for (const int64_t id : generation_end_ids(part)) end_ids_.insert(id);
  }
  if (!adapter.empty()) config.lora = read_lora_config(adapter);
  ops_ = make(pool);
  const Device& device = ops_->device();
  if (device.own_memory() && comm.world().world_size > 1) {
    fail(ExitCode::kBadConfig, "a job of {} ranks is not available on {}: it has one rank",
         comm.world().world_size, device.name());
  }
  model_ = make_model(config, dtype, *ops_);
  const ParameterLayout& layout = model_->weight_layout();

  NodeGroup& node = comm.node();
  const int64_t needed =
      (layout.num_elements() + (adapter.empty() ? 0 : model_->layout().num_elements())) * dtype_bytes(dtype);
  const int64_t available = free_bytes_of(device);
  const Use more = use ? use(*model_) : Use();
  if (needed + node.size() * more.bytes > available) {
    fail(ExitCode::kBadConfig, "{}: the weights take {} as {}{}, but only {} of memory are free{}",
         folder.string(), format_bytes(needed), dtype_name(dtype),
         more.bytes == 0 ? "" : fmt::format(", {} {}", more.purpose, format_bytes(more.bytes)),
         format_bytes(available), device.own_memory() ? fmt::format(" on {}", device.name()) : "");
  }
  node.barrier({"memory is enough"});
  weights_ = read(SafetensorsModel::open(folder), layout, pool, comm);
  if (adapter.empty()) {
    model_->bind_parameters(weights_.view, {});
    return;
  }
  model_->bind_frozen(weights_.view);
  adapters_ = read(SafetensorsModel::open(adapter / kAdapterFileName), model_->layout(), pool, comm);
  model_->bind_parameters(adapters_.view, {});
}

LoadedModel::Weights LoadedModel::read(const SafetensorsModel& file, const ParameterLayout& layout,
                                       ThreadPool& pool, Communicator& comm) const {
  NodeGroup& node = comm.node();
  const DType dtype = model_->dtype();
  const int64_t size_bytes = layout.num_elements() * dtype_bytes(dtype);
  StatusLine status;
  std::function<void(const LoadProgress&)> progress;
  if (comm.world().rank == 0) {
    progress = [&](const LoadProgress& now) {
      status.show(fmt::format("reading {}: {:.0f} % {:.1f} GB/s",
                              file.files().front()->path().parent_path().native(), 100 * now.fraction(),
                              now.bytes_per_second() * 1e-9));
    };
  }
  WeightReader reader(file, config(), layout, pool, progress);
  Weights weights;
  if (model_->device().own_memory()) {
    weights.on_device = model_->device().allocate(size_bytes);
    weights.view = weights.on_device.view(dtype, {layout.num_elements()});
    reader.expect_all();
    load_by_groups(reader, weights.view);
    return weights;
  }
  weights.of_node = node.allocate("weights", size_bytes);
  node.prefault(weights.of_node, pool);
  weights.view = {weights.of_node.data(), dtype, {layout.num_elements()}};
  // Each rank of the node reads an equal share.
  const auto share_begin = [&](int64_t index) { return layout.num_elements() * index / node.size(); };
  const ElementRange share = {share_begin(node.index()), share_begin(node.index() + 1)};
  reader.read(share, weights.view.rows(share.begin, share.end));
  {
    const PatientScope patient(comm);  // disks may differ
    node.barrier({"weights read"});
  }
  return weights;
}

}  // namespace tessera
