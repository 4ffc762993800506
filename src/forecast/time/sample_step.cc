#include "forecast/time/sample_step.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/divide_up.h"
#include "base/error.h"
#include "base/median.h"
#include "comm/ranks/part.h"
#include "kernels/rank_sum/rank_sum.h"
#include "model/families/families.h"
#include "ops/cpu_ops.h"
#include "optim/optimizer_state.h"
#include "platform/prefault.h"

namespace tessera {
namespace {

// Elements a rank updates: far more bytes than any cache has.
constexpr int64_t kMaxUpdated = int64_t{16} << 20;

// Seconds of one step of one rank.
struct StepSample {
  struct Calls {
    double seconds = 0;
    int64_t count = 0;
  };
  std::map<OpWork, Calls> calls;
  double update_s = 0;
  double sum_s = 0, add_s = 0;
  double wait_s = 0;  // for other ranks to finish the pass
  double total_s = 0;
};

// Times every call, with the model's own code since the call before.
class SamplingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  void begin(StepSample* sample) {
    sample_ = sample;
    time_ = Stopwatch();
  }

 private:
  void around(const OpCall& call, FunctionRef<void()> run) override {
    run();
    StepSample::Calls& calls = sample_->calls[work_of(call)];
    calls.seconds += time_.seconds();
    ++calls.count;
    time_ = Stopwatch();
  }

  StepSample* sample_ = nullptr;
  Stopwatch time_;
};

ActivationLimits limits_of(const std::vector<PassShape>& passes) {
  ActivationLimits limits;
  for (const PassShape& pass : passes) {
    limits.max_tokens = std::max(limits.max_tokens, pass.num_tokens());
    limits.max_sequence_length = std::max(limits.max_sequence_length, pass.row_tokens);
    limits.gradient_checkpointing = pass.gradient_checkpointing;
    limits.num_kept_outputs = pass.num_kept_outputs;
    limits.pack_weights = pass.pack_weights;
  }
  return limits;
}

UpdateWork update_of(const SampleRequest& request, int64_t num_elements) {
  UpdateWork work;
  work.num_elements = std::min(num_elements / request.share.local_world_size, kMaxUpdated);
  work.weight_dtype = request.dtype;
  const StateTensors tensors = make_optimizer({.form = request.optimizer})->state_tensors();
  work.state_bytes = state_bytes(tensors, work.num_elements);
  work.has_codes = std::ranges::any_of(tensors, is_block_code, &StateTensor::dtype);
  work.sums_squares = request.share.local_world_size > 1;
  return work;
}

// Values around zero, different everywhere: products of zeros would take less power, and so less time. Bytes
// of quantized weights are such that codes and scales are numbers, whichever they are.
void fill(TensorView weights, int64_t begin, int64_t end, ThreadPool& pool) {
  constexpr int64_t kBlock = 1 << 16;
  pool.parallel_blocks(end - begin, kBlock, [&](int64_t first, int64_t last) {
    for (int64_t i = begin + first; i < begin + last; ++i) {
      const uint64_t mixed = (static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u) >> 57;
      const float value = (static_cast<float>(mixed) - 63.5f) / 640;
      if (weights.dtype() == DType::kU8) {
        weights.bytes()[i] = static_cast<std::byte>(0x3C | (mixed & 1));
      } else if (weights.dtype() == DType::kF32) {
        weights.as<float>()[i] = value;
      } else {
        weights.as<bf16>()[i] = to_bf16(value);
      }
    }
  });
}

// The part that the ranks of the node share.
struct Node {
  Node(TensorView all_weights, TensorView all_frozen, int num_ranks)
      : weights(all_weights),
        frozen(all_frozen),
        gradients(static_cast<size_t>(num_ranks)),
        barrier(num_ranks) {}

  TensorView weights;
  TensorView frozen;                    // empty without adapters
  std::vector<const float*> gradients;  // by rank
  std::barrier<> barrier;
};

// The weights beside adapters.
int64_t frozen_bytes(const SampleRequest& request) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  return make_model(request.config, request.dtype, *ops)->frozen_bytes();
}

TensorView frozen_view(const SampleRequest& request, const DeviceBuffer& memory) {
  if (!request.config.lora) return {};
  const bool is_quantized = request.config.base_quantization != Quantization::kNone;
  const DType dtype = is_quantized ? DType::kU8 : request.dtype;
  return memory.view(dtype, {memory.size_bytes() / dtype_bytes(dtype)});
}

// Lives on a thread of its own.
class SampleRank {
 public:
  SampleRank(const SampleRequest& request, int rank, const CpuLimits& limits, Node& node)
      : request_(request),
        node_(node),
        pool_(request.share.num_threads, limits),
        cpu_ops_(make_cpu_ops(pool_)),
        ops_(*cpu_ops_),
        model_(make_model(request.config, request.dtype, ops_)) {
    const int64_t count = model_->layout().num_elements();
    const int64_t num_ranks = request.share.local_world_size;
    gradients_ = host_device().allocate(count * dtype_bytes(DType::kF32));
    prefault(pool_, gradients_.span());
    node_.gradients[static_cast<size_t>(rank)] = reinterpret_cast<const float*>(gradients_.address());
    share_ = {count * rank / num_ranks, count * (rank + 1) / num_ranks};
    fill(node_.weights, share_.begin, share_.end, pool_);
    const TensorView gradients = gradients_.view(DType::kF32, {count});
    TensorView summed = gradients;
    if (num_ranks > 1) {
      accumulators_ = host_device().allocate(share_.size() * dtype_bytes(DType::kF32));
      summed = accumulators_.view(DType::kF32, {share_.size()});
    }
    const int64_t updated = update_of(request, count).num_elements;
    state_.emplace(make_optimizer({.form = request.optimizer}),
                   std::vector<ParameterRange>{
                       {share_.begin, updated, true, num_ranks > 1 ? 0 : share_.begin, /*state_begin=*/0}},
                   node_.weights, summed, pool_, updated);
    model_->bind_parameters(node_.weights, gradients);
    if (const int64_t size = node_.frozen.empty() ? 0 : node_.frozen.num_elements(); size > 0) {
      fill(node_.frozen, size * rank / num_ranks, size * (rank + 1) / num_ranks, pool_);
      model_->bind_frozen(node_.frozen);
    }
    model_->reserve(limits_of(request.passes));
    for (const PassShape& pass : request.passes) {
      batches_.push_back(
          random_batch(pass, request.config.vocab_size, request.config.encoder_decoder.has_value()));
    }
  }

  StepSample run() {
    StepSample sample;
    node_.barrier.arrive_and_wait();
    const Stopwatch total;
    for (size_t i = 0; i < batches_.size(); ++i) {
      const PassShape& pass = request_.passes[i];
      ops_.begin(&sample);
      dropout_tokens_.resize(static_cast<size_t>(batches_[i].num_tokens()));
      model_->draw_dropout({.tokens = dropout_tokens_});
      double squares = 0;
      model_->forward_backward(
          batches_[i], 1e-3f, /*label_smoothing=*/0,
          {pass.adds ? Update::kAdd : Update::kOverwrite, pass.squares ? &squares : nullptr});
      if (request_.share.local_world_size > 1) sum_gradients(i > 0, &sample);
    }
    const Stopwatch update;
    if (request_.share.local_world_size > 1) state_->gradient_norm();
    state_->update({++step_, /*learning_rate=*/1e-6});
    model_->weights_changed();
    sample.update_s = update.seconds();
    sample.total_s = total.seconds();
    return sample;
  }

 private:
  void sum_gradients(bool adds, StepSample* sample) {
    const Stopwatch wait;
    node_.barrier.arrive_and_wait();
    sample->wait_s += wait.seconds();
    const Stopwatch time;
    std::vector<RankInput> inputs;
    for (const float* gradients : node_.gradients) inputs.emplace_back(gradients + share_.begin);
    rank_sum(inputs, adds ? Update::kAdd : Update::kOverwrite,
             reinterpret_cast<float*>(accumulators_.address()), share_.size(), &pool_);
    (adds ? sample->add_s : sample->sum_s) += time.seconds();
    node_.barrier.arrive_and_wait();
  }

  const SampleRequest& request_;
  Node& node_;
  ThreadPool pool_;
  std::unique_ptr<Ops> cpu_ops_;
  SamplingOps ops_;
  std::unique_ptr<TrainableModel> model_;
  DeviceBuffer gradients_, accumulators_;
  Part share_ = {0, 0};  // of the elements: what this rank sums and updates
  std::optional<OptimizerState> state_;
  std::vector<PackedBatch> batches_;
  std::vector<uint64_t> dropout_tokens_;
  int64_t step_ = 0;
};

// The threads of all ranks, and what they measured.
class Sampling {
 public:
  Sampling(const SampleRequest& request, const CpuLimits& limits)
      : request_(request),
        num_ranks_(request.share.local_world_size),
        num_elements_(parameter_layout(request.config).num_elements()),
        weights_(host_device().allocate(num_elements_ * dtype_bytes(request.dtype))),
        frozen_(host_device().allocate(frozen_bytes(request))),
        node_(weights_.view(request.dtype, {num_elements_}), frozen_view(request, frozen_), num_ranks_),
        samples_(static_cast<size_t>(num_ranks_)) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      threads.emplace_back([this, rank, &limits] {
        try {
          run_rank(rank, limits_of_rank(limits, rank));
        } catch (...) {
          if (!has_failed_.exchange(true)) failure_ = std::current_exception();
        }
        node_.barrier.arrive_and_drop();
      });
    }
    threads.clear();
    if (failure_) std::rethrow_exception(failure_);
  }

  SampledStep result() const {
    const std::vector<size_t> middle = middle_half();
    const double num_steps = static_cast<double>(middle.size()) * num_ranks_;
    SampledStep result;
    std::map<OpWork, int64_t> counts;
    double update_s = 0, sum_s = 0, add_s = 0;
    for (const std::vector<StepSample>& of_rank : samples_) {
      for (const size_t step : middle) {
        const StepSample& sample = of_rank[step];
        for (const auto& [work, calls] : sample.calls) {
          result.call_s[work] += calls.seconds;
          counts[work] += calls.count;
        }
        update_s += sample.update_s / num_steps;
        sum_s += sample.sum_s / num_steps;
        add_s += sample.add_s / num_steps;
      }
    }
    for (auto& [work, seconds] : result.call_s) seconds /= static_cast<double>(counts[work]);
    result.update_s_per_byte = update_s / update_of(request_, num_elements_).bytes();
    const double share = static_cast<double>(num_elements_) / num_ranks_;
    const auto num_added = static_cast<double>(std::ssize(request_.passes) - 1);
    result.imbalance = imbalance();
    result.sum_s_per_element = sum_s / share;
    result.add_s_per_element = num_added > 0 ? add_s / share / num_added : result.sum_s_per_element;
    return result;
  }

 private:
  // The processors that a launcher would give each rank.
  CpuLimits limits_of_rank(const CpuLimits& limits, int rank) const {
    CpuLimits own = limits;
    const auto num_cpus = std::ssize(limits.cpus);
    own.cpus.assign(limits.cpus.begin() + num_cpus * rank / num_ranks_,
                    limits.cpus.begin() + num_cpus * (rank + 1) / num_ranks_);
    if (own.cpus.empty()) own.cpus = limits.cpus;
    std::erase_if(own.cores, [&](const std::vector<int>& core) {
      return std::ranges::find(own.cpus, core.front()) == own.cpus.end();
    });
    return own;
  }

  void run_rank(int rank, const CpuLimits& limits) {
    const UnpinnedScope on(limits.cpus);
    SampleRank sampled(request_, rank, limits, node_);
    node_.barrier.arrive_and_wait();  // the weights are there, or a rank has failed
    if (has_failed_) return;
    sampled.run();  // touches all pages
    std::vector<StepSample>& samples = samples_[static_cast<size_t>(rank)];
    const Stopwatch time;
    do {
      samples.push_back(sampled.run());
      if (rank == 0) {
        goes_on_ = time.seconds() < request_.seconds || std::ssize(samples) < request_.min_steps;
      }
      node_.barrier.arrive_and_wait();
    } while (goes_on_ && !has_failed_);
  }

  // The median of the steps: one hiccup of a core makes the other ranks wait long.
  double imbalance() const {
    std::vector<double> of_steps;
    for (size_t step = 0; step < samples_.front().size(); ++step) {
      double wait_s = 0, calls_s = 0;
      for (const std::vector<StepSample>& of_rank : samples_) {
        wait_s += of_rank[step].wait_s;
        for (const auto& [work, calls] : of_rank[step].calls) calls_s += calls.seconds;
      }
      of_steps.push_back(wait_s / calls_s);
    }
    return median(std::move(of_steps));
  }

  // Steps without the fastest and the slowest quarter.
  std::vector<size_t> middle_half() const {
    std::vector<std::pair<double, size_t>> totals;
    for (size_t step = 0; step < samples_.front().size(); ++step) {
      double total = 0;
      for (const std::vector<StepSample>& of_rank : samples_) total += of_rank[step].total_s;
      totals.emplace_back(total, step);
    }
    std::sort(totals.begin(), totals.end());
    std::vector<size_t> steps;
    const size_t cut = totals.size() / 4;
    for (size_t i = cut; i < totals.size() - cut; ++i) steps.push_back(totals[i].second);
    return steps;
  }

  const SampleRequest& request_;
  int num_ranks_;
  int64_t num_elements_;
  DeviceBuffer weights_;
  DeviceBuffer frozen_;
  Node node_;
  std::vector<std::vector<StepSample>> samples_;  // by rank and step
  std::atomic<bool> goes_on_ = true;
  std::atomic<bool> has_failed_ = false;
  std::exception_ptr failure_;
};

}  // namespace

int64_t SampleRequest::memory_bytes() const {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  const std::unique_ptr<TrainableModel> model = make_model(config, dtype, *ops);
  const int64_t count = model->layout().num_elements();
  const UpdateWork update = update_of(*this, count);
  const int64_t num_ranks = share.local_world_size;
  const int64_t of_rank = model->activation_bytes(limits_of(passes)).total() +
                          count * dtype_bytes(DType::kF32) + update.state_bytes +
                          optimizer_state_bytes({}, update.num_elements, dtype);
  const int64_t accumulators = num_ranks > 1 ? count * dtype_bytes(DType::kF32) : 0;
  return num_ranks * of_rank + count * dtype_bytes(dtype) + model->frozen_bytes() + accumulators;
}

SampledStep sample_step(const SampleRequest& request, const CpuLimits& limits) {
  return Sampling(request, limits).result();
}

}  // namespace tessera
