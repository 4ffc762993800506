#include "optim/state_file.h"

#include <algorithm>

#include "base/clock.h"
#include "base/divide_up.h"
#include "base/error.h"

namespace tessera {
namespace {

// Large enough for a disk (2 MiB of every float32 tensor), small enough that the smallest ring of chunks is
// negligible beside the state. Few elements are cut into 64 chunks. A multiple of the elements that the
// smallest type needs for kDirectAlignment bytes, and of every block of codes.
constexpr int64_t kMaxChunkElements = int64_t{1} << 19;
constexpr int64_t kMinChunkElements = kDirectAlignment;
constexpr int64_t kWantedChunks = 64;

// Chunks that are being written while those after them are read: a buffer is read into when its chunk is
// written, and the disk must have something to do until then.
constexpr int64_t kChunksBehind = 3;

// A buffer has two transfers at most, which AsyncFile takes without waiting.
constexpr int64_t kMaxSlots = AsyncFile::kMaxTransfers / 2 - 16;
constexpr int64_t kMaxChunksAhead = kMaxSlots - 1 - kChunksBehind;

}  // namespace

int64_t StateFile::chunk_elements_of(int64_t num_elements) {
  return std::clamp(round_up(divide_up(num_elements, kWantedChunks), kMinChunkElements), kMinChunkElements,
                    kMaxChunkElements);
}

StateFile::Sizes::Sizes(const std::vector<FilePart>& parts, int64_t num_elements, int64_t chunks_ahead)
    : chunk_elements(chunk_elements_of(num_elements)), num_chunks(divide_up(num_elements, chunk_elements)) {
  const int64_t wanted = std::clamp(chunks_ahead, kMinChunksAhead, kMaxChunksAhead);
  num_slots = std::min(num_chunks, wanted + 1 + kChunksBehind);
  num_ahead = std::min(wanted, num_slots - 1);
  TESSERA_CHECK(!parts.empty() && parts.size() <= kMaxParts, "{} parts", parts.size());
  for (size_t part = 0; part < parts.size(); ++part) {
    const int64_t phase_bytes = parts[part].phase_bytes;
    TESSERA_CHECK(0 <= phase_bytes && phase_bytes < kDirectAlignment &&
                      phase_bytes % FilePart::phase_alignment(parts[part].dtype) == 0,
                  "{} bytes", phase_bytes);
    const int64_t bytes = part_bytes(parts[part], chunk_elements);
    part_offset[part] = chunk_bytes;
    chunk_bytes += bytes;
    largest_part_bytes = std::max(largest_part_bytes, bytes);
  }
}

int64_t StateFile::Sizes::part_bytes(const FilePart& part, int64_t chunk_elements) {
  return round_up(part.phase_bytes + state_bytes(part.dtype, chunk_elements), kDirectAlignment);
}

StateFile::StateFile(const StateFileSettings& settings, std::vector<FilePart> parts, int64_t num_elements)
    : file_parts_(std::move(parts)),
      sizes_(file_parts_, num_elements, settings.chunks_ahead),
      ring_(sizes_.num_slots * sizes_.chunk_bytes),
      piece_(sizes_.largest_part_bytes),
      slots_(static_cast<size_t>(sizes_.num_slots)),
      slot_of_(static_cast<size_t>(sizes_.num_chunks), -1),
      file_(settings.path, sizes_.file_bytes(), settings.transfers) {}

std::span<std::byte> StateFile::memory(const Slot& slot) const {
  return {ring_.data() + (&slot - slots_.data()) * sizes_.chunk_bytes,
          static_cast<size_t>(sizes_.chunk_bytes)};
}

StateFile::Slot* StateFile::find(int64_t chunk) {
  const int32_t at = slot_of_[static_cast<size_t>(chunk)];
  return at < 0 ? nullptr : &slots_[static_cast<size_t>(at)];
}

void StateFile::settle(Slot& slot) {
  if (slot.transfer) file_.wait(*slot.transfer);
  slot.transfer.reset();
}

// Takes the slot that has not been used for the longest time. Its chunk may still be on its way to the disk:
// as all later transfers wait with this one until it is there, a later read of the chunk gets what was
// written.
StateFile::Slot& StateFile::fetch(int64_t chunk) {
  Slot* slot = find(chunk);
  if (slot == nullptr) {
    slot = &*std::ranges::min_element(slots_, {}, [this](const Slot& candidate) {
      return open_ >= 0 && candidate.chunk == open_ ? num_uses_ + 1 : candidate.last_use;
    });
    if (slot->chunk >= 0) slot_of_[static_cast<size_t>(slot->chunk)] = -1;
    slot->chunk = chunk;
    slot_of_[static_cast<size_t>(chunk)] = static_cast<int32_t>(slot - slots_.data());
    const int64_t offset = chunk * sizes_.chunk_bytes;
    slot->transfer = slot->transfer ? file_.read_after(*slot->transfer, offset, memory(*slot))
                                    : file_.read(offset, memory(*slot));
  }
  slot->last_use = ++num_uses_;
  return *slot;
}

void StateFile::fetch_ahead() {
  int64_t num_left = sizes_.num_ahead;
  for (int64_t chunk = open_ + 1; chunk < open_end_ && num_left > 0; ++chunk, --num_left) fetch(chunk);
  for (int64_t chunk = announced_; chunk < announced_end_ && num_left > 0; ++chunk, --num_left) fetch(chunk);
}

const StateFile::Parts& StateFile::open(int64_t chunk, int64_t end) {
  TESSERA_CHECK(0 <= chunk && chunk < end && end <= sizes_.num_chunks, "chunks [{}, {}) of {}", chunk, end,
                sizes_.num_chunks);
  const Stopwatch watch;
  const std::lock_guard lock(mutex_);
  if (open_ >= 0 && chunk != open_) {
    Slot& done = *find(open_);
    done.transfer = file_.write(open_ * sizes_.chunk_bytes, memory(done));
  }
  open_ = chunk;
  open_end_ = end;
  Slot& slot = fetch(chunk);
  fetch_ahead();
  settle(slot);
  for (size_t part = 0; part < file_parts_.size(); ++part) {
    parts_[part] = memory(slot).data() + sizes_.part_offset[part] + file_parts_[part].phase_bytes;
  }
  waited_seconds_ += watch.seconds();
  return parts_;
}

void StateFile::announce(int64_t chunk, int64_t end) {
  TESSERA_CHECK(0 <= chunk && chunk <= end && end <= sizes_.num_chunks, "chunks [{}, {}) of {}", chunk, end,
                sizes_.num_chunks);
  const std::lock_guard lock(mutex_);
  announced_ = chunk;
  announced_end_ = end;
}

void StateFile::read(
    size_t part, int64_t begin, int64_t count,
    FunctionRef<void(const std::byte* values, int64_t first, int64_t done, int64_t count)> body) {
  access(part, begin, count, false,
         [&](const Piece& piece) { body(piece.values, piece.first, piece.done, piece.count); });
}

void StateFile::write(size_t part, int64_t begin, int64_t count,
                      FunctionRef<void(std::byte* values, int64_t first, int64_t done, int64_t count)> body) {
  access(part, begin, count, true,
         [&](const Piece& piece) { body(piece.values, piece.first, piece.done, piece.count); });
}

void StateFile::read_stored(size_t part, int64_t begin, int64_t count, const StoredBody& body) {
  access(part, begin, count, false, [&](const Piece& piece) {
    const DType dtype = file_parts_[part].dtype;
    const int64_t begin_bytes = state_bytes(dtype, piece.first);
    const FileBytes in_file = {file_.fd(), piece.file_offset,
                               state_bytes(dtype, piece.first + piece.count) - begin_bytes};
    body(piece.done, {piece.values + begin_bytes, static_cast<size_t>(in_file.size_bytes)},
         piece.is_open ? nullptr : &in_file);
  });
}

// Writes go to the file at once, except into the open chunk. Whole pages of the part are read and written
// back, because values and blocks of codes may share them.
void StateFile::access(size_t part, int64_t begin, int64_t count, bool writes,
                       FunctionRef<void(const Piece& piece)> body) {
  const auto [dtype, phase_bytes] = file_parts_[part];
  const int64_t block = state_block(dtype);
  for (int64_t done = 0; done < count;) {
    const int64_t chunk = (begin + done) / sizes_.chunk_elements;
    const int64_t first = (begin + done) % sizes_.chunk_elements;
    const int64_t now = std::min(count - done, sizes_.chunk_elements - first);
    const int64_t first_bytes = phase_bytes + state_bytes(dtype, first / block * block);
    const int64_t begin_bytes = first_bytes / kDirectAlignment * kDirectAlignment;
    const int64_t end_bytes = round_up(phase_bytes + state_bytes(dtype, first + now), kDirectAlignment);
    const int64_t part_offset = chunk * sizes_.chunk_bytes + sizes_.part_offset[part];

    const std::lock_guard lock(mutex_);
    Slot* slot = find(chunk);
    if (slot != nullptr) settle(*slot);
    std::byte* from = slot == nullptr ? piece_.data() : memory(*slot).data() + sizes_.part_offset[part];
    const std::span<std::byte> pages(from + begin_bytes, static_cast<size_t>(end_bytes - begin_bytes));
    if (slot == nullptr) file_.wait(file_.read(part_offset + begin_bytes, pages));
    body({.values = from + phase_bytes,
          .first = first,
          .done = done,
          .count = now,
          .is_open = chunk == open_,
          .file_offset = part_offset + first_bytes});
    if (writes && chunk != open_) file_.wait(file_.write(part_offset + begin_bytes, pages));
    done += now;
  }
}

void StateFile::discard(size_t part) {
  const std::lock_guard lock(mutex_);
  file_.wait_all();
  const int64_t bytes = Sizes::part_bytes(file_parts_[part], sizes_.chunk_elements);
  for (int64_t chunk = 0; chunk < sizes_.num_chunks; ++chunk) {
    file_.discard(chunk * sizes_.chunk_bytes + sizes_.part_offset[part], bytes);
  }
}

AsyncFileStatistics StateFile::statistics() const {
  const std::lock_guard lock(mutex_);
  AsyncFileStatistics statistics = file_.statistics();
  statistics.waited_seconds = waited_seconds_;
  return statistics;
}

}  // namespace tessera
