#include "train/recovery/training_record.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr int64_t kFormat = 1;

const char* packing_name(Packing packing) {
  switch (packing) {
    case Packing::kNone:
      return "none";
    case Packing::kIsolated:
      return "isolated";
    case Packing::kJoined:
      return "joined";
    case Packing::kBestFit:
      return "bfd";
    case Packing::kBestFitSplit:
      return "bfd_split";
    case Packing::kWrapped:
      return "wrapped";
    case Packing::kKnapsack:
      return "greedy_knapsack";
    case Packing::kByRows:
      break;
  }
  TESSERA_CHECK(false, "packing {}", static_cast<int>(packing));
  return "";
}

double finite(const JsonNode& node) {
  const double value = node.number();
  if (!std::isfinite(value)) node.expected("a finite number");
  return value;
}

std::vector<double> finite_list(const JsonNode& node) {
  std::vector<double> values;
  for (const JsonNode& item : node.list()) values.push_back(finite(item));
  return values;
}

DataRecord parse_data(const JsonNode& fields) {
  DataRecord data;
  data.num_rows = fields["rows"].integer(1);
  data.num_tokens = fields["tokens"].integer(1);
  data.fingerprint = fields["fingerprint"].string();
  data.max_length = fields["max_length"].integer(1);
  data.packing = fields["packing"].string();
  data.shuffle = fields["shuffle"].boolean();
  data.seed = static_cast<uint64_t>(fields["seed"].integer(0));
  data.sampling = fields["sampling"].string_or("");
  data.drop_last = fields["drop_last"].boolean();
  data.splits_documents = fields["splits_documents"].boolean_or(false);
  data.micro_batch_size = fields["micro_batch_size"].integer(1);
  data.gradient_accumulation_steps = fields["gradient_accumulation_steps"].integer(1);
  data.world_size = fields["world_size"].integer(1);
  if (!fields["global_batch_size"].is_null()) data.global_batch_size = fields["global_batch_size"].integer(1);
  return data;
}

Progress parse_progress(const JsonNode& fields) {
  Progress progress;
  progress.step = fields["step"].integer(1);
  progress.epoch = finite(fields["epoch"]);
  progress.num_input_tokens_seen = fields["num_input_tokens_seen"].integer(0);
  progress.total_flos = finite(fields["total_flos"]);
  progress.total_loss = finite(fields["total_loss"]);
  progress.loss_since_log = finite(fields["loss_since_log"]);
  progress.losses_since_log = fields["losses_since_log"].integer(0);
  progress.num_updates = fields["num_updates"].integer(0);
  progress.num_skipped_in_a_row = fields["num_skipped_in_a_row"].integer(0);
  if (!fields["last_grad_norm"].is_null()) progress.last_grad_norm = finite(fields["last_grad_norm"]);
  return progress;
}

LossSpikeHistory parse_loss_spikes(const JsonNode& fields) {
  LossSpikeHistory history = {finite_list(fields["losses"]), finite_list(fields["grad_norms"])};
  if (history.losses.size() != history.grad_norms.size()) fields["grad_norms"].expected("as many as losses");
  return history;
}

PlateauState parse_plateau(const JsonNode& fields) {
  PlateauState plateau;
  plateau.learning_rate = finite(fields["learning_rate"]);
  if (!fields["best"].is_null()) plateau.best = finite(fields["best"]);
  plateau.num_bad = fields["num_bad"].integer(0);
  plateau.cooldown_left = fields["cooldown_left"].integer(0);
  return plateau;
}

BestModel parse_best_model(const JsonNode& fields) {
  BestModel best;
  best.metric = fields["metric"].string();
  best.greater_is_better = fields["greater_is_better"].boolean();
  best.value = finite(fields["value"]);
  best.step = fields["step"].integer(1);
  best.checkpoint_step = fields["checkpoint_step"].integer(0);
  best.num_not_better = fields["num_not_better"].integer(0);
  best.checkpoint_folder = fields["checkpoint_folder"].string_or("");
  return best;
}

uint64_t parse_sum(const JsonNode& node) {
  constexpr size_t kDigits = 16;
  const std::string& text = node.string();
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != kDigits || error != std::errc() || end != text.data() + text.size())
    node.expected("16 hexadecimal digits");
  return value;
}

ValueSums parse_base(const JsonNode& fields) {
  return {parse_sum(fields["values"]), parse_sum(fields["bfloat16"]), parse_sum(fields["float16"])};
}

// The keys of a pattern in order, since the first one that fits counts; JSON objects do not keep their order.
template <typename T>
Json keys_in_order(const std::vector<std::pair<std::string, T>>& pattern) {
  Json keys = Json::array();
  for (const auto& [key, value] : pattern) keys.push_back(key);
  return keys;
}

constexpr const char* kOrders[] = {"order of rank_pattern", "order of alpha_pattern"};

constexpr const char* kMeanOverRows = "mean over rows";

// The eval_loss of earlier versions, which must not be compared with today's.
void read_losses_per_token(Progress* progress) {
  if (progress->best.metric == "eval_loss") progress->best.metric = "eval_loss_per_token";
  if (progress->plateau) progress->plateau->best.reset();
}

// Arguments that change the numbers of later steps.
constexpr std::array kArgumentsWithEffect = {"dtype",
                                             "eval_dataset",
                                             "max_steps",
                                             "num_train_epochs",
                                             "learning_rate",
                                             "lr_scheduler_type",
                                             "lr_scheduler_kwargs",
                                             "warmup_steps",
                                             "warmup_ratio",
                                             "optim",
                                             "weight_decay",
                                             "weight_decay_norms",
                                             "adam_beta1",
                                             "adam_beta2",
                                             "adam_epsilon",
                                             "muon_momentum",
                                             "muon_adjust_lr_fn",
                                             "max_grad_norm",
                                             "average_tokens_across_devices",
                                             "clip_mode",
                                             "label_smoothing_factor",
                                             "lora_dropout",
                                             "quantization_bit",
                                             "load_in_8bit",
                                             "load_in_4bit",
                                             "bnb_4bit_use_double_quant",
                                             "neftune_noise_alpha",
                                             "early_stopping_patience",
                                             "early_stopping_threshold",
                                             "grad_accum_dtype",
                                             "zero_quantized_weights",
                                             "zero_quantized_gradients",
                                             "sync_every",
                                             "num_fragments",
                                             "fragment_sync_delay",
                                             "fragment_update_alpha",
                                             "outer_learning_rate",
                                             "outer_momentum",
                                             "loss_spike_policy",
                                             "loss_spike_window",
                                             "loss_spike_sigmas"};

Json argument(const TrainingRecord& record, const char* name) {
  const auto found = record.arguments.find(name);
  return found == record.arguments.end() ? Json(nullptr) : *found;
}

class DifferenceList {
 public:
  void compare(const std::string& name, const Json& then, const Json& now) {
    if (then != now) list_.push_back({name, then.dump(), now.dump()});
  }
  std::vector<Difference> take() { return std::move(list_); }

 private:
  std::vector<Difference> list_;
};

}  // namespace

BatchPlanOptions DataRecord::batch_options() const {
  BatchPlanOptions options;
  options.num_rows = num_rows;
  options.micro_batch_size = micro_batch_size;
  options.gradient_accumulation_steps = gradient_accumulation_steps;
  options.world_size = world_size;
  options.global_batch_size = global_batch_size;
  options.shuffle = shuffle;
  options.seed = seed;
  options.drop_last = drop_last;
  return options;
}

DataRecord data_record(const Dataset& dataset, int64_t max_length, Packing packing,
                       const BatchPlanOptions& options) {
  DataRecord data;
  // Neither is known of a stream.
  data.num_rows = options.supply == nullptr ? options.num_rows : 1;
  data.num_tokens = options.supply == nullptr ? dataset.num_tokens() : 1;
  data.fingerprint = dataset.fingerprint();
  data.max_length = max_length;
  data.packing = packing_name(packing);
  data.shuffle = options.shuffle;
  data.seed = options.seed;
  data.drop_last = options.drop_last;
  data.micro_batch_size = options.micro_batch_size;
  data.gradient_accumulation_steps = options.gradient_accumulation_steps;
  data.world_size = options.world_size;
  data.global_batch_size = options.global_batch_size;
  return data;
}

Json model_shape(const ModelConfig& config) {
  const Json written = Json::parse(write_model_config(config, "float32"));
  Json shape = Json::object();
  for (const char* name : {"model_type",
                           "vocab_size",
                           "hidden_size",
                           "intermediate_size",
                           "num_hidden_layers",
                           "num_attention_heads",
                           "num_key_value_heads",
                           "head_dim",
                           "max_position_embeddings",
                           "rms_norm_eps",
                           "rope_theta",
                           "rope_scaling",
                           "tie_word_embeddings",
                           "num_experts",
                           "num_local_experts",
                           "num_experts_per_tok",
                           "moe_intermediate_size",
                           "norm_topk_prob",
                           "decoder_sparse_step",
                           "mlp_only_layers",
                           "swiglu_alpha",
                           "swiglu_limit",
                           "attention_bias",
                           "mlp_bias",
                           "sliding_window",
                           "layer_types",
                           "d_model",
                           "d_kv",
                           "d_ff",
                           "num_layers",
                           "num_decoder_layers",
                           "num_heads",
                           "relative_attention_num_buckets",
                           "relative_attention_max_distance",
                           "feed_forward_proj",
                           "layer_norm_epsilon",
                           "scale_decoder_outputs"}) {
    if (written.contains(name)) shape[name] = written[name];
  }
  if (config.lora) {
    const Json adapters = Json::parse(write_lora_config(*config.lora));
    for (const char* name :
         {"r", "lora_alpha", "use_rslora", "target_modules", "rank_pattern", "alpha_pattern"}) {
      shape[name] = adapters[name];
    }
    shape[kOrders[0]] = keys_in_order(config.lora->rank_pattern);
    shape[kOrders[1]] = keys_in_order(config.lora->alpha_pattern);
    for (const char* name : {"exclude_modules", "layers_to_transform", "layers_pattern"}) {
      if (!adapters[name].is_null()) shape[name] = adapters[name];
    }
  }
  return shape;
}

std::string training_record_json(const TrainingRecord& record) {
  const DataRecord& data = record.data;
  const Progress& progress = record.progress;
  Json out = {{"format", kFormat},
              {"arguments", record.arguments},
              {"launch_id", record.launch_id},
              {"world_size", record.world_size},
              {"model", record.model},
              {"base", nullptr},
              {"data",
               {{"rows", data.num_rows},
                {"tokens", data.num_tokens},
                {"fingerprint", data.fingerprint},
                {"max_length", data.max_length},
                {"packing", data.packing},
                {"shuffle", data.shuffle},
                {"seed", static_cast<int64_t>(data.seed)},
                {"sampling", data.sampling},
                {"drop_last", data.drop_last},
                {"splits_documents", data.splits_documents},
                {"micro_batch_size", data.micro_batch_size},
                {"gradient_accumulation_steps", data.gradient_accumulation_steps},
                {"world_size", data.world_size},
                {"global_batch_size", or_null(data.global_batch_size)}}},
              {"progress",
               {{"step", progress.step},
                {"epoch", progress.epoch},
                {"num_input_tokens_seen", progress.num_input_tokens_seen},
                {"total_flos", progress.total_flos},
                {"total_loss", progress.total_loss},
                {"loss_since_log", progress.loss_since_log},
                {"losses_since_log", progress.losses_since_log},
                {"num_updates", progress.num_updates},
                {"num_skipped_in_a_row", progress.num_skipped_in_a_row},
                {"last_grad_norm", or_null(progress.last_grad_norm)}}},
              {"loss_spikes",
               {{"losses", record.progress.loss_spikes.losses},
                {"grad_norms", record.progress.loss_spikes.grad_norms}}},
              {"eval_loss", kMeanOverRows},
              {"plateau", nullptr},
              {"best_model", nullptr}};
  if (record.base) {
    out["base"] = {{"values", fmt::format("{:016x}", record.base->exact)},
                   {"bfloat16", fmt::format("{:016x}", record.base->as_bf16)},
                   {"float16", fmt::format("{:016x}", record.base->as_f16)}};
  }
  if (record.progress.plateau) {
    out["plateau"] = {{"learning_rate", record.progress.plateau->learning_rate},
                      {"best", or_null(record.progress.plateau->best)},
                      {"num_bad", record.progress.plateau->num_bad},
                      {"cooldown_left", record.progress.plateau->cooldown_left}};
  }
  if (const BestModel& best = progress.best; !best.metric.empty()) {
    out["best_model"] = {{"metric", best.metric},
                         {"greater_is_better", best.greater_is_better},
                         {"value", *best.value},
                         {"step", best.step},
                         {"checkpoint_step", best.checkpoint_step},
                         {"num_not_better", best.num_not_better},
                         {"checkpoint_folder", best.checkpoint_folder}};
  }
  return out.dump();
}

TrainingRecord parse_training_record(const std::string& text, const std::string& origin) {
  const Json json = parse_json(text, origin);
  const JsonNode fields(json, origin, "run");
  const int64_t format = fields["format"].integer(0);
  if (format != kFormat) {
    fail(ExitCode::kBadData, "{}: field 'run.format': expected {}, found {}: another version wrote it",
         origin, kFormat, format);
  }
  TrainingRecord record;
  record.arguments = fields["arguments"].object();
  record.launch_id = fields["launch_id"].string_or("");
  record.world_size = fields["world_size"].integer(1);
  record.model = fields["model"].object();
  if (!fields["base"].is_null()) record.base = parse_base(fields["base"]);
  const auto object = [&fields](const char* name) {
    fields[name].object();
    return fields[name];
  };
  record.data = parse_data(object("data"));
  record.progress = parse_progress(object("progress"));
  record.progress.loss_spikes = parse_loss_spikes(object("loss_spikes"));
  if (!fields["plateau"].is_null()) record.progress.plateau = parse_plateau(fields["plateau"]);
  if (!fields["best_model"].is_null()) record.progress.best = parse_best_model(fields["best_model"]);
  if (fields["eval_loss"].string_or("") != kMeanOverRows) read_losses_per_token(&record.progress);
  return record;
}

std::vector<Difference> forbidden_differences(const TrainingRecord& then, const TrainingRecord& now) {
  DifferenceList list;
  for (const auto& [name, value] : then.model.items()) {
    list.compare("model " + name, value, now.model.value(name, Json(nullptr)));
  }
  for (const auto& [name, value] : now.model.items()) {
    // Earlier versions did not note orders.
    const bool is_order = std::ranges::find(kOrders, name) != std::end(kOrders);
    if (!then.model.contains(name) && !is_order) list.compare("model " + name, nullptr, value);
  }
  const DataRecord &a = then.data, &b = now.data;
  list.compare("max_length", a.max_length, b.max_length);
  list.compare("packing", a.packing, b.packing);
  list.compare("rows of dataset", a.num_rows, b.num_rows);
  list.compare("tokens of dataset", a.num_tokens, b.num_tokens);
  list.compare("contents of dataset", a.fingerprint, b.fingerprint);
  list.compare("shuffle", a.shuffle, b.shuffle);
  if (a.shuffle && b.shuffle) list.compare("seed", a.seed, b.seed);
  list.compare("train_sampling_strategy", a.sampling, b.sampling);
  list.compare("dataloader_drop_last", a.drop_last, b.drop_last);
  if (!same_batch_arguments(then, now)) {
    list.compare("rows of a step", global_batch_rows(a.batch_options()),
                 global_batch_rows(b.batch_options()));
  }
  return list.take();
}

std::vector<Difference> allowed_differences(const TrainingRecord& then, const TrainingRecord& now) {
  // A schedule that watches evaluations continues with the rate it has reached.
  const bool keeps_rate =
      then.progress.plateau && argument(then, "lr_scheduler_type") == argument(now, "lr_scheduler_type");
  DifferenceList list;
  for (const char* name : kArgumentsWithEffect) {
    if (keeps_rate && std::string_view(name) == "learning_rate") continue;
    list.compare(name, argument(then, name), argument(now, name));
  }
  return list.take();
}

std::string differences_text(const std::vector<Difference>& differences) {
  constexpr int64_t kMaxChars = 60;
  std::string text;
  for (const Difference& difference : differences) {
    text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", difference.name,
                        printable(difference.then, kMaxChars), printable(difference.now, kMaxChars));
  }
  return text;
}

bool same_batch_arguments(const TrainingRecord& then, const TrainingRecord& now) {
  const auto same = [&](const char* name) { return argument(then, name) == argument(now, name); };
  return same("per_device_train_batch_size") && same("gradient_accumulation_steps") &&
         same("global_batch_size");
}

BatchPlanOptions resumed_batch_options(const DataRecord& then, const BatchPlanOptions& now) {
  BatchPlanOptions options = then.batch_options();
  options.mixture = now.mixture;
  options.supply = now.supply;
  options.length_groups = now.length_groups;
  options.whole_micro_batches = now.whole_micro_batches;
  // The number of steps stays, and so does the number of rows in each.
  if (now.supply != nullptr)
    options.num_rows = now.num_rows / global_batch_rows(now) * global_batch_rows(options);
  const bool same = then.micro_batch_size == now.micro_batch_size && then.world_size == now.world_size &&
                    then.gradient_accumulation_steps == now.gradient_accumulation_steps &&
                    then.global_batch_size == now.global_batch_size;
  if (!same) options.cut = StepCut{now.micro_batch_size, now.world_size};
  return options;
}

}  // namespace tessera
