#include "bench/measure.h"

#include <gtest/gtest.h>

#include "devices/measure/random_tensor.h"
#include "expect_error.h"
#include "kernels/expected.h"

namespace tessera {
namespace {

TEST(Quartiles, InterpolateBetweenOrderStatistics) {
  const Quartiles odd = quartiles(std::vector<double>{5, 1, 3, 2, 4});
  EXPECT_EQ(odd.q1, 2);
  EXPECT_EQ(odd.median, 3);
  EXPECT_EQ(odd.q3, 4);
  const Quartiles even = quartiles(std::vector<double>{4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(even.q1, 1.75);
  EXPECT_DOUBLE_EQ(even.median, 2.5);
  EXPECT_DOUBLE_EQ(even.q3, 3.25);
  const Quartiles one = quartiles(std::vector<double>{7});
  EXPECT_EQ(one.q1, 7);
  EXPECT_EQ(one.median, 7);
  EXPECT_EQ(one.q3, 7);
  expect_error(ExitCode::kInternal, {"quartiles of nothing"}, [] { quartiles({}); });
}

TEST(Quartiles, OneOutlierDoesNotMoveTheMedian) {
  EXPECT_EQ(quartiles(std::vector<double>{1, 1, 1, 1, 1000}).median, 1);
}

TEST(PairedRatios, DivideWhatWasMeasuredInTheSameRound) {
  EXPECT_EQ(paired_ratios(std::vector<double>{1, 4, 9}, std::vector<double>{2, 2, 3}),
            (std::vector<double>{0.5, 2, 3}));
  expect_error(ExitCode::kInternal, {"2 numerators, 1 denominators"}, [] {
    paired_ratios(std::vector<double>{1, 2}, std::vector<double>{1});
  });
}

// The median of the ratios is not the ratio of the medians: a machine that slows both down cancels out.
TEST(PairedRatios, AreBlindToWhatSlowsDownBoth) {
  const std::vector<double> ours = {1, 10, 2, 8, 4}, peak = {2, 20, 4, 16, 8};
  const Quartiles share = quartiles(paired_ratios(ours, peak));
  EXPECT_EQ(share.q1, 0.5);
  EXPECT_EQ(share.median, 0.5);
  EXPECT_EQ(share.q3, 0.5);
}

TEST(MeasureInTurn, TakesTurnsAndDropsTheFirstRound) {
  std::string order;
  int a = 0, b = 0;
  const std::vector<Participant> participants = {[&] { return order += 'a', ++a; },
                                                 [&] { return order += 'b', 10 * ++b; }};
  MeasureOptions options;
  options.seconds = 0;
  options.min_rounds = 3;
  const auto speeds = measure_in_turn(participants, options);
  EXPECT_EQ(order, "abababab");
  EXPECT_EQ(speeds[0], (std::vector<double>{2, 3, 4}));
  EXPECT_EQ(speeds[1], (std::vector<double>{20, 30, 40}));
}

TEST(MeasureInTurn, GoesOnUntilTheTimeIsOver) {
  const std::vector<Participant> participants = {[] { return speed_of([] {}, 1, 0.001); }};
  MeasureOptions options;
  options.seconds = 0.02;
  options.min_rounds = 1;
  const size_t rounds = measure_in_turn(participants, options)[0].size();
  EXPECT_GE(rounds, 2u);
  EXPECT_LE(rounds, 20u);
}

TEST(SpeedOf, CallsAtLeastOnceAndCountsTheAmount) {
  int calls = 0;
  EXPECT_GT(speed_of([&] { ++calls; }, 5, 0), 0);
  EXPECT_EQ(calls, 1);
  calls = 0;
  const double speed = speed_of([&] { ++calls; }, 2, 0.01);
  EXPECT_GT(calls, 1);
  EXPECT_LE(speed, 2 * calls / 0.01);
}

TEST(PeakMeter, IsThatOfTheTypeOfTheOperands) {
  ThreadPool pool(1);
  if (ComputePeakMeter::instruction_sets().empty()) GTEST_SKIP() << "this processor has no loop";
  EXPECT_GT(make_peak_meter(pool, DType::kBF16).measure(0.001), 0);
  EXPECT_EQ(make_peak_meter(pool, DType::kF32).arithmetic(), "float32");
}

TEST(RandomTensor, IsTheSameForASeedAndLooksNormal) {
  ThreadPool one(1), two(2);
  const Shape shape = {3'000'000};
  const RandomTensor a(DType::kF32, shape, 5, 2, one), b(DType::kF32, shape, 5, 2, two),
      c(DType::kF32, shape, 6, 2, one);
  double sum = 0, squares = 0;
  int64_t different = 0;
  for (int64_t i = 0; i < shape[0]; ++i) {
    ASSERT_EQ(element(a.view(), i), element(b.view(), i)) << i;
    different += element(a.view(), i) != element(c.view(), i);
    sum += element(a.view(), i);
    squares += element(a.view(), i) * element(a.view(), i);
  }
  EXPECT_NEAR(sum / 3e6, 0, 0.02);
  EXPECT_NEAR(squares / 3e6, 4, 0.05);
  EXPECT_GT(different, 2'900'000);
}

TEST(ColdCopies, RotateThroughSeparateMemory) {
  ThreadPool pool(1);
  ColdCopies copies(DType::kBF16, {10, 7}, 20000, 1, pool);
  EXPECT_EQ(copies.num_copies(), 5);
  const std::byte* first = copies.next().bytes();
  const std::byte* previous = first;
  for (int i = 1; i < 5; ++i) {
    const std::byte* at = copies.next().bytes();
    EXPECT_GE(at - previous, 140);
    previous = at;
  }
  EXPECT_EQ(copies.next().bytes(), first);
  EXPECT_GE(ColdCopies::size_bytes(DType::kBF16, {10, 7}, 20000), 20000);
  EXPECT_EQ(ColdCopies(DType::kF32, {4}, 1, 1, pool).num_copies(), 1);
}

}  // namespace
}  // namespace tessera
