// The inputs of a model's layers, on disk from a layer's forward to its backward pass: only kSlots of them
// are in memory. An input is written while the next layers compute, and read while the backward of the layers
// above it computes; the last kSlots inputs never leave memory.
//
// Input i uses slot i % kSlots:
//
//   forward, layer i     waits for input i + 1 - kSlots, whose slot its output takes; then input i is written
//   backward, layer i    waits for input i; then input i - kSlots is read into its slot
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "io/async_file.h"
#include "tensor/tensor_view.h"

namespace tessera {

class OffloadedInputs {
 public:
  static constexpr int64_t kSlots = 3;

  // The bytes that an input of `bytes` bytes takes, padded for transfers.
  static int64_t slot_bytes(int64_t bytes);
  // Size of the file: 0 if the slots hold the inputs of all layers.
  static int64_t file_bytes(int64_t num_layers, int64_t slot_bytes);

  // Error(kIoError) if the file cannot be created or the disk has too little room.
  OffloadedInputs(const std::filesystem::path& path, int64_t num_layers, int64_t slot_bytes,
                  const AsyncFileSettings& settings);

  // Starts a pass.
  void begin();
  // Before and after the forward of a layer, whose input is x_TD, at the start of its slot. Nothing need be
  // written where no backward follows.
  void before_forward(int64_t layer) { wait(layer + 1); }
  void after_forward(int64_t layer, TensorView x_TD);
  void before_backward(int64_t layer) { wait(layer); }
  void after_backward(int64_t layer, TensorView x_TD);

  AsyncFileStatistics statistics() const { return file_.statistics(); }

 private:
  void wait(int64_t layer);

  int64_t num_layers_;
  int64_t slot_bytes_;
  AsyncFile file_;
  std::array<std::optional<AsyncFile::Ticket>, kSlots> transfers_;  // under way, by slot
};

}  // namespace tessera
