// The decoder layers of a model in a file, and a few of them in memory: the one in use, the next one of the
// pass, which is being read, and the previous one, which is being written if it has new values.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "io/async_file.h"
#include "shard/layout/weight_window.h"

namespace tessera {

class LayerFile {
 public:
  // `memory`, which outlives this, begins at a page. `places` are layer_places() with layers in a file.
  LayerFile(const std::filesystem::path& path, const AsyncFileSettings& settings, std::byte* memory,
            LayerPlaces places);

  bool has(int64_t group) const { return places_.file_begin[static_cast<size_t>(group)] >= 0; }
  std::byte* address(int64_t group) const { return memory_ + places_.begin[static_cast<size_t>(group)]; }

  // Returns once the group is at its address, and starts to read the next one in this direction. It stays
  // until the second group after it is opened.
  std::byte* open(int64_t group, bool forward);
  // The address of a group all of whose bytes are about to be written, before updated().
  std::byte* overwrite(int64_t group);
  // The group that is open, or to be overwritten, has new values.
  void updated(int64_t group);
  // Waits until the file has all updates.
  void finish_updates();
  // The file has been written to: what is in memory is out of date.
  void forget();

  const AsyncFile& file() const { return file_; }

 private:
  struct Slot {
    int64_t group = -1;
    std::optional<AsyncFile::Ticket> transfer;  // not waited for
  };

  Slot& slot_of(int64_t group) { return slots_[static_cast<size_t>(layer_slot(group))]; }
  // Memory of a group that is in the file, with the padding that transfers need.
  std::span<std::byte> bytes_of(int64_t group) const;
  void fetch(int64_t group);
  void settle(Slot& slot);

  std::byte* memory_;
  LayerPlaces places_;
  AsyncFile file_;
  std::array<Slot, kLayerSlots> slots_;
};

}  // namespace tessera
