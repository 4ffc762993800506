#include "formats/deepspeed/deepspeed_keys.h"

namespace tessera {
namespace {

using Type = DeepSpeedType;
using Key = DeepSpeedKey;
using Section = DeepSpeedSection;

constexpr Type kBool = Type::kBool;
constexpr Type kCount = Type::kCount;
constexpr Type kInteger = Type::kInteger;
constexpr Type kNumber = Type::kNumber;
constexpr Type kText = Type::kText;
constexpr Type kList = Type::kList;
constexpr Type kObject = Type::kObject;
constexpr Type kAny = Type::kAny;

constexpr const char* kOwnExchange = "ranks exchange data layer by layer, each with its own buffer";
constexpr const char* kSharedByNode = "the ranks of a node always share its weights";
constexpr const char* kWholeModel = "checkpoints are whole models as Hugging Face folders";
constexpr const char* kOwnSums = "gradients are accumulated in float32, which needs no scaling";
constexpr const char* kInMemory = "weights, gradients and optimizer state stay in memory";
constexpr const char* kOwnLoops = "it concerns DeepSpeed's internals";
constexpr const char* kOwnProfile = "the time and the speed of every step are in metrics.jsonl";
constexpr const char* kModelDecides = "it is for models and pipelines that need it, and none here does";

constexpr Key used(const char* name, Type type, const char* alias = nullptr) {
  return {name, type, DeepSpeedTreatment::kUsed, "", alias};
}
constexpr Key used_or_auto(const char* name, Type type, const char* alias = nullptr) {
  Key key = used(name, type, alias);
  key.takes_auto = true;
  return key;
}
constexpr Key used(const char* name, const Section* section) {
  Key key = used(name, kObject);
  key.section = section;
  return key;
}
constexpr Key or_null(Key key) {
  key.takes_null = true;
  return key;
}
constexpr Key no_effect(const char* name, Type type, const char* reason, const char* alias = nullptr) {
  return {name, type, DeepSpeedTreatment::kNoEffect, reason, alias};
}
constexpr Key no_effect(const char* name, const Section* section, const char* reason) {
  Key key = no_effect(name, kObject, reason);
  key.section = section;
  return key;
}
constexpr Key silent(const char* name, Type type) { return {name, type, DeepSpeedTreatment::kSilent}; }
constexpr Key refused(const char* name, Type type, const char* harmless, const char* reason) {
  return {name, type, DeepSpeedTreatment::kRefused, reason, nullptr, harmless};
}
constexpr Key refused_or_auto(const char* name, Type type, const char* harmless, const char* reason) {
  Key key = refused(name, type, harmless, reason);
  key.takes_auto = true;
  return key;
}

constexpr Key kOffloadParamKeys[] = {
    used("device", kText),         or_null(used("nvme_path", kText)), silent("buffer_count", kCount),
    silent("buffer_size", kCount), silent("max_in_cpu", kCount),      silent("pin_memory", kBool),
};
constexpr Section kOffloadParam = {true, true, kOffloadParamKeys};

constexpr Key kOffloadOptimizerKeys[] = {
    used("device", kText),
    or_null(used("nvme_path", kText)),
    silent("buffer_count", kCount),
    silent("pin_memory", kBool),
    silent("pipeline", kBool),
    silent("pipeline_read", kBool),
    silent("pipeline_write", kBool),
    silent("fast_init", kBool),
    silent("ratio", kNumber),
    silent("super_offload", kBool),
    silent("cpuadam_cores_perc", kNumber),
};
constexpr Section kOffloadOptimizer = {true, true, kOffloadOptimizerKeys};

constexpr Key kLeafModuleKeys[] = {silent("classes", kList), silent("names", kList),
                                   silent("name_suffixes", kList)};
constexpr Section kLeafModule = {true, true, kLeafModuleKeys};

constexpr Key kLocoKeys[] = {silent("err_beta", kNumber), silent("reset_T", kInteger)};
constexpr Section kLoco = {false, true, kLocoKeys};

constexpr Key kZeroKeys[] = {
    used("stage", kInteger),
    no_effect("contiguous_gradients", kBool, kOwnLoops),
    no_effect("reduce_scatter", kBool, kOwnExchange),
    no_effect("reduce_bucket_size", kCount, kOwnExchange),
    no_effect("use_multi_rank_bucket_allreduce", kBool, kOwnExchange),
    no_effect("allgather_partitions", kBool, kOwnExchange),
    no_effect("allgather_bucket_size", kCount, kOwnExchange),
    or_null(used("overlap_comm", kBool)),
    used("compute_grad_norm", kBool),
    no_effect("load_from_fp32_weights", kBool, "master weights are always exact"),
    no_effect("elastic_checkpoint", kBool, kWholeModel),
    or_null(used("offload_param", &kOffloadParam)),
    or_null(used("offload_optimizer", &kOffloadOptimizer)),
    no_effect("sub_group_size", kCount, kOwnLoops),
    used("stage3_max_live_parameters", kCount, "max_live_parameters"),
    no_effect("stage3_max_reuse_distance", kCount, kOwnLoops, "max_reuse_distance"),
    used_or_auto("stage3_prefetch_bucket_size", kCount, "prefetch_bucket_size"),
    used_or_auto("stage3_param_persistence_threshold", kCount, "param_persistence_threshold"),
    no_effect("stage3_model_persistence_threshold", kCount, kOwnLoops, "model_persistence_threshold"),
    no_effect("stage3_gather_16bit_weights_on_model_save", kBool, "the whole model is always written",
              "gather_16bit_weights_on_model_save"),
    no_effect("stage3_module_granularity_threshold", kCount, kOwnLoops, "module_granularity_threshold"),
    no_effect("stage3_use_all_reduce_for_fetch_params", kBool, kOwnExchange,
              "use_all_reduce_for_fetch_params"),
    no_effect("stage3_allgather_sequential", kBool, kOwnExchange, "allgather_sequential"),
    no_effect("ignore_unused_parameters", kBool, "no parameter is unused"),
    no_effect("legacy_stage1", kBool, kOwnLoops),
    no_effect("round_robin_gradients", kBool, kOwnExchange),
    no_effect("parameter_alignment", kBool, kOwnLoops),
    no_effect("zero_hpz_partition_size", kCount, kSharedByNode),
    used("zero_quantized_weights", kBool),
    no_effect("zero_quantized_nontrainable_weights", kBool,
              "weights that are not trained are complete on every node"),
    used("zero_quantized_gradients", kBool),
    no_effect("zeropp_loco_param", &kLoco, "errors of quantized gradients are fed back whole"),
    no_effect("mics_shard_size", kInteger, kSharedByNode),
    no_effect("mics_hierarchical_params_gather", kBool, kSharedByNode),
    no_effect("memory_efficient_linear", kBool, kOwnLoops),
    no_effect("pipeline_loading_checkpoint", kBool, kOwnLoops),
    no_effect("override_module_apply", kBool, kOwnLoops),
    no_effect("log_trace_cache_warnings", kBool, kOwnLoops),
    no_effect("enable_sanity_checks", kBool, kOwnLoops),
    no_effect("save_muon_momentum_buffer_in_memory", kBool, "it stays in memory"),
    no_effect("leaf_module", &kLeafModule, kOwnLoops),
    refused("zenflow", kObject, nullptr,
            "it updates weights with gradients from earlier steps, which changes the result; leave it out"),
};
constexpr Section kZero = {true, true, kZeroKeys};

constexpr Key kBf16Keys[] = {
    used_or_auto("enabled", kBool),
    no_effect("immediate_grad_update", kBool, kOwnLoops),
    no_effect("check_grad_overflow", kBool,
              "a non-finite gradient ends the run with the weights of the previous step", "check_overflow"),
    refused("bf16_master_weights_and_grads", kBool, "false", "master weights are float32; write false"),
    refused("bf16_optimizer_states", kBool, "false", "optimizer state is float32; write false"),
};
constexpr Section kBf16 = {true, true, kBf16Keys};

constexpr Key kFp16Keys[] = {
    refused_or_auto("enabled", kBool, "false",
                    "float16 needs loss scaling; write \"bf16\": {\"enabled\": true} instead"),
    silent("auto_cast", kBool),
    silent("loss_scale", kNumber),
    silent("initial_scale_power", kInteger),
    silent("loss_scale_window", kNumber),
    silent("hysteresis", kInteger),
    silent("consecutive_hysteresis", kBool),
    silent("min_loss_scale", kNumber),
    silent("fp16_master_weights_and_grads", kBool),
};
constexpr Section kFp16 = {true, true, kFp16Keys};

constexpr const char* kNoAutocast = "weights and activations have the same type; write false and use bf16";
constexpr Key kAmpKeys[] = {refused_or_auto("enabled", kBool, "false", kNoAutocast),
                            silent("opt_level", kAny), silent("loss_scale", kAny)};
constexpr Section kAmp = {false, true, kAmpKeys};
constexpr Key kAutocastKeys[] = {refused_or_auto("enabled", kBool, "false", kNoAutocast),
                                 silent("dtype", kAny), silent("lower_precision_safe_modules", kAny)};
constexpr Section kAutocast = {true, true, kAutocastKeys};

constexpr Key kDataTypeKeys[] = {
    or_null(used("grad_accum_dtype", kText)),
    refused("param_dtype", kText, nullptr, "bf16 decides the type of the weights; leave it out"),
    refused("buffer_dtype", kText, nullptr, "bf16 decides the type of the weights; leave it out"),
    no_effect("keep_in_fp32_modules", kAny, "it is for buffers of a model, and none here has any"),
};
constexpr Section kDataTypes = {false, false, kDataTypeKeys};

constexpr Key kOptimizerKeys[] = {used("type", kText), or_null(used("params", kObject)),
                                  no_effect("legacy_fusion", kBool, kOwnLoops)};
constexpr Section kOptimizer = {false, false, kOptimizerKeys};
constexpr Key kSchedulerKeys[] = {used("type", kText), used("params", kObject)};
constexpr Section kScheduler = {false, false, kSchedulerKeys};

constexpr Key kOptimizerParamKeys[] = {
    used_or_auto("lr", kNumber),
    used_or_auto("betas", kList),
    used_or_auto("eps", kNumber),
    used_or_auto("weight_decay", kNumber),
    used("momentum", kNumber),
    refused("muon_lr", kNumber, nullptr, "there is one learning rate for all parameters; write lr"),
    refused("adam_lr", kNumber, nullptr, "there is one learning rate for all parameters; write lr"),
    silent("ns_method", kText),
    used("torch_adam", kBool),
    used("adam_w_mode", kBool),
    refused("bias_correction", kBool, "true", "AdamW corrects the bias of its moments; write true"),
    refused("amsgrad", kBool, "false", "write false"),
    refused("maximize", kBool, "false", "the loss is minimized; write false"),
    refused("fp32_optimizer_states", kBool, "true", "optimizer state is float32; write true"),
    refused("max_grad_norm", kNumber, nullptr,
            "DeepSpeed rejects it too; write gradient_clipping at the top level of the file"),
    silent("set_grad_none", kBool),
    silent("foreach", kBool),
    silent("fused", kBool),
    silent("capturable", kBool),
    silent("differentiable", kBool),
};

constexpr Key kSchedulerParamKeys[] = {
    used_or_auto("warmup_min_lr", kNumber),
    or_null(used_or_auto("warmup_max_lr", kNumber)),
    used_or_auto("warmup_num_steps", kInteger),
    used("warmup_type", kText),
    used_or_auto("total_num_steps", kCount),
    used("warmup_min_ratio", kNumber),
    used("cos_min_ratio", kNumber),
    used("lr_range_test_min_lr", kNumber),
    used("lr_range_test_step_size", kCount),
    used("lr_range_test_step_rate", kNumber),
    used("lr_range_test_staircase", kBool),
    used("cycle_min_lr", kNumber),
    used("cycle_max_lr", kNumber),
    used("decay_lr_rate", kNumber),
    used("cycle_first_step_size", kCount),
    or_null(used("cycle_second_step_size", kCount)),
    used("cycle_first_stair_count", kCount),
    or_null(used("cycle_second_stair_count", kCount)),
    used("decay_step_size", kCount),
    used("cycle_momentum", kBool),
    used("cycle_min_mom", kNumber),
    used("cycle_max_mom", kNumber),
    used("decay_mom_rate", kNumber),
    refused("last_batch_iteration", kInteger, "-1", "the schedule starts with the run; leave it out"),
};

constexpr Key kCheckpointKeys[] = {
    used("tag_validation", kText),
    no_effect("load_universal", kBool, kWholeModel),
    no_effect("use_node_local_storage", kBool, kWholeModel),
    no_effect("parallel_write", kAny, kOwnLoops),
    no_effect("checkpoint_serialization", kBool, kOwnLoops),
    no_effect("writer", kAny, kOwnLoops),
};
constexpr Section kCheckpoint = {false, false, kCheckpointKeys};

constexpr Key kActivationKeys[] = {
    silent("partition_activations", kBool),
    silent("cpu_checkpointing", kBool),
    silent("contiguous_memory_optimization", kBool),
    silent("synchronize_checkpoint_boundary", kBool),
    silent("profile", kBool),
    silent("number_checkpoints", kAny),
};
constexpr Section kActivation = {false, true, kActivationKeys};

constexpr Key kAioKeys[] = {
    used("block_size", kCount),     used("queue_depth", kCount),    silent("intra_op_parallelism", kCount),
    silent("thread_count", kCount), silent("single_submit", kBool), silent("overlap_events", kBool),
    silent("use_gds", kBool),
};
constexpr Section kAio = {false, true, kAioKeys};

constexpr Key kFileMonitorKeys[] = {used("enabled", kBool), used("output_path", kText),
                                    used("job_name", kText)};
constexpr Section kFileMonitor = {true, true, kFileMonitorKeys};
constexpr Key kWandbKeys[] = {used("enabled", kBool), silent("group", kText), silent("team", kText),
                              silent("project", kText)};
constexpr Section kWandb = {true, true, kWandbKeys};
constexpr Key kCometKeys[] = {
    used("enabled", kBool),          silent("samples_log_interval", kInteger),
    silent("project", kText),        silent("workspace", kText),
    silent("api_key", kText),        silent("experiment_name", kText),
    silent("experiment_key", kText), silent("online", kBool),
    silent("mode", kText),
};
constexpr Section kComet = {true, true, kCometKeys};

constexpr Key kProfilerKeys[] = {
    silent("enabled", kBool),         silent("recompute_fwd_factor", kNumber),
    silent("profile_step", kInteger), silent("module_depth", kInteger),
    silent("top_modules", kInteger),  silent("detailed", kBool),
    silent("output_file", kText),
};
constexpr Section kProfiler = {false, true, kProfilerKeys};
constexpr Key kCommsLoggerKeys[] = {silent("enabled", kBool), silent("verbose", kBool),
                                    silent("prof_all", kBool), silent("debug", kBool),
                                    silent("prof_ops", kList)};
constexpr Section kCommsLogger = {true, true, kCommsLoggerKeys};
constexpr Key kThroughputKeys[] = {silent("enabled", kBool), silent("synchronized", kBool)};
constexpr Section kThroughput = {true, true, kThroughputKeys};
constexpr Key kTimersKeys[] = {no_effect("throughput", &kThroughput, kOwnProfile)};
constexpr Section kTimers = {false, false, kTimersKeys};

constexpr Key kHybridEngineKeys[] = {
    silent("enabled", kBool),
    silent("max_out_tokens", kInteger),
    silent("inference_tp_size", kInteger),
    silent("release_inference_cache", kBool),
    silent("pin_parameters", kBool),
    silent("tp_gather_partition_size", kInteger),
    silent("enable_cuda_graph", kBool),
};
constexpr Section kHybridEngine = {true, true, kHybridEngineKeys};

constexpr Key kElasticityKeys[] = {
    refused("enabled", kBool, "false", "it chooses the batch size by the number of processes; write false"),
    silent("max_train_batch_size", kInteger),
    silent("micro_batch_sizes", kList),
    silent("min_gpus", kInteger),
    silent("max_gpus", kInteger),
    silent("min_time", kInteger),
    silent("prefer_larger_batch", kBool),
    silent("prefer_larger_batch_size", kBool),
    silent("ignore_non_elastic_batch_info", kBool),
    silent("version", kNumber),
    silent("model_parallel_size", kInteger),
    silent("num_gpus_per_node", kInteger),
};
constexpr Section kElasticity = {false, true, kElasticityKeys};

constexpr Key kTopLevelKeys[] = {
    // The batch and the step.
    or_null(used_or_auto("train_batch_size", kInteger)),
    used("sequence_parallel_size", kInteger),
    or_null(used_or_auto("train_micro_batch_size_per_gpu", kInteger)),
    or_null(used_or_auto("gradient_accumulation_steps", kInteger)),
    used_or_auto("gradient_clipping", kNumber),
    used("optimizer", &kOptimizer),
    used("scheduler", &kScheduler),
    or_null(used("bf16", &kBf16)),
    used("fp16", &kFp16),
    used("amp", &kAmp),
    used("torch_autocast", &kAutocast),
    used("data_types", &kDataTypes),
    used("zero_optimization", &kZero),
    used("gradient_allreduce_op", kText),
    used("checkpoint", &kCheckpoint),
    used("tensorboard", &kFileMonitor),
    used("csv_monitor", &kFileMonitor),
    used("wandb", &kWandb),
    used("comet", &kComet),
    // No effect.
    no_effect("managed_gradient_accumulation", kBool, kOwnLoops),
    no_effect("prescale_gradients", kBool, kOwnSums),
    no_effect("gradient_predivide_factor", kNumber, kOwnSums),
    or_null(used("communication_data_type", kText)),
    no_effect("seq_parallel_communication_data_type", kText,
              "ranks exchange heads in the type of activations", "seq_parallel_comm_data_type"),
    no_effect("sparse_gradients", kBool, kOwnExchange),
    no_effect("disable_allgather", kBool, kOwnExchange),
    no_effect("allgather_size", kCount, kOwnExchange),
    no_effect("dump_state", kBool, kOwnProfile),
    no_effect("disable_python_gc", kBool, "there is no Python"),
    no_effect("memory_breakdown", kBool, "a memory table is always shown before the first step"),
    no_effect("wall_clock_breakdown", kBool, kOwnProfile),
    no_effect("dataloader_drop_last", kBool,
              "it is for DeepSpeed's own data loader; the flag dataloader_drop_last decides"),
    no_effect("graph_harvesting", kBool, "nothing is compiled at run time"),
    no_effect("steps_per_print", kAny, "logging_steps decides when the loss is shown"),
    no_effect("vocabulary_size", kInteger, "the model's config.json has it"),
    no_effect("log_level", kText, "the flag log_level decides"),
    no_effect("zero_allow_untested_optimizer", kBool, kOwnLoops),
    no_effect("zero_force_ds_cpu_optimizer", kBool, kOwnLoops),
    no_effect("use_data_before_expert_parallelism", kBool, kModelDecides, "use_data_before_expert_parallel_"),
    no_effect("activation_checkpointing", &kActivation, "the flag gradient_checkpointing decides"),
    or_null(used("aio", &kAio)),
    no_effect("flops_profiler", &kProfiler, kOwnProfile),
    no_effect("comms_logger", &kCommsLogger, kOwnProfile),
    used("timers", &kTimers),
    no_effect("hybrid_engine", &kHybridEngine, "it is for generation between training steps"),
    no_effect("compile", kAny, "nothing is compiled at run time"),
    no_effect("autotuning", kAny, "it is for DeepSpeed's launcher"),
    no_effect("eigenvalue", kAny, "it is for quantization during training"),
    no_effect("sparse_attention", kAny, kModelDecides),
    no_effect("pipeline", kAny, kModelDecides),
    no_effect("expert_parallel", kAny, kModelDecides),
    no_effect("nebula", kAny, kWholeModel),
    no_effect("datastates_ckpt", kAny, kWholeModel),
    // Rejected if enabled.
    used("elasticity", &kElasticity),
    used("tensor_parallel", kObject),
    used("compression_training", kObject),
    used("curriculum_learning", kObject),
    used("data_efficiency", kObject),
    used("progressive_layer_drop", kObject),
    used("weight_quantization", kObject),
    used("quantize_training", kObject),
};

constexpr ForeignNames kTopLevelNames[] = {
    {"batch_size global_batch_size total_batch_size", "train_batch_size", nullptr},
    {"micro_batch_size micro_batch_size_per_gpu train_micro_batch_size per_device_train_batch_size",
     "train_micro_batch_size_per_gpu", nullptr},
    {"grad_accum grad_accum_steps gradient_accumulation accumulation_steps", "gradient_accumulation_steps",
     nullptr},
    {"clip_grad grad_clip max_grad_norm gradient_clip clip_grad_norm", "gradient_clipping", nullptr},
    {"zero zero_stage stage zero_optimisation zero_config", "zero_optimization", nullptr},
    {"optim", "optimizer", nullptr},
    {"lr_scheduler", "scheduler", nullptr},
    {"bfloat16_enabled bf16_enabled", "bf16", nullptr},
    {"lr learning_rate weight_decay betas eps", nullptr, "it belongs in optimizer.params"},
    {"lora* peft*", nullptr, "LoRA is a setting of the run, not of this file: see --finetuning_type"},
    {"quantization quantize_* fp8* weight_quantize*", nullptr, "quantized training is not supported"},
};
constexpr ForeignNames kOptimizerParamNames[] = {
    {"learning_rate", "lr", nullptr},
    {"wd decay", "weight_decay", nullptr},
    {"epsilon adam_epsilon", "eps", nullptr},
    {"beta beta1 beta2 adam_beta1 adam_beta2 beta_1 beta_2", "betas", nullptr},
};

}  // namespace

const DeepSpeedSection kDeepSpeedTopLevel = {false, false, kTopLevelKeys, kTopLevelNames};
const DeepSpeedSection kDeepSpeedOptimizerParams = {true, false, kOptimizerParamKeys, kOptimizerParamNames};
const DeepSpeedSection kDeepSpeedSchedulerParams = {true, false, kSchedulerParamKeys};

}  // namespace tessera
