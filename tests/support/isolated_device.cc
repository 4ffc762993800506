#include "support/isolated_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <deque>

#include "ops/cpu_ops.h"

namespace tessera {
namespace {

// A view of the same elements that treats them as the host's.
template <typename View>
View on_host(const Device& device, const char* operation, const View& view) {
  if (view.empty()) return view;
  TESSERA_CHECK(&view.device() == &device, "{}: an operand {} on device {}", operation,
                view.shape().to_string(), view.device().name());
  return View(view.address(), view.dtype(), view.shape());
}

// Makes a copy only when somebody waits for it, so that a missing wait shows as missing data.
class LateCopies final : public CopyQueue {
 public:
  ~LateCopies() override { wait(first_ + waiting_.size()); }
  void follow_device() override {}
  Mark copy(ConstTensorView from, TensorView to) override {
    waiting_.push_back({from, to});
    return first_ + waiting_.size();
  }
  void hold_device(Mark mark) override { wait(mark); }
  void wait(Mark mark) override {
    for (; first_ < mark; ++first_) {
      tessera::copy(waiting_.front().from, waiting_.front().to);
      waiting_.pop_front();
    }
  }

 private:
  struct Copy {
    ConstTensorView from;
    TensorView to;
  };

  std::deque<Copy> waiting_;
  Mark first_ = 0;  // of those that wait; marks count from 1
};

}  // namespace

DeviceBuffer IsolatedDevice::allocate(int64_t size_bytes) {
  if (size_bytes == 0) return {*this, nullptr, 0};
  const auto size = static_cast<size_t>(size_bytes);
  void* const mapped = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TESSERA_CHECK(mapped != MAP_FAILED, "{} bytes", size);
  const std::lock_guard lock(mutex_);
  blocks_.emplace_back(static_cast<std::byte*>(mapped), size);
  const auto release = [this, size](std::byte* data) {
    const std::lock_guard release_lock(mutex_);
    std::erase_if(blocks_, [data](std::span<std::byte> block) { return block.data() == data; });
    munmap(data, size);
  };
  return {*this, std::shared_ptr<std::byte>(static_cast<std::byte*>(mapped), release), size_bytes};
}

void IsolatedDevice::copy_from_host(std::span<const std::byte> from, std::byte* to) {
  run([&] { std::copy(from.begin(), from.end(), to); });
}

void IsolatedDevice::copy_to_host(const std::byte* from, std::span<std::byte> to) {
  run([&] { std::copy_n(from, to.size(), to.begin()); });
}

std::unique_ptr<CopyQueue> IsolatedDevice::make_copy_queue() { return std::make_unique<LateCopies>(); }

bool IsolatedDevice::owns(const std::byte* address) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(blocks_.begin(), blocks_.end(), [address](std::span<const std::byte> block) {
    return address >= block.data() && address < block.data() + block.size();
  });
}

void IsolatedDevice::run(FunctionRef<void()> work) {
  const std::lock_guard lock(mutex_);
  protect_all(PROT_READ | PROT_WRITE);
  work();
  protect_all(PROT_NONE);
}

void IsolatedDevice::protect_all(int protection) {
  for (const std::span<std::byte> block : blocks_) {
    TESSERA_CHECK(mprotect(block.data(), block.size(), protection) == 0, "{} bytes", block.size());
  }
}

void IsolatedOps::bind_workspace(std::span<std::byte> workspace) {
  TESSERA_CHECK(workspace.empty() || device_.owns(workspace.data()), "a workspace on another device");
  ForwardingOps::bind_workspace(workspace);
}

int64_t IsolatedOps::packed_weight_bytes(int64_t N, int64_t K, DType dtype) const {
  const int64_t bytes = ForwardingOps::packed_weight_bytes(N, K, dtype);
  return bytes > 0 ? bytes : N * K * dtype_bytes(dtype);
}

void IsolatedOps::pack_linear_weight(ConstTensorView w_NK, const PackedForms& to, RowRange rows) {
  for (const std::byte* form : {to.forward, to.backward_input}) {
    TESSERA_CHECK(form == nullptr || device_.owns(form), "a packed form on another device");
  }
  if (ForwardingOps::packed_weight_bytes(w_NK.dim(0), w_NK.dim(1), w_NK.dtype()) == 0) return;
  ForwardingOps::pack_linear_weight(w_NK, to, rows);
}

void IsolatedOps::around(const OpCall& call, FunctionRef<void()> run) {
  for (ConstTensorView* view : call.inputs) *view = on_host(device_, call.name, *view);
  for (TensorView* view : call.outputs) *view = on_host(device_, call.name, *view);
  device_.run(run);
}

OwnedIsolatedOps::OwnedIsolatedOps(ThreadPool& pool, int64_t free_bytes)
    : ForwardingOps(*this), cpu_ops_(make_cpu_ops(pool)), device_(free_bytes), isolated_(*cpu_ops_, device_) {
  forward_to(isolated_);
}

}  // namespace tessera
