#include "bench/step/train_step_bench.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/kernels/verify.h"
#include "bench/step/step_sample.h"
#include "bench/step/timed_ops.h"
#include "devices/measure/random_tensor.h"
#include "forecast/time/step_walk.h"
#include "kernels/quantized_weight/quantized_weight.h"
#include "model/initialize.h"
#include "model/llama/llama_model.h"
#include "ops/device_peak.h"
#include "optim/elementwise.h"
#include "optim/optimizer_state.h"
#include "plan/passes.h"
#include "platform/memory_info.h"
#include "shard/parameter_store.h"

namespace tessera {
namespace {

// The vocabulary when only the decoder layers run: embedding and LM head then take next to no memory.
constexpr int64_t kNoHeadVocabulary = 32;
constexpr float kGradientScale =
    1e-3f;  // standard deviation of the gradient at the last layer's output, without head
constexpr double kLearningRate = 1e-5;

ModelConfig effective_config(const TrainStepOptions& options) {
  ModelConfig config = options.config;
  if (!options.with_head) config.vocab_size = kNoHeadVocabulary;
  TESSERA_CHECK(config.vocab_size > 0, "no vocabulary");
  return config;
}

ActivationLimits limits_of(const TrainStepOptions& options, int64_t num_rows) {
  ActivationLimits limits = {num_rows * options.max_length, options.max_length};
  limits.gradient_checkpointing = options.gradient_checkpointing;
  limits.pack_weights = options.pack_weights;
  return limits;
}

// The trained parameters: all, or those of the layers.
std::vector<ParameterRange> trained_ranges(const ParameterLayout& layout, const TrainStepOptions& options) {
  std::vector<ParameterRange> ranges;
  for (const Parameter& parameter : layout.parameters()) {
    const bool in_layer = 1 <= parameter.group && parameter.group <= options.config.num_hidden_layers;
    if (!options.with_head && !in_layer) continue;
    ranges.push_back({parameter.offset, parameter.num_elements, parameter.weight_decay});
  }
  return ranges;
}

// Random weights with the distribution of initialize_parameter, but generated faster.
void fill_weight(const Parameter& parameter, const ModelConfig& config, TensorView tensor, ThreadPool& pool) {
  if (parameter.shape.size() == 2) {
    fill_random(tensor, hash_name(parameter.name) % 1000, static_cast<float>(config.initializer_range), pool);
  } else {
    initialize_parameter(parameter, config, 1, 0, tensor);
  }
}

void fill_weights(const ParameterLayout& layout, const ModelConfig& config, TensorView weights,
                  ThreadPool& pool) {
  for (const Parameter& parameter : layout.parameters()) {
    fill_weight(parameter, config, weights.rows(parameter.offset, parameter.offset + parameter.num_elements),
                pool);
  }
}

// Restarts the measurement of peak resident memory. False if the system does not support it.
bool reset_peak_resident_bytes() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
  return static_cast<bool>(file.flush());
}

// A step and what it works on.
class TrainStep {
 public:
  TrainStep(const TrainStepOptions& options, const OpsFactory& make, ThreadPool& pool)
      : options_(options),
        pool_(pool),
        base_ops_(make(pool)),
        ops_(*base_ops_),
        clock_(base_ops_->device().make_clock()),
        config_(effective_config(options)),
        model_(config_, options.dtype, ops_) {
    const int64_t accumulation = options.gradient_accumulation_steps;
    const int64_t merged = options.merge_micro_batches == AutoChoice::kNever ? 1
                           : options.merge_micro_batches == AutoChoice::kAlways
                               ? accumulation
                               : micro_batches_per_pass(model_, limits_of(options, options.micro_batch),
                                                        accumulation, AdamW::kStateTensors);
    pass_rows_ = merged * options.micro_batch;
  }

  // Bytes of everything that allocate() allocates.
  int64_t planned_bytes() const {
    const int64_t num_elements = model_.layout().num_elements();
    const int64_t stream_bytes = pass_tokens() * config_.hidden_size * dtype_bytes(options_.dtype);
    return num_elements * (dtype_bytes(options_.dtype) + dtype_bytes(DType::kF32)) + model_.frozen_bytes() +
           optimizer_state_bytes(AdamW::kStateTensors, num_elements, options_.dtype) +
           model_.activation_bytes(limits_of(options_, pass_rows_)).total() +
           (options_.with_head ? 0 : 2 * stream_bytes);
  }

  void allocate() {
    is_on_device() ? allocate_on_device() : allocate_on_host();
    model_.reserve(limits_of(options_, pass_rows_));
    for (int64_t rows = options_.step_rows(); rows > 0; rows -= pass_rows_) {
      passes_.push_back(random_batch({.rows = std::min(rows, pass_rows_), .row_tokens = options_.max_length},
                                     config_.vocab_size, /*with_sources=*/false));
    }
    if (options_.with_head) return;
    const Shape stream = {pass_tokens(), config_.hidden_size};
    x_TD_.emplace(options_.dtype, stream, 1, 1.0f, pool_);
    dx_TD_.emplace(options_.dtype, stream, 2, kGradientScale, pool_);
  }

  // Runs one step; on the host the gradient norm and the update are compared with float64. (The benchmarks of
  // single operations compare those.)
  Verification verify() {
    Verification result;
    if (is_on_device()) {
      run([] { return 1.0; });
    } else {
      StepSample unused;
      for (size_t i = 0; i < passes_.size(); ++i) run_pass(i, &unused);
      clock_->finish();
      verify_optimizer(result);
    }
    ops_.reset();
    return result;
  }

  StepSample run(const Participant& peak) {
    StepSample times;
    std::vector<double> peaks = {peak()};
    for (size_t i = 0; i < passes_.size(); ++i) {
      run_pass(i, &times);
      clock_->finish();
      peaks.push_back(peak());
    }
    time(&times.optimizer, [&] { update(std::sqrt(gradient_squares_)); });
    clock_->finish();
    if (!is_on_device()) ops_.add_seconds("adamw", times.optimizer);
    time(&times.optimizer, [&] { model_.refresh_packed_forms(); });
    clock_->finish();
    for (const double value : peaks) times.peak_tflops += value / static_cast<double>(peaks.size());
    return times;
  }

  int64_t pass_tokens() const { return pass_rows_ * options_.max_length; }
  double flop() const {
    double flop = 0;
    for (const PackedBatch& batch : passes_) {
      flop += model_.flops(batch.cu_seqlens, batch.num_sources, options_.with_head ? batch.num_targets : 0)
                  .forward_backward();
    }
    return flop;
  }
  int64_t num_parameters() const {
    int64_t count = 0;
    for (const ParameterRange& range : trained_ranges(model_.layout(), options_)) count += range.count;
    return count;
  }
  TimedOps& ops() { return ops_; }
  Device& device() { return base_ops_->device(); }
  bool is_on_device() const { return base_ops_->device().own_memory().has_value(); }

 private:
  TensorView weights() const { return {weights_.data(), options_.dtype, {model_.layout().num_elements()}}; }
  TensorView gradients() const { return {gradients_.data(), DType::kF32, {model_.layout().num_elements()}}; }

  void allocate_on_host() {
    const int64_t num_elements = model_.layout().num_elements();
    weights_ = PageBuffer(num_elements * dtype_bytes(options_.dtype));
    gradients_ = PageBuffer(num_elements * dtype_bytes(DType::kF32));
    fill_weights(model_.layout(), config_, weights(), pool_);
    model_.bind_parameters(weights(), gradients());
    if (model_.is_adapted()) allocate_frozen();
    optimizer_.emplace(std::make_unique<AdamW>(OptimizerSpec{}), trained_ranges(model_.layout(), options_),
                       weights(), gradients(), pool_);
  }

  // Allocates as training on a device does. Without a head the embedding is updated as well: 32 rows.
  void allocate_on_device() {
    const ParameterLayout& layout = model_.layout();
    if (model_.is_adapted()) {
      frozen_on_device_ = device().allocate(model_.frozen_bytes());
      const int64_t num_frozen = model_.weight_layout().num_elements();
      const TensorView frozen = frozen_on_device_.view(options_.dtype, {num_frozen});
      for_weights(model_.weight_layout(), options_.dtype, [&](int64_t begin, TensorView values) {
        copy(values, frozen.rows(begin, begin + values.num_elements()));
      });
      model_.bind_frozen(frozen);
    }
    on_device_.emplace(model_, ZeroSettings(), std::make_unique<AdamW>(OptimizerSpec{}),
                       /*decay_all=*/false, single_process(), pool_);
    for_weights(layout, DType::kF32, [&](int64_t begin, TensorView values) {
      const auto count = static_cast<size_t>(values.num_elements());
      on_device_->state().write(StateKind::kMaster, begin, {values.as<float>(), count});
    });
    on_device_->state().written();
  }

  // Random weights of one parameter after another, as elements of the host.
  void for_weights(const ParameterLayout& layout, DType dtype,
                   const std::function<void(int64_t begin, TensorView values)>& take) {
    for (const Parameter& parameter : layout.parameters()) {
      const PageBuffer memory(parameter.num_elements * dtype_bytes(dtype));
      const TensorView values(memory.data(), dtype, {parameter.num_elements});
      fill_weight(parameter, config_, values, pool_);
      take(parameter.offset, values);
    }
  }

  // Device time of `body`, in *sum after clock_->finish().
  void time(double* sum, FunctionRef<void()> body) {
    clock_->begin();
    body();
    clock_->end(sum);
  }

  void allocate_frozen() {
    frozen_ = PageBuffer(model_.frozen_bytes());
    const int64_t num_frozen = model_.weight_layout().num_elements();
    if (config_.base_quantization == Quantization::kNone) {
      const TensorView frozen(frozen_.data(), options_.dtype, {num_frozen});
      fill_weights(model_.weight_layout(), config_, frozen, pool_);
      return model_.bind_frozen(frozen);
    }
    for (const Parameter& parameter : model_.weight_layout().parameters()) {
      const BoundParameters::Place place =
          model_.frozen_place(parameter, frozen_.data() + model_.frozen_begin(parameter.group));
      if (place.elements == nullptr) {
        fill_quantized(parameter, place);
      } else {
        initialize_parameter(parameter, config_, 1, 0,
                             {place.elements, options_.dtype, {parameter.num_elements}});
      }
    }
    model_.bind_frozen({frozen_.data(), DType::kU8, {model_.frozen_bytes()}});
  }

  // Repeats the same random rows: memory for all of them as float32 would count as the step's.
  void fill_quantized(const Parameter& parameter, const BoundParameters::Place& place) {
    const int64_t num_rows = parameter.shape[0], K = parameter.shape[1];
    const int64_t most_rows = std::min<int64_t>(num_rows, 64);
    RandomTensor rows(DType::kF32, {most_rows, K}, hash_name(parameter.name) % 1000,
                      static_cast<float>(config_.initializer_range), pool_);
    MatrixQuantizer quantizer(place.matrix, place.first_row);
    for (int64_t row = 0; row < num_rows; row += most_rows) {
      quantizer.add(rows.view().rows(0, std::min(most_rows, num_rows - row)), pool_);
    }
  }

  // Clipped to a norm of one, as training does.
  double gradient_scale(double norm) const { return 1 / std::max(1.0, norm); }
  void update(double norm) {
    const OptimizerStep step = {++step_, kLearningRate, gradient_scale(norm)};
    if (is_on_device()) return on_device_->update(step, {});
    optimizer_->update(step);
    model_.weights_changed();
  }

  void run_pass(size_t index, StepSample* times) {
    const PackedBatch& batch = passes_[index];
    gradient_squares_ = 0;
    const WeightUpdate update = {index == 0 ? Update::kOverwrite : Update::kAdd,
                                 index + 1 == passes_.size() ? &gradient_squares_ : nullptr};
    time(&times->forward, [&] { model_.begin(batch); });
    Activations& activations = model_.activations();
    const int64_t num_tokens = batch.num_tokens();  // of the last pass: maybe fewer
    if (!options_.with_head)
      copy(x_TD_->view().rows(0, num_tokens), activations.layers.front().attention.x_TD);
    time(&times->forward, [&] {
      if (options_.with_head) model_.forward_embedding(batch);
      model_.forward_layers();
    });
    if (options_.with_head) {
      const int64_t num_targets = options_.step_rows() * (options_.max_length - 1);
      const float grad_scale = 1.0f / static_cast<float>(num_targets);
      time(&times->head,
           [&] { model_.forward_backward_head(batch, grad_scale, /*label_smoothing=*/0, update); });
    } else {
      copy(dx_TD_->view().rows(0, num_tokens), activations.dx_TD);
    }
    time(&times->backward, [&] {
      model_.backward_layers(update);
      if (options_.with_head) model_.backward_embedding(batch, update);
    });
  }

  // Checks the gradient norm of the step, and the first update of a sample of weights; with zero moments
  // AdamW's is
  //   w -= lr g / (|g| + eps)
  void verify_optimizer(Verification& result) {
    Verifier verifier("optimizer, " + format_count(num_parameters(), "parameter"), result);
    const double norm = std::sqrt(gradient_squares_);
    const double expected_norm = std::sqrt(sum_of_squares_of_ranges());
    constexpr double kDoubleRounding = 0x1p-53;
    verifier.compare("norm", 0, 0, norm, expected_norm,
                     static_cast<double>(num_parameters()) * kDoubleRounding * expected_norm);

    const std::vector<ParameterRange> ranges = trained_ranges(model_.layout(), options_);
    std::vector<int64_t> elements;
    for (const ParameterRange& range : ranges) {
      constexpr int64_t kPerTensor = 16;
      for (const int64_t i : sample_indices(range.count, kPerTensor)) elements.push_back(range.begin + i);
    }
    const auto master = [&](int64_t i) {
      float value = 0;
      optimizer_->read_master(i, {&value, 1});
      return static_cast<double>(value);
    };
    std::vector<double> before;
    for (const int64_t i : elements) before.push_back(master(i));
    update(norm);
    for (size_t i = 0; i < elements.size(); ++i) {
      const double g = element(gradients(), elements[i]) * gradient_scale(norm);
      const double expected = before[i] - kLearningRate * g / (std::abs(g) + OptimizerSpec{}.epsilon);
      verifier.compare("weight", 0, elements[i], master(elements[i]), expected,
                       4 * kFloatEps * std::abs(before[i]) + 1e-5 * kLearningRate);
    }
  }

  double sum_of_squares_of_ranges() const {
    const std::vector<ParameterRange> ranges = trained_ranges(model_.layout(), options_);
    const float* gradient = gradients().as<float>();
    std::vector<double> sums(ranges.size());
    pool_.parallel_for(static_cast<int64_t>(ranges.size()), [&](int64_t index) {
      const ParameterRange& range = ranges[static_cast<size_t>(index)];
      double sum = 0;
      for (int64_t i = range.begin; i < range.begin + range.count; ++i) {
        sum += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
      }
      sums[static_cast<size_t>(index)] = sum;
    });
    return std::accumulate(sums.begin(), sums.end(), 0.0);
  }

  TrainStepOptions options_;
  ThreadPool& pool_;
  std::unique_ptr<Ops> base_ops_;
  TimedOps ops_;
  std::unique_ptr<DeviceClock> clock_;
  ModelConfig config_;
  LlamaModel model_;
  PageBuffer weights_, gradients_, frozen_;
  std::optional<OptimizerState> optimizer_;
  DeviceBuffer frozen_on_device_;
  std::optional<ParameterStore> on_device_;  // instead of weights, gradients and optimizer of the host
  std::optional<RandomTensor> x_TD_, dx_TD_;
  int64_t pass_rows_ = 0;  // rows through the model at once, fewer in the last pass
  std::vector<PackedBatch> passes_;
  double gradient_squares_ = 0;  // of the step, after its last pass
  int64_t step_ = 0;
};

// The arithmetic peak of what computes the step.
class StepPeak {
 public:
  StepPeak(const TrainStep& step, DType dtype, const StepDevice& on, double turn_seconds, ThreadPool& pool)
      : turn_seconds_(turn_seconds) {
    if (step.is_on_device()) {
      ops_ = on.make(pool);  // with a workspace of their own
      of_device_.emplace(*ops_, dtype, on.peak_size);
    } else {
      of_host_.emplace(make_peak_meter(pool, dtype));
    }
  }

  std::string name() const {
    return of_device_ ? fmt::format("square products, {}", of_device_->arithmetic())
                      : std::string(of_host_->instruction_set());
  }
  double measure() {
    constexpr int64_t kProducts = 2;  // an H100 takes 3 ms
    return of_device_ ? of_device_->measure(kProducts) : of_host_->measure(turn_seconds_);
  }

 private:
  double turn_seconds_;
  std::unique_ptr<Ops> ops_;
  std::optional<DevicePeakMeter> of_device_;
  std::optional<ComputePeakMeter> of_host_;
};

}  // namespace

TrainStepLine run_train_step(const TrainStepOptions& options, const MeasureOptions& measure,
                             OtherProgram* other, ThreadPool& pool, const StepDevice& on) {
  const bool peak_counts_anew = reset_peak_resident_bytes();
  TrainStep step(options, on.make, pool);
  std::optional<TrainStep> full;
  if (options.config.lora) {
    TrainStepOptions of_all = options;
    of_all.config.lora.reset();
    of_all.config.base_quantization = Quantization::kNone;
    full.emplace(of_all, on.make, pool);
  }
  const bool is_on_device = step.is_on_device();
  const std::optional<Device::OwnMemory> memory = step.device().own_memory();
  const int64_t planned = step.planned_bytes() + (full ? full->planned_bytes() : 0);
  const int64_t of_peak =
      is_on_device ? DevicePeakMeter::size_bytes(step.ops(), options.dtype, on.peak_size) : 0;
  const int64_t free_bytes = memory ? memory->free_bytes : memory_info().free_for_process_bytes;
  if (planned + of_peak > free_bytes) {
    fail(ExitCode::kBadConfig,
         "the step does not fit in memory: it takes {} ({}, {} at once), {} are free{}; lower "
         "--layers, --max_length or --micro_batch",
         format_bytes(planned + of_peak), format_count(step.num_parameters(), "parameter"),
         format_count(step.pass_tokens(), "token"), format_bytes(free_bytes),
         is_on_device ? fmt::format(" on {}", step.device().name()) : "");
  }
  const int64_t baseline = memory ? memory->used_bytes + of_peak : resident_bytes();
  step.allocate();

  TrainStepLine line;
  StepPeak peak_of(step, options.dtype, on, measure.turn_seconds, pool);
  const Participant peak = [&] { return peak_of.measure(); };
  line.peak_name = peak_of.name();
  line.options = options;
  line.operations = step.ops().description();
  line.num_parameters = step.num_parameters();
  line.step_tflop = step.flop() * 1e-12;
  line.predicted_bytes = baseline + planned;
  line.pass_tokens = step.pass_tokens();
  line.verification = step.verify();
  step.run(peak);  // touches all pages
  if (full) {
    full->allocate();
    full->run(peak);
  }
  if (other != nullptr) {
    other->run("forward_backward");
    other->run("optimizer");
  }
  step.ops().reset();
  std::vector<StepSample> steps;
  double total = 0;
  while (static_cast<int64_t>(steps.size()) < measure.min_rounds || total < measure.seconds) {
    steps.push_back(step.run(peak));
    if (full) {
      const StepSample of_all = full->run(peak);
      steps.back().full_forward_backward = of_all.forward_backward();
      steps.back().full_whole = of_all.whole();
    }
    if (other != nullptr) {
      steps.back().other_forward_backward = other->run("forward_backward");
      steps.back().other_optimizer = other->run("optimizer");
    }
    total += steps.back().whole();
  }
  fill_statistics(steps, &line);
  if (other != nullptr) line.against = against_other(other->name(), steps);
  if (full) {
    line.ratio_full_forward_backward = quartiles_of(
        steps, [](const StepSample& s) { return s.full_forward_backward / s.forward_backward(); });
    line.ratio_full_step = quartiles_of(steps, [](const StepSample& s) { return s.full_whole / s.whole(); });
  }
  line.operation_shares = operation_shares(step.ops().seconds(), total);
  line.measured_bytes = is_on_device       ? step.device().own_memory()->used_bytes
                        : peak_counts_anew ? peak_resident_bytes()
                                           : 0;
  return line;
}

}  // namespace tessera
