// A card that this machine need not have: of its memory only the size is known, of its operations only how
// much workspace they take. For plans of a run on such a card.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "devices/make_ops.h"
#include "ops/forwarding_ops.h"

namespace tessera {

class PlannedCard final : public Device {
 public:
  PlannedCard(std::string name, int64_t free_bytes) : name_(std::move(name)), free_bytes_(free_bytes) {}

  std::string_view name() const override { return name_; }
  std::optional<OwnMemory> own_memory() const override { return OwnMemory{.free_bytes = free_bytes_}; }

  // Failed checks.
  DeviceBuffer allocate(int64_t size_bytes) override;
  void copy_from_host(std::span<const std::byte> from, std::byte* to) override;
  void copy_to_host(const std::byte* from, std::span<std::byte> to) override;
  void synchronize() override;

 private:
  std::string name_;
  int64_t free_bytes_;
};

// Operations on a card of this name, with so much memory free.
OpsFactory planned_card_ops(std::string name, int64_t free_bytes);

// Sizes are those of devices/cuda; every operation is a failed check.
class PlannedCardOps final : public ForwardingOps {
 public:
  // `ops` are any; both must outlive this.
  PlannedCardOps(Ops& ops, PlannedCard& card) : ForwardingOps(ops), card_(card) {}

  Device& device() const override { return card_; }
  std::string description() const override;
  int64_t workspace_bytes(const OpsLimits& limits) const override;
  void bind_workspace(std::span<std::byte> workspace) override;
  int64_t packed_weight_bytes(int64_t N, int64_t K, DType dtype) const override;

 private:
  void around(const OpCall& call, FunctionRef<void()> run) override;

  PlannedCard& card_;
};

}  // namespace tessera
