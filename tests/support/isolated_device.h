// A device whose memory the host cannot read or write, to show that code above Ops keeps to operations and
// copies as a real device demands.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ops/forwarding_ops.h"
#include "platform/thread_pool.h"

namespace tessera {

// Pages of this process that are accessible only while the device works: during its operations and copies.
// Copies of a queue are made as late as it allows.
class IsolatedDevice final : public Device {
 public:
  // The free memory that a run may take; if unset, the device does not report its memory.
  explicit IsolatedDevice(std::optional<int64_t> free_bytes = int64_t{1} << 40) : free_bytes_(free_bytes) {}

  std::string_view name() const override { return "isolated"; }
  DeviceBuffer allocate(int64_t size_bytes) override;
  void copy_from_host(std::span<const std::byte> from, std::byte* to) override;
  void copy_to_host(const std::byte* from, std::span<std::byte> to) override;
  void synchronize() override {}
  std::unique_ptr<CopyQueue> make_copy_queue() override;
  std::optional<OwnMemory> own_memory() const override {
    return free_bytes_ ? std::optional(OwnMemory{.free_bytes = *free_bytes_}) : std::nullopt;
  }

  bool owns(const std::byte* address) const;
  // Makes the memory accessible during `work`.
  void run(FunctionRef<void()> work);

 private:
  void protect_all(int protection);

  std::optional<int64_t> free_bytes_;
  // Checkpoints are read while training continues.
  mutable std::recursive_mutex mutex_;
  std::vector<std::span<std::byte>> blocks_;
};

// Operations on that memory, computed by other Ops. Refuses operands that are elsewhere.
class IsolatedOps final : public ForwardingOps {
 public:
  IsolatedOps(Ops& ops, IsolatedDevice& device) : ForwardingOps(ops), device_(device) {}

  Device& device() const override { return device_; }
  void bind_workspace(std::span<std::byte> workspace) override;
  // Asks for packed forms even if the other Ops have no use for them, so that their memory is always tested.
  int64_t packed_weight_bytes(int64_t N, int64_t K, DType dtype) const override;
  void pack_linear_weight(ConstTensorView w_NK, const PackedForms& to, RowRange rows) override;

 private:
  void around(const OpCall& call, FunctionRef<void()> run) override;

  IsolatedDevice& device_;
};

// Owns everything it needs, as a run makes its operations.
class OwnedIsolatedOps final : public ForwardingOps {
 public:
  explicit OwnedIsolatedOps(ThreadPool& pool, int64_t free_bytes = int64_t{1} << 40);
  Device& device() const override { return isolated_.device(); }

 private:
  std::unique_ptr<Ops> cpu_ops_;
  IsolatedDevice device_;
  IsolatedOps isolated_;
};

}  // namespace tessera
