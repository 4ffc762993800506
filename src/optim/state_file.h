// Optimizer state in a scratch file: chunks of elements pass through a ring of buffers while they are
// updated, with read-ahead and write-behind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/memory.h"
#include "io/async_file.h"
#include "io/output_file.h"
#include "optim/state_tensor.h"

namespace tessera {

// Chunks that are always read ahead; as many buffers are being written before one of them is used again.
inline constexpr int64_t kMinChunksAhead = 3;

struct StateFileSettings {
  std::filesystem::path path;
  AsyncFileSettings transfers = {};
  int64_t chunks_ahead = kMinChunksAhead;  // read before the update needs them
};

// A part of a state file: a tensor of the state, or the remainders of the masters.
struct FilePart {
  FilePart(DType of, int64_t begin_in_page = 0) : dtype(of), phase_bytes(begin_in_page) {}  // NOLINT: wanted

  DType dtype;
  int64_t phase_bytes;  // where it begins in a page of every chunk, at a multiple of phase_alignment()

  // Blocks of codes are bytes that no cache line holds anyway.
  static int64_t phase_alignment(DType dtype) { return is_block_code(dtype) ? 1 : kCacheLineBytes; }
};

using StoredBody =
    FunctionRef<void(int64_t done, std::span<const std::byte> stored, const FileBytes* in_file)>;

// A file of `num_elements` elements, with one value of every part for each. A chunk has all parts of
// chunk_elements() elements, one part after the other, each in its own pages of kDirectAlignment bytes:
//
//   chunk 0 [ exp_avg | exp_avg_sq | remainders ]  chunk 1 [ exp_avg | exp_avg_sq | remainders ]  ...
//
// While a chunk is open, those before it are written and those after it are read into the same buffers as
// soon as these are written, until chunks_ahead of them are in memory. All of that continues after open() has
// returned, whatever its caller computes.
//
// All values start as zeros. Errors are those of AsyncFile.
class StateFile {
 public:
  static constexpr size_t kMaxParts = kMaxStateTensors + 1;
  using Parts = std::array<std::byte*, kMaxParts>;  // the values of a chunk, by part

  StateFile(const StateFileSettings& settings, std::vector<FilePart> parts, int64_t num_elements);

  int64_t chunk_elements() const { return sizes_.chunk_elements; }
  // The chunk in memory, which one thread at a time may change until open() is called again; in the meantime
  // the chunks up to `end` and those announced are read.
  const Parts& open(int64_t chunk, int64_t end);
  // Announces the chunks to be opened after those of the next open().
  void announce(int64_t chunk, int64_t end);

  // Call body(values, first, done, count) for the pieces of elements [begin, begin + count) of a part:
  // `count` elements, after `done` of them, from element `first` of `values` on. Any threads may call, also
  // while other elements of an open chunk change.
  void read(size_t part, int64_t begin, int64_t count,
            FunctionRef<void(const std::byte* values, int64_t first, int64_t done, int64_t count)> body);
  void write(size_t part, int64_t begin, int64_t count,
             FunctionRef<void(std::byte* values, int64_t first, int64_t done, int64_t count)> body);

  // Like read(), but gives the bytes as stored, from element `begin + done` on, `begin` at a block. in_file:
  // where the file has them as well; nullptr: its values there are older.
  void read_stored(size_t part, int64_t begin, int64_t count, const StoredBody& body);

  // Frees the space of a part, whose values are not read again.
  void discard(size_t part);

  // waited_seconds: inside open(), for the disk or for what reads the file at the same time.
  AsyncFileStatistics statistics() const;

  // Elements per chunk of a file with `num_elements` elements.
  static int64_t chunk_elements_of(int64_t num_elements);

  struct Sizes {
    Sizes(const std::vector<FilePart>& parts, int64_t num_elements, int64_t chunks_ahead = kMinChunksAhead);

    int64_t chunk_elements;
    int64_t num_chunks;
    std::array<int64_t, kMaxParts> part_offset = {};  // of its pages in a chunk, in bytes
    int64_t chunk_bytes = 0;
    int64_t largest_part_bytes = 0;
    int64_t num_slots;
    int64_t num_ahead;  // at most chunks_ahead

    // Bytes of a part in a chunk.
    static int64_t part_bytes(const FilePart& part, int64_t chunk_elements);

    int64_t file_bytes() const { return num_chunks * chunk_bytes; }
    int64_t ahead_bytes() const { return num_ahead * chunk_bytes; }
    int64_t memory_bytes() const { return num_slots * chunk_bytes + largest_part_bytes; }
  };

 private:
  // A buffer of the ring.
  struct Slot {
    int64_t chunk = -1;
    int64_t last_use = 0;                       // the larger, the later
    std::optional<AsyncFile::Ticket> transfer;  // the last one from or into it
  };

  // Called with the lock held. Only the open chunk may differ from the file, once its transfers have ended,
  // and it does not lose its slot.
  Slot* find(int64_t chunk);
  Slot& fetch(int64_t chunk);  // starts to read the chunk unless it is in the ring
  void fetch_ahead();
  void settle(Slot& slot);  // waits for its transfer
  std::span<std::byte> memory(const Slot& slot) const;
  // A part of a chunk, within the requested elements.
  struct Piece {
    std::byte* values;  // of the part, from the first of the chunk on
    int64_t first;
    int64_t done;
    int64_t count;
    bool is_open;  // its chunk is
    int64_t file_offset;
  };
  void access(size_t part, int64_t begin, int64_t count, bool writes,
              FunctionRef<void(const Piece& piece)> body);

  const std::vector<FilePart> file_parts_;
  const Sizes sizes_;
  PageBuffer ring_;
  PageBuffer piece_;  // of a part of a chunk that is not in the ring, at its place in the part

  mutable std::mutex mutex_;  // guards what follows
  std::vector<Slot> slots_;
  std::vector<int32_t> slot_of_;  // by chunk; -1: it is not in the ring
  int64_t num_uses_ = 0;
  int64_t open_ = -1, open_end_ = -1;
  int64_t announced_ = 0, announced_end_ = 0;
  Parts parts_ = {};
  double waited_seconds_ = 0;
  AsyncFile file_;  // last: its transfers end before their memory
};

}  // namespace tessera
