#include "inference/loaded_model.h"

#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "formats/huggingface/lora_config.h"
#include "formats/json.h"
#include "io/file.h"
#include "model/families/families.h"
#include "platform/memory_info.h"
#include "weights/weight_reader.h"

namespace tessera {
namespace {

// Bytes that are free for what `device` will hold, for this process.
int64_t free_bytes_of(const Device& device) {
  const std::optional<Device::OwnMemory> own = device.own_memory();
  return own ? own->free_bytes : memory_info().free_for_process_bytes;
}

}  // namespace

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

void check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config, const std::string& model) {
  if (tokenizer.num_model_ids() <= config.vocab_size) return;
  fail(ExitCode::kBadConfig, "{}: the tokenizer has {}, config.json only vocab_size {}", model,
       count_of(tokenizer.num_model_ids(), "token"), config.vocab_size);
}

LoadedModel::LoadedModel(const ModelFolders& folders, DType dtype, const OpsFactory& make, ThreadPool& pool,
                         const LoadedModelOptions& options, Communicator& comm) {
  const auto& [folder, adapter, tokenizer] = folders;
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
  const ModelUse more = options.use ? options.use(*model_) : ModelUse();
  if (needed + node.size() * more.bytes > available) {
    fail(ExitCode::kBadConfig, "{}: the weights take {} as {}{}, but only {} of memory are free{}",
         folder.string(), format_bytes(needed), dtype_name(dtype),
         more.bytes == 0 ? "" : fmt::format(", {} {}", more.purpose, format_bytes(more.bytes)),
         format_bytes(available), device.own_memory() ? fmt::format(" on {}", device.name()) : "");
  }
  node.barrier({"memory is enough"});
  weights_ = read(folder, SafetensorsModel::open(folder), layout, pool, options, comm);
  if (adapter.empty()) {
    model_->bind_parameters(weights_.view, {});
    return;
  }
  model_->bind_frozen(weights_.view);
  adapters_ = read(adapter, SafetensorsModel::open(adapter / kAdapterFileName), model_->layout(), pool,
                   options, comm);
  model_->bind_parameters(adapters_.view, {});
}

LoadedModel::Weights LoadedModel::read(const std::filesystem::path& folder, const SafetensorsModel& file,
                                       const ParameterLayout& layout, ThreadPool& pool,
                                       const LoadedModelOptions& options, Communicator& comm) const {
  NodeGroup& node = comm.node();
  const DType dtype = model_->dtype();
  const int64_t size_bytes = layout.num_elements() * dtype_bytes(dtype);
  std::function<void(const LoadProgress&)> progress;
  if (comm.world().rank == 0 && options.progress)
    progress = [&](const LoadProgress& now) { options.progress(folder, now); };
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

void LoadedModel::reserve_for_evaluation(ActivationLimits limits, Communicator& comm) {
  const int64_t free_bytes = free_bytes_of(model_->device()) / comm.node().size();
  comm.node().barrier({"free memory"});  // before any rank allocates
  limits.pack_weights = true;
  limits.pack_weights = model_->activation_bytes(limits).total() <= free_bytes;
  const int64_t needed = model_->activation_bytes(limits).total();
  if (needed > free_bytes) {
    fail(ExitCode::kBadConfig,
         "activations take {} for {} at once, but only {} of memory are free{}; lower "
         "--per_device_eval_batch_size or --max_length",
         format_bytes(needed), format_count(limits.max_tokens, "token"), format_bytes(free_bytes),
         comm.node().size() == 1 ? "" : " for each rank");
  }
  model_->reserve(limits);
}

}  // namespace tessera
