// Gradients that travel between nodes in blocks of int8 or int4: what arrives, what is fed back, and what of
// it outlives the ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "base/float_types.h"
#include "shard/gradients/gradient_store.h"
#include "support/ranks/rank_test_support.h"

namespace tessera {
namespace {

using testing::Each;
using testing::IsEmpty;

struct FeedbackJob {
  ZeroLayout layout;
  ZeroSettings settings;
  CommOptions comm;
  uint64_t seed = 0;

  int64_t num_elements() const { return layout.groups.back().end; }
  std::string describe() const {
    return fmt::format(
        "seed {}: {} nodes of {} ranks, stage {}, per_layer {}, {} passes, int{}, gradients {}, {}", seed,
        layout.num_nodes, layout.local_world_size, settings.stage,
        settings.schedule == GatherSchedule::kPerLayer, settings.passes_per_step,
        settings.quantized_gradients == GradientCode::kInt8 ? 8 : 4, dtype_name(settings.gradient_dtype),
        layout.tied_embeddings ? "tied" : "not tied");
  }
};

int64_t number_from(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

// Groups of parameters of any size, which begin at multiples of the alignment: there are gaps in and between
// groups.
ZeroLayout random_layout(std::mt19937_64& random) {
  ZeroLayout layout;
  layout.num_nodes = static_cast<int>(number_from(random, 2, 3));
  layout.local_world_size = static_cast<int>(number_from(random, 1, 2));
  layout.alignment = int64_t{1} << number_from(random, 0, 5);
  layout.tied_embeddings = random() % 3 == 0;
  const int64_t num_layers = number_from(random, 1, 4);
  int64_t at = 0;
  for (int64_t g = 0; g < num_layers + 2; ++g) {
    Part& group = layout.groups.emplace_back(Part{at, at});
    const bool is_final_norm = layout.tied_embeddings && g == num_layers + 1;
    for (int64_t left = is_final_norm ? 1 : number_from(random, 1, 4); left > 0; --left) {
      int64_t size = random() % 4 == 0 ? number_from(random, 1, 3000) : number_from(random, 1, 200);
      if (is_final_norm) size = number_from(random, 1, 20);
      if (layout.tied_embeddings && g == 0) size += 200;
      layout.parameters.push_back({{at, at + size}, {}});
      group.end = at + size;
      at = round_up(at + size, layout.alignment);
    }
  }
  return layout;
}

FeedbackJob random_feedback_job(uint64_t seed) {
  std::mt19937_64 random(seed);
  FeedbackJob job;
  job.seed = seed;
  job.layout = random_layout(random);
  job.settings.stage = static_cast<int>(number_from(random, 1, 3));
  job.settings.schedule = random() % 2 == 0 ? GatherSchedule::kPerStep : GatherSchedule::kPerLayer;
  job.settings.passes_per_step = number_from(random, 1, 3);
  job.settings.quantized_gradients = random() % 2 == 0 ? GradientCode::kInt8 : GradientCode::kInt4;
  job.settings.overlap = random() % 4 != 0;
  job.comm.timeout = std::chrono::seconds(30);
  job.comm.connections = static_cast<int>(number_from(random, 1, 3));
  return job;
}

// In (-1, 1), depending on all arguments.
float gradient_of(uint64_t seed, int64_t step, int64_t pass, int rank, int64_t element) {
  uint64_t x = seed * 1'000'003 + static_cast<uint64_t>(((step * 16 + pass) * 16 + rank) * 100'003 + element);
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9;
  return static_cast<float>(static_cast<double>(x >> 11) / 0x1p52 - 1);
}

// The sum over the passes of a step and all ranks.
double sum_of_step(const FeedbackJob& job, int64_t step, int64_t element) {
  double sum = 0;
  for (int64_t pass = 0; pass < job.settings.passes_per_step; ++pass) {
    for (int rank = 0; rank < job.layout.world_size(); ++rank)
      sum += gradient_of(job.seed, step, pass, rank, element);
  }
  return sum;
}

// The most that a step of a block of codes can be: of what a node sends at a time, with an error of half of
// it.
double largest_step(const FeedbackJob& job) {
  const double limit = job.settings.quantized_gradients == GradientCode::kInt8 ? 127 : 7;
  const double sent = job.layout.local_world_size * static_cast<double>(job.settings.passes_per_step);
  return sent / (limit - 0.5);
}

// One rank's gradients, by steps. The values between parameters differ from one object to the next.
class FeedbackRank {
 public:
  FeedbackRank(const FeedbackJob& job, Communicator& comm, float between_parameters)
      : job_(job),
        comm_(comm),
        between_parameters_(between_parameters),
        plan_(job.layout.groups, job.layout.alignment, job.layout.num_nodes, job.layout.local_world_size),
        store_(job.layout, job.settings, plan_, comm, pool_) {}

  void step(int64_t number) {
    for (int64_t pass = 0; pass < job_.settings.passes_per_step; ++pass) {
      run_pass(number, pass, pass + 1 == job_.settings.passes_per_step, /*keeps_feedback=*/false);
    }
  }
  void run_pass(int64_t step, int64_t pass, bool is_last, bool keeps_feedback) {
    store_.begin_pass(pass == 0, is_last, keeps_feedback);
    const int64_t head = plan_.num_groups() - 1;
    std::byte* const embedding = job_.layout.tied_embeddings ? store_.open(0) : nullptr;
    for (int64_t g = head; g > 0; --g) write(g, store_.open(g), step, pass);
    write(0, embedding == nullptr ? store_.open(0) : embedding, step, pass);
    store_.finish_pass();
  }
  // Calls body(group, element) for every owned element of a parameter.
  void for_each_owned(const std::function<void(int64_t group, int64_t element)>& body) const {
    for (int64_t g = 0; g < plan_.num_groups(); ++g) {
      const Part own = plan_.part(g, comm_.world().rank);
      for (const ZeroParameter& parameter : job_.layout.parameters) {
        for (int64_t i = std::max(own.begin, parameter.elements.begin);
             i < std::min(own.end, parameter.elements.end); ++i) {
          body(g, i);
        }
      }
    }
  }
  float sum_at(int64_t group, int64_t element) const {
    const ConstTensorView sums = store_.gradients();
    const int64_t at = store_.index(group, element);
    return sums.dtype() == DType::kF32 ? sums.as<float>()[at] : to_float(sums.as<bf16>()[at]);
  }
  // The sums of the owned elements.
  std::vector<float> sums() const {
    std::vector<float> all;
    for_each_owned([&](int64_t group, int64_t element) { all.push_back(sum_at(group, element)); });
    return all;
  }
  std::vector<float> errors() const {
    std::vector<float> all;
    for_each_owned([&](int64_t group, int64_t element) {
      store_.read_feedback(group, element, {&all.emplace_back(), 1});
    });
    return all;
  }
  void write_errors(const std::vector<float>& errors) {
    size_t next = 0;
    for_each_owned([&](int64_t group, int64_t element) {
      store_.write_feedback(group, element, {&errors[next++], 1});
    });
    store_.feedback_written();
  }
  GradientStore& store() { return store_; }

 private:
  void write(int64_t group, std::byte* to, int64_t step, int64_t pass) {
    const Part range = plan_.group(group);
    auto* const data = reinterpret_cast<float*>(to);
    const bool adds = store_.model_accumulates() && pass > 0;
    std::vector<bool> is_parameter(static_cast<size_t>(range.size()));
    for (const ZeroParameter& parameter : job_.layout.parameters) {
      for (int64_t i = std::max(range.begin, parameter.elements.begin);
           i < std::min(range.end, parameter.elements.end); ++i) {
        float& value = data[i - range.begin];
        const float computed = gradient_of(job_.seed, step, pass, comm_.world().rank, i);
        value = adds ? value + computed : computed;
        is_parameter[static_cast<size_t>(i - range.begin)] = true;
      }
    }
    for (int64_t i = 0; i < range.size(); ++i) {
      if (!is_parameter[static_cast<size_t>(i)]) data[i] = between_parameters_;
    }
    store_.close(group);
  }

  const FeedbackJob& job_;
  Communicator& comm_;
  float between_parameters_;
  ThreadPool pool_{1};
  ShardPlan plan_;
  GradientStore store_;
};

void require(bool is_right, const std::string& what) {
  if (!is_right) throw std::runtime_error(what);
}

void run_jobs(uint64_t num_jobs, const std::function<void(const FeedbackJob& job, Communicator& comm)>& body,
              const std::function<void(FeedbackJob*)>& change = {}) {
  for (uint64_t seed = 0; seed < num_jobs; ++seed) {
    FeedbackJob job = random_feedback_job(seed);
    if (change) change(&job);
    const auto errors = run_communicators(job.layout.num_nodes, job.layout.local_world_size, job.comm,
                                          [&](Communicator& comm) { body(job, comm); });
    ASSERT_THAT(errors, Each(IsEmpty())) << job.describe();
  }
}

// Until errors are settled, every other node holds back at most half a step; including these errors, sums are
// exact up to the rounding of errors to bf16 and of sums to float32.
TEST(GradientFeedback, WhatArrivesAddsUpToTheGradients) {
  run_jobs(30, [](const FeedbackJob& job, Communicator& comm) {
    FeedbackRank rank(job, comm, 1e6f);
    constexpr int64_t kSteps = 4;
    std::vector<double> arrived, sent;
    for (int64_t step = 0; step < kSteps; ++step) {
      rank.step(step);
      size_t next = 0;
      rank.for_each_owned([&](int64_t group, int64_t element) {
        if (step == 0) {
          arrived.push_back(0);
          sent.push_back(0);
        }
        arrived[next] += rank.sum_at(group, element);
        sent[next] += sum_of_step(job, step, element);
        const double held_back = (job.layout.num_nodes - 1) * 0.51 * largest_step(job);
        require(std::abs(arrived[next] - sent[next]) < held_back,
                fmt::format("step {}, element {}: {} of {} have arrived", step, element, arrived[next],
                            sent[next]));
        ++next;
      });
    }
    rank.store().settle_feedback({});
    const std::vector<float> errors = rank.errors();
    const double reductions = kSteps * static_cast<double>(job.settings.passes_per_step);
    const double rounding = reductions * job.layout.num_nodes * largest_step(job) / 2 / 256 + 1e-5;
    for (size_t i = 0; i < errors.size(); ++i) {
      require(std::abs(arrived[i] + errors[i] - sent[i]) < rounding,
              fmt::format("value {}: {} have arrived and {} are held back of {}", i, arrived[i], errors[i],
                          sent[i]));
    }
  });
}

// Whatever lies between parameters.
TEST(GradientFeedback, ThatIsSettledContinuesInOtherRanksWithTheSameBits) {
  run_jobs(20, [](const FeedbackJob& job, Communicator& comm) {
    std::vector<float> errors, expected;
    {
      FeedbackRank whole(job, comm, 1e6f);
      whole.step(0);
      whole.step(1);
      whole.store().settle_feedback({});
      errors = whole.errors();
      whole.store().settle_feedback({});
      require(whole.errors() == errors, "settled again");
      whole.step(2);
      require(whole.errors() == errors, "changed while they may still be read");
      whole.step(3);
      expected = whole.sums();
      comm.barrier({"end of the first"});
    }
    FeedbackRank resumed(job, comm, -3e7f);
    resumed.write_errors(errors);
    resumed.step(2);
    resumed.step(3);
    require(resumed.sums() == expected, "other sums");
    comm.barrier({"end of the second"});
  });
}

TEST(GradientFeedback, IsLeftAloneByAPassThatIsComputedForACheck) {
  const auto in_every_pass = [](FeedbackJob* job) {
    job->settings.stage = 3;
    job->settings.schedule = GatherSchedule::kPerLayer;
    job->settings.passes_per_step = 1;
  };
  run_jobs(
      10,
      [](const FeedbackJob& job, Communicator& comm) {
        FeedbackRank rank(job, comm, 0);
        rank.step(0);
        rank.store().settle_feedback({});  // errors of its own, too
        rank.run_pass(1, 0, /*is_last=*/true, /*keeps_feedback=*/true);
        const std::vector<float> first = rank.sums();
        rank.step(1);
        require(rank.sums() == first, "the second time");
        rank.step(1);
        require(rank.sums() != first, "the third time, with new errors");
        comm.barrier({"end"});
      },
      in_every_pass);
}

TEST(GradientFeedback, OfAStepThatIsGivenUpIsForgotten) {
  run_jobs(10, [](const FeedbackJob& job, Communicator& comm) {
    FeedbackRank rank(job, comm, 0);
    rank.step(0);
    const std::vector<float> first = rank.sums();
    rank.store().discard_feedback();
    rank.step(0);
    require(rank.sums() == first, "other sums");
    rank.store().discard_feedback();
    rank.store().settle_feedback({});
    for (const float error : rank.errors()) require(error == 0, "an error is left");
    comm.barrier({"end"});
  });
}

// A gradient that is not finite is seen by its owner and forgotten afterwards.
TEST(GradientFeedback, StaysFiniteAfterAGradientThatIsNot) {
  run_jobs(10, [](const FeedbackJob& job, Communicator& comm) {
    FeedbackRank rank(job, comm, 0);
    rank.step(0);
    std::byte* data = nullptr;
    rank.store().begin_pass(true, true);
    std::byte* const embedding = job.layout.tied_embeddings ? rank.store().open(0) : nullptr;
    for (int64_t g = std::ssize(job.layout.groups) - 1; g >= 0; --g) {
      data = g == 0 && embedding != nullptr ? embedding : rank.store().open(g);
      const Part range = job.layout.groups[static_cast<size_t>(g)];
      std::fill_n(reinterpret_cast<float*>(data), range.size(), 1.0f);
      if (comm.world().rank == 0) *reinterpret_cast<float*>(data) = INFINITY;
      rank.store().close(g);
    }
    rank.store().finish_pass();
    rank.for_each_owned([&](int64_t group, int64_t element) {
      const bool is_first = element == job.layout.groups[static_cast<size_t>(group)].begin;
      require(!is_first || !std::isfinite(rank.sum_at(group, element)), "the sum is finite");
    });
    rank.store().discard_feedback();
    rank.step(1);
    for (const float sum : rank.sums()) require(std::isfinite(sum), "a sum is not finite");
    comm.barrier({"end"});
  });
}

TEST(GradientFeedback, IsNotThereOnOneNodeOrWithExactGradients) {
  FeedbackJob job = random_feedback_job(1);
  job.layout.num_nodes = 1;
  job.layout.local_world_size = 2;
  const auto expect_none = [&] {
    const auto errors = run_communicators(job.layout.num_nodes, 2, job.comm, [&](Communicator& comm) {
      FeedbackRank rank(job, comm, 0);
      rank.step(0);
      require(!rank.store().has_feedback(), "there are errors");
      comm.barrier({"end"});
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
  };
  expect_none();
  job.layout.num_nodes = 2;
  job.settings.quantized_gradients.reset();
  expect_none();
}

}  // namespace
}  // namespace tessera
