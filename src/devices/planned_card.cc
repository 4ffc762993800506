#include "devices/planned_card.h"

#include <utility>

#include "base/error.h"
#include "devices/cuda/workspace.h"
#include "ops/cpu_ops.h"

namespace tessera {

namespace {

// Owns everything the operations need.
class OwnedCardOps final : public ForwardingOps {
 public:
  OwnedCardOps(ThreadPool& pool, std::string name, int64_t free_bytes)
      : ForwardingOps(*this),
        any_(make_cpu_ops(pool)),
        card_(std::move(name), free_bytes),
        ops_(*any_, card_) {
    forward_to(ops_);
  }
  Device& device() const override { return ops_.device(); }
  std::string description() const override { return ops_.description(); }

 private:
  std::unique_ptr<Ops> any_;
  PlannedCard card_;
  PlannedCardOps ops_;
};

}  // namespace

OpsFactory planned_card_ops(std::string name, int64_t free_bytes) {
  return [name = std::move(name), free_bytes](ThreadPool& pool) {
    return std::make_unique<OwnedCardOps>(pool, name, free_bytes);
  };
}

DeviceBuffer PlannedCard::allocate(int64_t size_bytes) {
  TESSERA_CHECK(false, "{} bytes on {}, which is only planned", size_bytes, name_);
  return {};
}

void PlannedCard::copy_from_host(std::span<const std::byte> from, std::byte* /*to*/) {
  TESSERA_CHECK(false, "a copy of {} bytes to {}, which is only planned", from.size(), name_);
}

void PlannedCard::copy_to_host(const std::byte* /*from*/, std::span<std::byte> to) {
  TESSERA_CHECK(false, "a copy of {} bytes from {}, which is only planned", to.size(), name_);
}

void PlannedCard::synchronize() { TESSERA_CHECK(false, "{} is only planned", name_); }

std::string PlannedCardOps::description() const { return "planned: " + std::string(card_.name()); }

int64_t PlannedCardOps::workspace_bytes(const OpsLimits& limits) const {
  return cuda::workspace_bytes(limits);
}

void PlannedCardOps::bind_workspace(std::span<std::byte> workspace) {
  TESSERA_CHECK(false, "a workspace of {} bytes on {}, which is only planned", workspace.size(),
                card_.name());
}

int64_t PlannedCardOps::packed_weight_bytes(int64_t /*N*/, int64_t /*K*/, DType /*dtype*/) const { return 0; }

void PlannedCardOps::around(const OpCall& call, FunctionRef<void()> /*run*/) {
  TESSERA_CHECK(false, "{} on {}, which is only planned", call.name, card_.name());
}

}  // namespace tessera
