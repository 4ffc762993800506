// NVIDIA cards as devices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "devices/cuda/cuda_stream.h"
#include "tensor/device.h"

namespace tessera {

struct CudaCard {
  std::string name;          // "NVIDIA H200"
  int compute_capability;    // 90
  int64_t memory_bytes = 0;  // of the card
  int64_t free_bytes = 0;    // now
};

// One card: all operations and copies are carried out in the order of one stream; copy queues have a stream
// of their own.
class CudaDevice final : public Device {
 public:
  // This rank's card among those that CUDA_VISIBLE_DEVICES leaves. Error(kBadConfig) with the reason if it
  // cannot be used.
  explicit CudaDevice(int local_rank);

  std::string_view name() const override { return card_.name; }
  DeviceBuffer allocate(int64_t size_bytes) override;
  void copy_from_host(std::span<const std::byte> from, std::byte* to) override;
  void copy_to_host(const std::byte* from, std::span<std::byte> to) override;
  void synchronize() override;
  std::unique_ptr<CopyQueue> make_copy_queue() override;
  std::shared_ptr<void> pin(std::span<std::byte> memory) override;
  std::unique_ptr<DeviceClock> make_clock() override;
  std::optional<OwnMemory> own_memory() const override;

  CudaStream stream() const { return stream_; }
  // The calling thread uses this card from now on; every function of this class has it do so.
  void make_current() const;
  CudaCard card() const;  // with what is free now

 private:
  int index_;
  int num_cards_ = 1;
  CudaCard card_;
  int64_t free_at_start_ = 0;
  CudaStream stream_ = nullptr;
};

// The card of this process, opened on first use and never closed: the ranks of a machine take those that
// CUDA_VISIBLE_DEVICES leaves in turn.
CudaDevice& cuda_device(int local_rank = 0);

}  // namespace tessera
