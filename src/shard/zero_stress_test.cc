// Random jobs with random ranks and random delays: communicator, weight store and gradient store together,
// used in the order a model uses them, compared with a single-threaded computation. Values are small
// integers, which BF16 and any order of summation keep exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/error.h"
#include "base/float_types.h"
#include "shard/gradients/gradient_store.h"
#include "shard/weights/weight_store.h"
#include "support/draws.h"
#include "support/ranks/rank_test_support.h"

namespace tessera {
namespace {

using testing::Each;
using testing::IsEmpty;

constexpr int kNumSteps = 3;

struct Job {
  ZeroLayout layout;
  ZeroSettings settings;
  bool tied = false;
  CommOptions comm;
  // By step: whether all ranks run a forward pass first, as an evaluation does.
  std::vector<bool> evaluates;

  int64_t num_elements() const { return layout.groups.back().end; }
  int64_t head() const { return std::ssize(layout.groups) - 1; }
  std::string describe() const {
    return fmt::format(
        "{} nodes of {} ranks, stage {}, {}, {} passes, weights {}, gradients {}, network {}, "
        "{} groups of {} elements, {}{}persistent up to {}, {} connections",
        layout.num_nodes, layout.local_world_size, settings.stage,
        settings.schedule == GatherSchedule::kPerStep ? "per_step" : "per_layer", settings.passes_per_step,
        dtype_name(settings.weight_dtype), dtype_name(settings.gradient_dtype),
        dtype_name(settings.network_dtype), layout.groups.size(), layout.num_elements(), tied ? "tied, " : "",
        settings.overlap ? "" : "without overlap, ", settings.persistence_threshold, comm.connections);
  }
};

int64_t between(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

// Sizes from a single element to several blocks of rank_sum, with gaps between groups.
std::vector<Part> random_groups(std::mt19937_64& random, int64_t alignment, bool tied) {
  std::vector<Part> groups;
  const int64_t num_layers = between(random, 1, 6);
  int64_t at = 0;
  for (int64_t g = 0; g < num_layers + 2; ++g) {
    int64_t size = random() % 5 == 0 ? between(random, 1, 5000) : between(random, 1, 300);
    if (tied && g == 0) size = between(random, 200, 3000);
    if (tied && g == num_layers + 1) size = between(random, 1, 50);
    groups.push_back({at, at + size});
    at = (at + size + alignment - 1) / alignment * alignment;
  }
  return groups;
}

Job random_job(uint64_t seed) {
  std::mt19937_64 random(seed);
  Job job;
  do {
    job.layout.num_nodes = static_cast<int>(between(random, 1, 3));
    job.layout.local_world_size = static_cast<int>(between(random, 1, 3));
  } while (job.layout.world_size() == 1);
  job.tied = random() % 3 == 0;
  job.layout.alignment = int64_t{1} << between(random, 0, 5);
  job.layout.groups = random_groups(random, job.layout.alignment, job.tied);
  job.settings.stage = static_cast<int>(between(random, 0, 3));
  job.settings.schedule = random() % 2 == 0 ? GatherSchedule::kPerStep : GatherSchedule::kPerLayer;
  job.settings.passes_per_step = between(random, 1, 3);
  const auto any_dtype = [&] { return random() % 2 == 0 ? DType::kBF16 : DType::kF32; };
  job.settings.weight_dtype = any_dtype();
  job.settings.gradient_dtype = any_dtype();
  job.settings.network_dtype = any_dtype();
  job.settings.prefetch_elements = between(random, 0, 2000);
  job.settings.overlap = random() % 4 != 0;
  job.settings.persistence_threshold = random() % 2 == 0 ? 0 : between(random, 1, 500);
  job.comm.timeout = std::chrono::seconds(30);
  job.comm.connections = static_cast<int>(between(random, 1, 3));
  for (int step = 0; step < kNumSteps; ++step) job.evaluates.push_back(random() % 4 == 0);
  return job;
}

// A pseudo-random value from -2 to 2 that depends on all arguments.
int gradient(uint64_t seed, int step, int64_t pass, int rank, int64_t element) {
  uint64_t x = seed * 1'000'003 + static_cast<uint64_t>(((step * 16 + pass) * 16 + rank) * 100'003 + element);
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15;
  return static_cast<int>((x >> 33) % 5) - 2;
}

int first_weight(int64_t element) { return static_cast<int>(element % 101) - 50; }
// Stays within +-64, so that weights are exact in BF16.
int next_weight(int weight, int gradient_sum) { return ((weight + gradient_sum + 64 + 1290) % 129) - 64; }

// The results of one thread: by step, the gradient sums over ranks and passes, and the weights before it.
struct Expected {
  std::vector<std::vector<int>> sums;
  std::vector<std::vector<int>> weights;
};

Expected compute_alone(const Job& job, uint64_t seed) {
  const auto count = static_cast<size_t>(job.num_elements());
  Expected expected;
  std::vector<int>& first = expected.weights.emplace_back(count);
  for (size_t i = 0; i < count; ++i) first[i] = first_weight(static_cast<int64_t>(i));
  for (int step = 0; step < kNumSteps; ++step) {
    std::vector<int>& sums = expected.sums.emplace_back(count, 0);
    std::vector<int> next = expected.weights.back();
    for (size_t i = 0; i < count; ++i) {
      for (int64_t pass = 0; pass < job.settings.passes_per_step; ++pass) {
        for (int rank = 0; rank < job.layout.world_size(); ++rank) {
          sums[i] += gradient(seed, step, pass, rank, static_cast<int64_t>(i));
        }
      }
      next[i] = next_weight(next[i], sums[i]);
    }
    expected.weights.push_back(std::move(next));
  }
  return expected;
}

// One rank of a job. Throws on any difference from `expected`, which ends the other ranks too.
class StressRank {
 public:
  StressRank(const Job& job, uint64_t seed, const Expected& expected, Communicator& comm)
      : job_(job),
        seed_(seed),
        expected_(expected),
        comm_(comm),
        delays_(seed * 31 + static_cast<uint64_t>(comm.world().rank)),
        plan_(job.layout.groups, job.layout.alignment, job.layout.num_nodes, job.layout.local_world_size),
        weights_(job.layout, job.settings, plan_, comm, pool_),
        gradients_(job.layout, job.settings, plan_, comm, pool_) {}

  void run() {
    load();
    for (step_ = 0; step_ < kNumSteps; ++step_) {
      if (job_.evaluates[static_cast<size_t>(step_)]) {
        forward();
        close_head_weights();
      }
      for (pass_ = 0; pass_ < job_.settings.passes_per_step; ++pass_) {
        gradients_.begin_pass(pass_ == 0, pass_ + 1 == job_.settings.passes_per_step);
        forward();
        backward();
        delay();
        gradients_.finish_pass();
      }
      reduce_norm();
      update();
    }
    forward();
    close_head_weights();
    comm_.barrier({"end of test"});
  }

 private:
  void delay() {
    const uint64_t choice = delays_() % 16;
    if (choice == 0) std::this_thread::sleep_for(std::chrono::microseconds(delays_() % 1000));
    if (choice == 1) std::this_thread::yield();
  }

  // Parts for which this rank has gradients and writes weights: in stage 0 its rail's, otherwise its own.
  template <typename Body>
  void for_each_part(int64_t group, bool of_rail, const Body& body) const {
    const World& world = comm_.world();
    for (int node = 0; node < world.num_nodes; ++node) {
      if (!of_rail && node != world.node_rank) continue;
      body(plan_.part(group, node * world.local_world_size + world.local_rank));
    }
  }

  void write_weight(int64_t group, int64_t element, int value) {
    const TensorView owned = weights_.memory();
    const int64_t at = weights_.index(group, element);
    if (owned.dtype() == DType::kF32) {
      owned.as<float>()[at] = static_cast<float>(value);
    } else {
      owned.as<bf16>()[at] = to_bf16(static_cast<float>(value));
    }
  }

  void load() {
    for (int64_t g = 0; g <= job_.head(); ++g) {
      for_each_part(g, weights_.node_has_all(), [&](const Part& part) {
        for (int64_t i = part.begin; i < part.end; ++i) write_weight(g, i, first_weight(i));
      });
      delay();
      if (!weights_.node_has_all()) weights_.updated(g);
    }
    if (weights_.node_has_all()) weights_.loaded(/*whole_node=*/true);
  }

  void open_weights(int64_t group, WeightUse use) {
    delay();
    const std::byte* data = weights_.open(group, use);
    delay();
    const Part range = plan_.group(group);
    const std::vector<int>& expected = expected_.weights[static_cast<size_t>(step_)];
    for (int64_t i = 0; i < range.size(); ++i) {
      const float found = job_.settings.weight_dtype == DType::kF32
                              ? reinterpret_cast<const float*>(data)[i]
                              : to_float(reinterpret_cast<const bf16*>(data)[i]);
      const auto wanted = static_cast<float>(expected[static_cast<size_t>(range.begin + i)]);
      if (found != wanted) fail_at("weight", group, range.begin + i, found, wanted);
    }
  }

  void write_gradients(int64_t group) {
    float* data = reinterpret_cast<float*>(open_gradients_[static_cast<size_t>(group)]);
    const Part range = plan_.group(group);
    const bool adds = gradients_.model_accumulates() && pass_ > 0;
    for (int64_t i = 0; i < range.size(); ++i) {
      const auto value =
          static_cast<float>(gradient(seed_, step_, pass_, comm_.world().rank, range.begin + i));
      data[i] = adds ? data[i] + value : value;
    }
  }
  void open_gradients(int64_t group) {
    delay();
    open_gradients_.resize(static_cast<size_t>(job_.head()) + 1);
    open_gradients_[static_cast<size_t>(group)] = gradients_.open(group);
  }
  void close_gradients(int64_t group) {
    write_gradients(group);
    delay();
    gradients_.close(group);
  }
  void close_weights(int64_t group) {
    delay();
    weights_.close(group);
  }

  // Follows the order of model/parameter_access.h.
  void forward() {
    for (int64_t g = 0; g < job_.head(); ++g) {
      open_weights(g, WeightUse::kForward);
      close_weights(g);
    }
    if (job_.tied) open_weights(0, WeightUse::kBackward);
    open_weights(job_.head(), WeightUse::kBackward);
  }
  void close_head_weights() {
    close_weights(job_.head());
    if (job_.tied) close_weights(0);
  }
  void backward() {
    if (job_.tied) open_gradients(0);
    open_gradients(job_.head());
    close_head_weights();
    close_gradients(job_.head());
    for (int64_t g = job_.head() - 1; g > 0; --g) {
      open_weights(g, WeightUse::kBackward);
      open_gradients(g);
      close_weights(g);
      close_gradients(g);
    }
    if (!job_.tied) open_gradients(0);
    close_gradients(0);
  }

  // Like the gradient norm: after it, no rank uses the old weights.
  void reduce_norm() {
    const double value = comm_.sum(comm_.world().rank + 1.0, {"norm"});
    const int n = comm_.world().world_size;
    if (value != n * (n + 1) / 2) fail(ExitCode::kInternal, "the sum of {} ranks is {}", n, value);
  }

  void update() {
    const ConstTensorView sums = gradients_.gradients();
    for (int64_t g = 0; g <= job_.head(); ++g) {
      delay();
      for_each_part(g, job_.settings.stage == 0, [&](const Part& part) {
        for (int64_t i = part.begin; i < part.end; ++i) {
          const int64_t at = gradients_.index(g, i);
          const float found =
              sums.dtype() == DType::kF32 ? sums.as<float>()[at] : to_float(sums.as<bf16>()[at]);
          const int wanted = expected_.sums[static_cast<size_t>(step_)][static_cast<size_t>(i)];
          if (found != static_cast<float>(wanted)) {
            fail_at("gradient", g, i, found, static_cast<float>(wanted));
          }
          write_weight(
              g, i,
              next_weight(expected_.weights[static_cast<size_t>(step_)][static_cast<size_t>(i)], wanted));
        }
      });
      weights_.updated(g);
    }
  }

  [[noreturn]] void fail_at(const char* what, int64_t group, int64_t element, float found, float wanted) {
    fail(ExitCode::kInternal, "rank {}, step {}, pass {}: {} {} of group {} is {}, not {}",
         comm_.world().rank, step_, pass_, what, element, group, found, wanted);
  }

  const Job& job_;
  uint64_t seed_;
  const Expected& expected_;
  Communicator& comm_;
  std::mt19937_64 delays_;
  ThreadPool pool_{1};
  ShardPlan plan_;
  WeightStore weights_;
  GradientStore gradients_;
  std::vector<std::byte*> open_gradients_;
  int step_ = 0;
  int64_t pass_ = 0;
};

// Split into eighths so that they run in parallel.
class ZeroStress : public testing::TestWithParam<uint64_t> {};

TEST_P(ZeroStress, RandomJobsEndWithTheSumsOfOneThread) {
  for (uint64_t seed = GetParam() * 25; seed < GetParam() * 25 + draws(25); ++seed) {
    const Job job = random_job(seed);
    const Expected expected = compute_alone(job, seed);
    const std::vector<std::string> errors =
        run_communicators(job.layout.num_nodes, job.layout.local_world_size, job.comm,
                          [&](Communicator& comm) { StressRank(job, seed, expected, comm).run(); });
    ASSERT_THAT(errors, Each(IsEmpty())) << "seed " << seed << ": " << job.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ZeroStress, testing::Range<uint64_t>(0, 8));

}  // namespace
}  // namespace tessera
