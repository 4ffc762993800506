#include "shard/weights/layer_file.h"

#include <utility>

#include "base/error.h"
#include "base/memory.h"

namespace tessera {

LayerFile::LayerFile(const std::filesystem::path& path, const AsyncFileSettings& settings, std::byte* memory,
                     LayerPlaces places)
    : memory_(memory), places_(std::move(places)), file_(path, places_.file_bytes, settings) {}

std::span<std::byte> LayerFile::bytes_of(int64_t group) const {
  const int64_t size_bytes = places_.sizes[static_cast<size_t>(group)];
  return {address(group), static_cast<size_t>(round_up(size_bytes, kDirectAlignment))};
}

void LayerFile::settle(Slot& slot) {
  if (slot.transfer) file_.wait(*slot.transfer);
  slot.transfer.reset();
}

void LayerFile::fetch(int64_t group) {
  Slot& slot = slot_of(group);
  if (slot.group == group) return;
  settle(slot);
  slot.group = group;
  slot.transfer = file_.read(places_.file_begin[static_cast<size_t>(group)], bytes_of(group));
}

std::byte* LayerFile::open(int64_t group, bool forward) {
  if (has(group)) {
    fetch(group);
    settle(slot_of(group));
  }
  const int64_t next = forward ? group + 1 : group - 1;
  if (0 <= next && next < std::ssize(places_.begin) && has(next)) fetch(next);
  return address(group);
}

std::byte* LayerFile::overwrite(int64_t group) {
  if (has(group)) {
    settle(slot_of(group));
    slot_of(group).group = group;
  }
  return address(group);
}

void LayerFile::updated(int64_t group) {
  if (!has(group)) return;
  Slot& slot = slot_of(group);
  TESSERA_CHECK(slot.group == group, "group {} in the place of group {}", slot.group, group);
  slot.transfer = file_.write(places_.file_begin[static_cast<size_t>(group)], bytes_of(group));
}

void LayerFile::finish_updates() {
  for (Slot& slot : slots_) settle(slot);
}

void LayerFile::forget() {
  finish_updates();
  slots_.fill({});
}

}  // namespace tessera
