#include "bench/train_step_bench.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/random_tensor.h"
#include "bench/timed_ops.h"
#include "model/flops.h"
#include "model/model_impl.h"
#include "ops/cpu_ops.h"
#include "optim/adamw.h"
#include "platform/memory_info.h"

namespace tessera {
namespace {

// Stands for the vocabulary when only the decoder layers run: embedding and LM head take next to no memory.
constexpr int64_t kNoHeadVocabulary = 32;
constexpr float kGradientScale = 1e-3f;  // standard deviation of the last stream's gradient, without head
constexpr double kLearningRate = 1e-5;

ModelConfig effective_config(const TrainStepOptions& options) {
  ModelConfig config = options.config;
  if (!options.with_head) config.vocab_size = kNoHeadVocabulary;
  TESSERA_CHECK(config.vocab_size > 0, "no vocabulary");
  return config;
}

ActivationLimits limits_of(const TrainStepOptions& options) {
  ActivationLimits limits = {options.micro_batch_tokens(), options.max_length};
  limits.gradient_checkpointing = options.gradient_checkpointing;
  return limits;
}

// Rows of random tokens, every token but the first of a row a target.
PackedBatch random_batch(int64_t num_rows, int64_t length, int64_t vocab_size) {
  const CounterRng rng(1, 1);
  PackedBatch batch;
  batch.cu_seqlens.push_back(0);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t t = 0; t < length; ++t) {
      const auto token = [&](int64_t i) {
        const double fraction = rng.uniform(static_cast<uint64_t>(i));
        return static_cast<int32_t>(fraction * static_cast<double>(vocab_size));
      };
      batch.input_ids.push_back(token(row * length + t));
      batch.positions.push_back(static_cast<int32_t>(t));
      batch.targets.push_back(t + 1 < length ? token(row * length + t + 1) : kIgnoredLabel);
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>((row + 1) * length));
  }
  batch.num_targets = num_rows * (length - 1);
  return batch;
}

// What is trained: all parameters, or those of the layers.
std::vector<ParameterRange> trained_ranges(const ParameterLayout& layout, const TrainStepOptions& options) {
  std::vector<ParameterRange> ranges;
  for (const Parameter& parameter : layout.parameters()) {
    const bool in_layer = 1 <= parameter.group && parameter.group <= options.config.num_hidden_layers;
    if (!options.with_head && !in_layer) continue;
    ranges.push_back({parameter.offset, parameter.num_elements, parameter.weight_decay});
  }
  return ranges;
}

// Random weights of the distribution of initialize_parameter, faster.
void fill_weights(const ParameterLayout& layout, const ModelConfig& config, TensorView weights,
                  ThreadPool& pool) {
  for (const Parameter& parameter : layout.parameters()) {
    const TensorView tensor = weights.rows(parameter.offset, parameter.offset + parameter.num_elements);
    if (parameter.shape.size() == 2) {
      fill_random(tensor, hash_name(parameter.name) % 1000, static_cast<float>(config.initializer_range),
                  pool);
    } else {
      initialize_parameter(parameter, config.initializer_range, 1, 0, tensor);
    }
  }
}

// The peak of resident memory counts anew from here. False when the system does not offer that.
bool reset_peak_resident_bytes() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
  return static_cast<bool>(file.flush());
}

// Seconds of the parts of one step, and the peak meanwhile.
struct StepTimes {
  double forward = 0, head = 0, backward = 0, optimizer = 0;
  double peak_tflops = 0;

  double forward_backward() const { return forward + head + backward; }
  double whole() const { return forward_backward() + optimizer; }
};

class TrainStep {
 public:
  TrainStep(const TrainStepOptions& options, ThreadPool& pool)
      : options_(options),
        pool_(pool),
        cpu_ops_(make_cpu_ops(pool)),
        ops_(*cpu_ops_),
        config_(effective_config(options)),
        model_(config_, options.dtype, ops_) {}

  // Of everything that allocate() allocates.
  int64_t planned_bytes() const {
    const int64_t num_elements = model_.layout().num_elements();
    const int64_t stream_bytes =
        options_.micro_batch_tokens() * config_.hidden_size * dtype_bytes(options_.dtype);
    return num_elements * (dtype_bytes(options_.dtype) + dtype_bytes(DType::kF32)) +
           AdamW::state_bytes(num_elements, options_.dtype) +
           model_.activation_bytes(limits_of(options_)).total() + (options_.with_head ? 0 : 2 * stream_bytes);
  }

  void allocate() {
    const int64_t num_elements = model_.layout().num_elements();
    weights_ = PageBuffer(num_elements * dtype_bytes(options_.dtype));
    gradients_ = PageBuffer(num_elements * dtype_bytes(DType::kF32));
    const TensorView weights(weights_.data(), options_.dtype, {num_elements});
    const TensorView gradients(gradients_.data(), DType::kF32, {num_elements});
    fill_weights(model_.layout(), config_, weights, pool_);
    model_.bind_parameters(weights, gradients);
    model_.reserve(limits_of(options_));
    optimizer_.emplace(trained_ranges(model_.layout(), options_), weights, gradients, AdamWOptions{}, pool_);
    batch_ = random_batch(options_.micro_batch, options_.max_length, config_.vocab_size);
    if (options_.with_head) return;
    const Shape stream = {options_.micro_batch_tokens(), config_.hidden_size};
    x_TD_.emplace(options_.dtype, stream, 1, 1.0f, pool_);
    dx_TD_.emplace(options_.dtype, stream, 2, kGradientScale, pool_);
  }

  StepTimes run(ComputePeakMeter& peak, double peak_seconds) {
    StepTimes times;
    std::vector<double> peaks = {peak.measure(peak_seconds)};
    for (int64_t i = 0; i < options_.gradient_accumulation_steps; ++i) {
      run_micro_batch(i == 0 ? Update::kOverwrite : Update::kAdd, &times);
      peaks.push_back(peak.measure(peak_seconds));
    }
    ++step_;
    double norm = 0;
    const double norm_seconds = seconds_of([&] { norm = optimizer_->gradient_norm(); });
    const double update_seconds = seconds_of([&] { optimizer_->step(step_, kLearningRate, 1 / (1 + norm)); });
    ops_.add_seconds("gradient_norm", norm_seconds);
    ops_.add_seconds("adamw", update_seconds);
    times.optimizer = norm_seconds + update_seconds;
    for (const double value : peaks) times.peak_tflops += value / static_cast<double>(peaks.size());
    return times;
  }

  double flop() const {
    const int64_t num_targets = options_.with_head ? batch_.num_targets : 0;
    return model_flops(config_, batch_.cu_seqlens, num_targets).forward_backward() *
           static_cast<double>(options_.gradient_accumulation_steps);
  }
  int64_t num_parameters() const {
    int64_t count = 0;
    for (const ParameterRange& range : trained_ranges(model_.layout(), options_)) count += range.count;
    return count;
  }
  TimedOps& ops() { return ops_; }

 private:
  void run_micro_batch(Update update, StepTimes* times) {
    Model::Impl& impl = model_.impl();
    impl.begin(batch_);
    const SequenceInfo sequences = impl.sequence_info(batch_);
    if (!options_.with_head) copy(x_TD_->view(), impl.activations.layers.front().attention.x_TD);
    times->forward += seconds_of([&] {
      if (options_.with_head) impl.forward_embedding(batch_);
      impl.forward_layers(sequences);
    });
    if (options_.with_head) {
      const float grad_scale =
          1.0f / static_cast<float>(batch_.num_targets * options_.gradient_accumulation_steps);
      times->head += seconds_of([&] {
        loss_head_forward_backward(ops_, impl.block_configs.front().norm_eps, impl.head, impl.head_grads,
                                   update, batch_.targets, /*label_smoothing=*/0, grad_scale,
                                   impl.activations.final_x_TD, impl.activations.loss_scratch,
                                   impl.activations.dx_TD);
      });
    } else {
      copy(dx_TD_->view(), impl.activations.dx_TD);
    }
    times->backward += seconds_of([&] {
      impl.backward_layers(sequences, update);
      if (options_.with_head) impl.backward_embedding(batch_, update);
    });
  }

  static void copy(ConstTensorView from, TensorView to) {
    std::memcpy(to.bytes(), from.bytes(), static_cast<size_t>(from.size_bytes()));
  }

  TrainStepOptions options_;
  ThreadPool& pool_;
  std::unique_ptr<Ops> cpu_ops_;
  TimedOps ops_;
  ModelConfig config_;
  Model model_;
  PageBuffer weights_, gradients_;
  std::optional<AdamW> optimizer_;
  std::optional<RandomTensor> x_TD_, dx_TD_;
  PackedBatch batch_;
  int64_t step_ = 0;
};

std::vector<std::pair<std::string, double>> shares(const std::map<std::string, double>& seconds,
                                                   double total) {
  std::vector<std::pair<std::string, double>> result;
  double rest = total;
  for (const auto& [name, value] : seconds) {
    result.emplace_back(name, value / total);
    rest -= value;
  }
  result.emplace_back("other", rest / total);
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return result;
}

void fill_statistics(const std::vector<StepTimes>& steps, TrainStepLine* line) {
  const auto tokens = static_cast<double>(line->options.step_tokens());
  const auto statistic = [&](auto value) {
    std::vector<double> values;
    for (const StepTimes& step : steps) values.push_back(value(step));
    return quartiles(values);
  };
  line->rounds = static_cast<int64_t>(steps.size());
  line->step_seconds = statistic([](const StepTimes& s) { return s.whole(); });
  line->forward_seconds = statistic([](const StepTimes& s) { return s.forward; });
  line->head_seconds = statistic([](const StepTimes& s) { return s.head; });
  line->backward_seconds = statistic([](const StepTimes& s) { return s.backward; });
  line->optimizer_seconds = statistic([](const StepTimes& s) { return s.optimizer; });
  line->tokens_per_second = statistic([&](const StepTimes& s) { return tokens / s.whole(); });
  line->tokens_per_second_forward_backward =
      statistic([&](const StepTimes& s) { return tokens / s.forward_backward(); });
  line->peak = statistic([](const StepTimes& s) { return s.peak_tflops; });
  line->mfu = statistic([&](const StepTimes& s) { return line->step_tflop / s.whole() / s.peak_tflops; });
  line->mfu_forward_backward =
      statistic([&](const StepTimes& s) { return line->step_tflop / s.forward_backward() / s.peak_tflops; });
}

}  // namespace

TrainStepLine run_train_step(const TrainStepOptions& options, const MeasureOptions& measure,
                             ThreadPool& pool) {
  const bool peak_counts_anew = reset_peak_resident_bytes();
  ComputePeakMeter peak = make_peak_meter(pool, options.dtype);
  TrainStep step(options, pool);
  const int64_t planned = step.planned_bytes();
  const int64_t free_bytes = memory_info().free_for_process_bytes;
  if (planned > free_bytes) {
    fail(ExitCode::kBadConfig,
         "the step does not fit in memory: it takes {} ({} parameters, {} tokens at once), {} are free; take "
         "fewer "
         "--layers, a smaller --max_length or --micro_batch",
         format_bytes(planned), format_count(step.num_parameters()),
         format_count(options.micro_batch_tokens()), format_bytes(free_bytes));
  }
  const int64_t baseline = resident_bytes();
  step.allocate();

  TrainStepLine line;
  line.options = options;
  line.operations = step.ops().description();
  line.peak_name = peak.instruction_set();
  line.num_parameters = step.num_parameters();
  line.step_tflop = step.flop() * 1e-12;
  line.predicted_bytes = baseline + planned;

  step.run(peak, measure.turn_seconds);  // kernels are made, pages appear
  step.ops().reset();
  std::vector<StepTimes> steps;
  double total = 0;
  while (static_cast<int64_t>(steps.size()) < measure.min_rounds || total < measure.seconds) {
    steps.push_back(step.run(peak, measure.turn_seconds));
    total += steps.back().whole();
  }
  fill_statistics(steps, &line);
  line.operation_shares = shares(step.ops().seconds(), total);
  line.measured_bytes = peak_counts_anew ? peak_resident_bytes() : 0;
  return line;
}

}  // namespace tessera
