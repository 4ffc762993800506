#include "forecast/time/step_walk.h"

#include <sys/mman.h>

#include "base/divide_up.h"
#include "base/error.h"
#include "base/rng.h"
#include "context/context_ops.h"
#include "context/slice_batch.h"
#include "model/families/families.h"
#include "ops/cpu_ops.h"

namespace tessera {
namespace {

// Memory with addresses only: no page can be read, written or counted as used.
class ReservedDevice final : public Device {
 public:
  std::string_view name() const override { return "reserved"; }
  DeviceBuffer allocate(int64_t size_bytes) override {
    if (size_bytes == 0) return {*this, nullptr, 0};
    const auto size = static_cast<size_t>(size_bytes);
    void* const mapped =
        mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, /*offset=*/0);
    if (mapped == MAP_FAILED) {
      fail(ExitCode::kBadConfig, "no {} bytes of address space for planning a step: is RLIMIT_AS set?", size);
    }
    return {*this,
            std::shared_ptr<std::byte>(static_cast<std::byte*>(mapped),
                                       [size](std::byte* data) { munmap(data, size); }),
            size_bytes};
  }
  void copy_from_host(std::span<const std::byte>, std::byte*) override {}
  void copy_to_host(const std::byte*, std::span<std::byte>) override {
    TESSERA_CHECK(false, "a walk has nothing to copy");
  }
  void synchronize() override {}
};

class WalkingOps final : public ForwardingOps {
 public:
  WalkingOps(Ops& ops, ReservedDevice& device, FunctionRef<void(const OpCall&)> visit)
      : ForwardingOps(ops), device_(device), visit_(visit) {}

  Device& device() const override { return device_; }
  int64_t workspace_bytes(const OpsLimits&) const override { return 0; }
  void bind_workspace(std::span<std::byte>) override {}
  // The caller decides whether weights are kept packed, as the plan may be for another machine.
  int64_t packed_weight_bytes(int64_t N, int64_t K, DType dtype) const override {
    return N * K * dtype_bytes(dtype);
  }
  // Without targets a model would have no gradient to compute.
  LossSums cross_entropy(ConstTensorView logits, std::span<const int32_t> targets, float label_smoothing,
                         float grad_scale, TensorView dlogits) override {
    ForwardingOps::cross_entropy(logits, targets, label_smoothing, grad_scale, dlogits);
    return {0, std::ssize(targets)};
  }
  LossSums cross_entropy_loss(ConstTensorView rows, std::span<const int32_t> targets, int64_t vocab_size,
                              float label_smoothing) override {
    ForwardingOps::cross_entropy_loss(rows, targets, vocab_size, label_smoothing);
    return {0, std::ssize(targets)};
  }

 private:
  void around(const OpCall& call, FunctionRef<void()>) override { visit_(call); }

  ReservedDevice& device_;
  FunctionRef<void(const OpCall&)> visit_;
};

std::vector<CountedWork> counted(const std::map<OpWork, int64_t>& counts) {
  std::vector<CountedWork> result;
  for (const auto& [work, count] : counts) result.push_back({work, count});
  return result;
}

}  // namespace

PackedBatch random_batch(const PassShape& shape, int64_t vocab_size, bool with_sources) {
  PackedBatch batch;
  batch.cu_seqlens = {0};
  const CounterRng rng(1, 1);
  const auto append = [&](int64_t length, bool is_target) {
    for (int64_t position = 0; position < length; ++position) {
      const auto t = static_cast<double>(rng.uniform(batch.input_ids.size()));
      batch.input_ids.push_back(vocab_size > 1 ? static_cast<int32_t>(t * static_cast<double>(vocab_size))
                                               : 0);
      batch.positions.push_back(static_cast<int32_t>(position));
      if (is_target && position > 0) batch.targets.back() = batch.input_ids.back();
      batch.targets.push_back(kIgnoredLabel);
    }
    if (is_target) batch.num_targets += length - 1;
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.input_ids.size()));
  };
  const int64_t source_tokens = with_sources ? divide_up(shape.row_tokens, 2) : 0;
  if (with_sources) batch.num_sources = shape.rows;
  for (int64_t row = 0; row < batch.num_sources; ++row) append(source_tokens, /*is_target=*/false);
  for (int64_t row = 0; row < shape.rows; ++row) append(shape.row_tokens - source_tokens, /*is_target=*/true);
  return batch;
}

void walk_pass(const ModelConfig& config, DType dtype, const PassShape& shape,
               FunctionRef<void(const OpCall& call, const WalkPosition& position)> visit) {
  WalkPosition position;
  const auto visit_call = [&](const OpCall& call) { visit(call, position); };
  ThreadPool pool(1);
  const std::unique_ptr<Ops> cpu_ops = make_cpu_ops(pool);
  ReservedDevice device;
  WalkingOps walking_ops(*cpu_ops, device, visit_call);
  ContextOps context_ops(walking_ops, shape.context_size);
  Ops& ops = shape.context_size > 1 ? static_cast<Ops&>(context_ops) : walking_ops;
  const std::unique_ptr<TrainableModel> model = make_model(config, dtype, ops);
  const int64_t count = model->layout().num_elements();
  const DeviceBuffer weights = device.allocate(count * dtype_bytes(dtype));
  const DeviceBuffer gradients = device.allocate(count * dtype_bytes(DType::kF32));
  model->bind_parameters(weights.view(dtype, {count}), gradients.view(DType::kF32, {count}));
  const DeviceBuffer frozen = device.allocate(model->frozen_bytes());
  if (model->is_adapted()) model->bind_frozen(frozen.view(DType::kU8, {frozen.size_bytes()}));
  ActivationLimits limits = {tokens_of_member(shape.num_tokens(), shape.context_size), shape.row_tokens};
  limits.gradient_checkpointing = shape.gradient_checkpointing;
  limits.num_kept_outputs = shape.num_kept_outputs;
  limits.pack_weights = shape.pack_weights;
  model->reserve(limits);
  model->call_between_layers([&](int64_t group, WeightUse use) {
    position = {group, use == WeightUse::kForward};
    return true;
  });
  // Nothing reads the tokens.
  PackedBatch batch = random_batch(shape, /*vocab_size=*/1, config.encoder_decoder.has_value());
  if (shape.context_size > 1) {
    PackedBatch slice;
    std::vector<int32_t> cu_seqlens;
    slice_batch(batch, shape.context_size, 0, &slice, &cu_seqlens);
    context_ops.set_sequences(cu_seqlens);
    batch = slice;
  }
  const std::vector<uint64_t> dropout_tokens(static_cast<size_t>(batch.num_tokens()));
  model->draw_dropout({.tokens = dropout_tokens});
  double squares = 0;
  model->forward_backward(
      batch, /*grad_scale=*/1, /*label_smoothing=*/0,
      {shape.adds ? Update::kAdd : Update::kOverwrite, shape.squares ? &squares : nullptr});
}

StepWalks::StepWalks(const ModelConfig& config, DType dtype)
    : config_(config), dtype_(dtype), layout_(parameter_layout(config)) {}

const PassWork& StepWalks::pass(const PassShape& shape) {
  const auto [at, is_new] = passes_.try_emplace(shape);
  if (!is_new) return at->second;
  std::map<OpWork, int64_t> forward, backward, packing;
  walk_pass(config_, dtype_, shape, [&](const OpCall& call, const WalkPosition& position) {
    const OpWork work = work_of(call);
    ++(work.kind == WorkKind::kPacking ? packing : position.is_forward ? forward : backward)[work];
  });
  at->second = {counted(forward), counted(backward), counted(packing)};
  return at->second;
}

}  // namespace tessera
