#include "ops/clocked_ops.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/clock.h"
#include "ops/cpu_ops.h"

namespace tessera {
namespace {

// A device that lags the host: its n-th interval takes n seconds, unknown to the host before finish().
class LateDevice final : public Device {
 public:
  std::string_view name() const override { return "late"; }
  DeviceBuffer allocate(int64_t size_bytes) override { return host_device().allocate(size_bytes); }
  void copy_from_host(std::span<const std::byte> from, std::byte* to) override {
    host_device().copy_from_host(from, to);
  }
  void copy_to_host(const std::byte* from, std::span<std::byte> to) override {
    host_device().copy_to_host(from, to);
  }
  void synchronize() override {}
  std::unique_ptr<DeviceClock> make_clock() override { return std::make_unique<Clock>(*this); }

  int num_finishes = 0;

 private:
  class Clock final : public DeviceClock {
   public:
    explicit Clock(LateDevice& device) : device_(device) {}
    void begin() override { ++num_begun_; }
    void end(double* sum_s) override { sums_.push_back({sum_s, num_begun_}); }
    void finish() override {
      for (const auto& [sum, seconds] : std::exchange(sums_, {})) *sum += seconds;
      ++device_.num_finishes;
    }
    void discard() override { sums_.clear(); }

   private:
    LateDevice& device_;
    double num_begun_ = 0;
    std::vector<std::pair<double*, double>> sums_;
  };
};

class LateOps final : public ForwardingOps {
 public:
  LateOps(Ops& ops, Device& device) : ForwardingOps(ops), device_(device) {}
  Device& device() const override { return device_; }

 private:
  Device& device_;
};

TEST(ClockedOps, AddUpTheDevicesTimesWithoutWaiting) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> cpu_ops = make_cpu_ops(pool);
  LateDevice device;
  LateOps late(*cpu_ops, device);
  ClockedOps ops(late);
  OpsLimits limits = {};
  limits.max_tokens = 4;
  limits.dtype = DType::kF32;
  limits.linears = {{4, {4, 4}}};
  const DeviceBuffer workspace = host_device().allocate(ops.workspace_bytes(limits));
  ops.bind_workspace(workspace.span());
  std::vector<float> values(4 * 4, 1);
  const TensorView square(values.data(), DType::kF32, {4, 4});
  std::vector<float> results(4 * 4);
  const TensorView result(results.data(), DType::kF32, {4, 4});
  ops.zero(result);  // 1 s
  ops.restart();
  ops.linear(square, square, {}, result);  // 2 s
  ops.add(result, square);                 // 3 s
  ops.linear(square, square, {}, result);  // 4 s
  EXPECT_EQ(device.num_finishes, 0);
  const OperationTimes times = ops.take();
  EXPECT_EQ(device.num_finishes, 1);
  EXPECT_EQ(times.products_s, 2 + 4);
  EXPECT_EQ(times.elementwise_s, 3);
  EXPECT_EQ(times.attention_s, 0);
  EXPECT_EQ(ops.take().products_s, 0);
}

TEST(ClockedOps, TakeTheHostsTimeOfAProcessor) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> cpu_ops = make_cpu_ops(pool);
  ClockedOps ops(*cpu_ops);
  std::vector<float> values(1 << 16, 1);
  const TensorView all(values.data(), DType::kF32, {std::ssize(values)});
  const Stopwatch time;
  ops.zero(all);
  const OperationTimes times = ops.take();
  EXPECT_GT(times.elementwise_s, 0);
  EXPECT_LE(times.elementwise_s, time.seconds());
  EXPECT_EQ(times.products_s, 0);
}

}  // namespace
}  // namespace tessera
