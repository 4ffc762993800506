#include "io/async_file.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "io/file.h"
#include "platform/background_thread.h"

namespace tessera {
namespace {

// Without io_uring a thread per block in flight; more than these only wait for each other.
constexpr int64_t kMaxTransferThreads = 16;

constexpr AsyncFile::Ticket kNone = -1;

struct Transfer {
  AsyncFile::Ticket after = kNone;  // the transfer that must have ended before this one begins
  bool writes = false;
  int64_t offset = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t bytes_begun = 0;
  int64_t bytes_left = 0;
};

// The part of a transfer that is still to be done by one request.
struct Block {
  AsyncFile::Ticket ticket;
  bool writes;
  int64_t offset;
  std::byte* data;
  int64_t bytes;
};

bool is_temporary(int error) { return error == EINTR || error == EAGAIN || error == EBUSY; }

// Some file systems take the flag and refuse the transfers.
bool direct_transfers_work(int fd) {
  PageBuffer page(kDirectAlignment);
  const auto size = static_cast<size_t>(kDirectAlignment);
  return ::pwrite(fd, page.data(), size, 0) == kDirectAlignment &&
         ::pread(fd, page.data(), size, 0) == kDirectAlignment;
}

UniqueFd create_unnamed(const std::filesystem::path& path, int flags) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flags, 0600));
  if (fd) ::unlink(path.c_str());
  return fd;
}

void allocate(const std::filesystem::path& path, int fd, int64_t size_bytes) {
  int status = 0;
  do status = ::fallocate(fd, 0, 0, size_bytes);
  while (status != 0 && errno == EINTR);
  if (status == 0) return;
  const int error = errno;
  struct statvfs disk = {};
  const bool has_size = ::fstatvfs(fd, &disk) == 0 && disk.f_blocks > 0;
  const auto free_bytes = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  if (error == ENOSPC || (error == EOPNOTSUPP && has_size && free_bytes < size_bytes)) {
    fail(ExitCode::kIoError, "{}: needs {}, and the disk has {} free: free some or choose another folder",
         path.native(), format_bytes(size_bytes), format_bytes(free_bytes));
  }
  if (error != EOPNOTSUPP) fail_write(path, "allocation", error);
  if (::ftruncate(fd, size_bytes) != 0) fail_write(path, "setting the size", errno);
}

}  // namespace

struct AsyncFile::State {
  State(const std::filesystem::path& file, int64_t size, const AsyncFileSettings& wanted)
      : path(file), size_bytes(size), settings(wanted), transfers(static_cast<size_t>(kMaxTransfers)) {
    TESSERA_CHECK(size > 0 && size % kDirectAlignment == 0, "{}: {} bytes", path.native(), size);
    TESSERA_CHECK(
        settings.queue_depth > 0 && settings.block_bytes > 0 && settings.block_bytes % kDirectAlignment == 0,
        "{} blocks of {} bytes", settings.queue_depth, settings.block_bytes);
    open();
    has_ring = settings.use_io_uring && create_ring();
    const int64_t num_threads = has_ring ? 1 : std::min(settings.queue_depth, kMaxTransferThreads);
    try {
      for (int64_t i = 0; i < num_threads; ++i) {
        threads.push_back(start_background_thread([this] { has_ring ? run_ring() : run_calls(); }));
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  ~State() { stop(); }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      is_stopping = true;
    }
    has_work.notify_all();
    for (std::thread& thread : threads) thread.join();
    if (has_ring) ::io_uring_queue_exit(&ring);
  }

  void open() {
    // Left by a process that was killed at the wrong moment; if it stays, the creation fails and says why.
    ::unlink(path.c_str());
    fd = create_unnamed(path, O_DIRECT);
    is_direct = static_cast<bool>(fd);
    if (!fd && errno == EINVAL) {
      ::unlink(path.c_str());  // some file systems create it before they refuse
      fd = create_unnamed(path, 0);
    }
    if (!fd) fail_write(path, "creation", errno);
    allocate(path, fd.get(), size_bytes);
    if (is_direct && !direct_transfers_work(fd.get())) {
      is_direct = false;
      if (::fcntl(fd.get(), F_SETFL, 0) != 0) fail_write(path, "turning off direct I/O", errno);
    }
  }

  // False: the system has no io_uring or refuses it, as containers do.
  bool create_ring() {
    requests.resize(static_cast<size_t>(settings.queue_depth));
    if (::io_uring_queue_init(static_cast<unsigned>(settings.queue_depth), &ring, 0) != 0) return false;
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring);
    const bool works = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    if (probe != nullptr) ::io_uring_free_probe(probe);
    if (!works) ::io_uring_queue_exit(&ring);
    return works;
  }

  Transfer& transfer(Ticket ticket) { return transfers[static_cast<size_t>(ticket % kMaxTransfers)]; }

  // Needs the lock. A later transfer may have taken the slot of one that ended long ago.
  bool has_ended(Ticket ticket) {
    return next_ticket - ticket > kMaxTransfers || transfer(ticket).bytes_left == 0;
  }

  Ticket start(bool writes, int64_t offset, std::byte* data, int64_t bytes, Ticket after = kNone) {
    TESSERA_CHECK(after < next_ticket, "ticket {}", after);
    TESSERA_CHECK(bytes > 0 && offset >= 0 && offset + bytes <= size_bytes &&
                      offset % kDirectAlignment == 0 && bytes % kDirectAlignment == 0 &&
                      reinterpret_cast<uintptr_t>(data) % kDirectAlignment == 0,
                  "{}: {} bytes at {} of {}, memory {}", path.native(), bytes, offset, size_bytes,
                  static_cast<const void*>(data));
    std::unique_lock lock(mutex);
    Transfer& added = transfer(next_ticket);
    done.wait(lock, [&] { return added.bytes_left == 0 || error; });
    check_error();
    // It may have gone before its turn.
    first_unfinished = std::max(first_unfinished, next_ticket - kMaxTransfers + 1);
    added = {after, writes, offset, data, bytes, 0, bytes};
    if (num_under_way++ == 0) busy_since = Stopwatch();
    (writes ? statistics.bytes_written : statistics.bytes_read) += bytes;
    has_work.notify_one();
    return next_ticket++;
  }

  // Lets a transfer go before those that were started earlier, unless it must come after one of them.
  void hurry(Ticket ticket) {
    const std::lock_guard lock(mutex);
    if (has_ended(ticket)) return;
    const Transfer& wanted = transfer(ticket);
    if (wanted.bytes_begun == wanted.bytes || (wanted.after != kNone && !has_ended(wanted.after))) return;
    for (Ticket i = std::max<Ticket>(0, next_ticket - kMaxTransfers); i < ticket; ++i) {
      const Transfer& other = transfer(i);
      const bool overlaps =
          other.offset < wanted.offset + wanted.bytes && wanted.offset < other.offset + other.bytes;
      if (other.bytes_left > 0 && overlaps && (other.writes || wanted.writes)) return;
    }
    urgent = ticket;
    has_work.notify_all();
  }

  void wait_until(const auto& is_done) {
    const Stopwatch watch;
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return is_done() || error; });
    statistics.waited_seconds += watch.seconds();
    check_error();
  }

  // Needs the lock. No further transfer begins, and every waiter learns why.
  void end_with(const std::string& message) {
    if (!error) error.emplace(ExitCode::kIoError, message);
    done.notify_all();
  }

  void check_error() const {
    if (error) throw Error(*error);
  }

  // Needs the lock. Returns the next block of a transfer, if there is one.
  std::optional<Block> next_block_of(Ticket ticket) {
    Transfer& from = transfer(ticket);
    if (from.bytes_begun == from.bytes) return std::nullopt;
    const int64_t begun = from.bytes_begun;
    const int64_t bytes = std::min(settings.block_bytes, from.bytes - begun);
    from.bytes_begun += bytes;
    return Block{ticket, from.writes, from.offset + begun, from.data + begun, bytes};
  }

  // Returns the next block of any transfer.
  std::optional<Block> next_block() {
    if (!error && urgent != kNone) {
      if (const std::optional<Block> block = next_block_of(urgent)) return block;
      urgent = kNone;
    }
    while (!error && first_unfinished < next_ticket) {
      Transfer& from = transfer(first_unfinished);
      if (from.after != kNone && !has_ended(from.after)) {
        is_held_up = true;
        return std::nullopt;
      }
      from.after = kNone;
      if (const std::optional<Block> block = next_block_of(first_unfinished)) return block;
      ++first_unfinished;
    }
    return std::nullopt;
  }

  // Takes the result of a request, bytes or a negative errno value. True: part of the block is left.
  bool advance(Block& block, int64_t result) {
    if (result < 0 && is_temporary(static_cast<int>(-result))) return true;
    // The rest of a short transfer must be aligned, too.
    const int64_t bytes = result / kDirectAlignment * kDirectAlignment;
    const std::lock_guard lock(mutex);
    if (bytes <= 0) {
      end_with(fmt::format(
          "{}: {} of {} bytes at {} failed: {}", path.native(), block.writes ? "write" : "read", block.bytes,
          block.offset,
          result < 0 ? std::generic_category().message(static_cast<int>(-result)) : "the file ends early"));
      return false;
    }
    block.offset += bytes;
    block.data += bytes;
    block.bytes -= bytes;
    Transfer& whole = transfer(block.ticket);
    if ((whole.bytes_left -= bytes) == 0) {
      if (--num_under_way == 0) statistics.busy_seconds += busy_since.seconds();
      done.notify_all();
      if (std::exchange(is_held_up, false)) has_work.notify_all();
    }
    return block.bytes > 0;
  }

  // A thread without io_uring.
  void run_calls() {
    std::unique_lock lock(mutex);
    while (true) {
      std::optional<Block> block;
      has_work.wait(lock, [&] { return is_stopping || (block = next_block()); });
      if (!block) return;
      lock.unlock();
      bool is_left = true;
      while (is_left) {
        const auto size = static_cast<size_t>(block->bytes);
        const ssize_t result = block->writes ? ::pwrite(fd.get(), block->data, size, block->offset)
                                             : ::pread(fd.get(), block->data, size, block->offset);
        is_left = advance(*block, result < 0 ? -errno : result);
      }
      lock.lock();
    }
  }

  // The thread that feeds the ring. New transfers join at the next completion if others are in flight.
  void run_ring() {
    std::vector<Block*> idle;
    for (Block& request : requests) idle.push_back(&request);
    while (true) {
      {
        std::unique_lock lock(mutex);
        const bool is_idle = idle.size() == requests.size();
        std::optional<Block> block;
        if (is_idle) has_work.wait(lock, [&] { return is_stopping || (block = next_block()); });
        if (is_idle && !block) return;
        if (!block && !idle.empty() && !is_stopping) block = next_block();
        while (block) {
          *idle.back() = *block;
          submit(idle.back());
          idle.pop_back();
          block = idle.empty() ? std::nullopt : next_block();
        }
      }
      const int status = ::io_uring_submit_and_wait(&ring, 1);
      if (status < 0 && !is_temporary(-status)) {
        const std::lock_guard lock(mutex);
        return end_with(
            fmt::format("{}: io_uring failed: {}", path.native(), std::generic_category().message(-status)));
      }
      io_uring_cqe* completion = nullptr;
      while (::io_uring_peek_cqe(&ring, &completion) == 0) {
        auto* request = static_cast<Block*>(io_uring_cqe_get_data(completion));
        const int64_t result = completion->res;
        io_uring_cqe_seen(&ring, completion);
        if (advance(*request, result)) {
          submit(request);
        } else {
          idle.push_back(request);
        }
      }
    }
  }

  // At most queue_depth requests are in flight, for which the ring has room.
  void submit(Block* request) {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring);
    TESSERA_CHECK(entry != nullptr);
    const auto size = static_cast<unsigned>(request->bytes);
    const auto offset = static_cast<uint64_t>(request->offset);
    if (request->writes) {
      io_uring_prep_write(entry, fd.get(), request->data, size, offset);
    } else {
      io_uring_prep_read(entry, fd.get(), request->data, size, offset);
    }
    io_uring_sqe_set_data(entry, request);
  }

  const std::filesystem::path path;
  const int64_t size_bytes;
  const AsyncFileSettings settings;
  UniqueFd fd;
  bool is_direct = false;
  bool has_ring = false;
  io_uring ring = {};
  std::vector<Block> requests;  // of the ring
  std::vector<std::thread> threads;

  std::mutex mutex;  // guards what follows
  std::condition_variable has_work;
  std::condition_variable done;
  std::vector<Transfer> transfers;  // by ticket, used over and over
  Ticket next_ticket = 0;
  Ticket first_unfinished = 0;  // the first transfer with a block that has not been begun
  bool is_held_up = false;      // it waits for the end of an earlier one
  Ticket urgent = kNone;        // goes before its turn
  int64_t num_under_way = 0;
  std::optional<Error> error;  // the first
  bool is_stopping = false;
  Stopwatch busy_since;
  AsyncFileStatistics statistics;
};

AsyncFile::AsyncFile(const std::filesystem::path& path, int64_t size_bytes, const AsyncFileSettings& settings)
    : state_(std::make_unique<State>(path, size_bytes, settings)) {}

AsyncFile::~AsyncFile() = default;

AsyncFile::Ticket AsyncFile::read(int64_t offset_bytes, std::span<std::byte> to) {
  return state_->start(false, offset_bytes, to.data(), std::ssize(to));
}

AsyncFile::Ticket AsyncFile::read_after(Ticket earlier, int64_t offset_bytes, std::span<std::byte> to) {
  return state_->start(false, offset_bytes, to.data(), std::ssize(to), earlier);
}

AsyncFile::Ticket AsyncFile::write(int64_t offset_bytes, std::span<const std::byte> from) {
  // Only read from: a transfer has one pointer for both directions.
  return state_->start(true, offset_bytes, const_cast<std::byte*>(from.data()), std::ssize(from));
}

void AsyncFile::wait(Ticket ticket) {
  TESSERA_CHECK(ticket >= 0 && ticket < state_->next_ticket, "ticket {}", ticket);
  state_->hurry(ticket);
  state_->wait_until([&] { return state_->has_ended(ticket); });
}

void AsyncFile::wait_all() {
  state_->wait_until([&] { return state_->num_under_way == 0; });
}

const std::filesystem::path& AsyncFile::path() const { return state_->path; }
int64_t AsyncFile::size_bytes() const { return state_->size_bytes; }
void AsyncFile::discard(int64_t offset_bytes, int64_t size_bytes) {
  int status = 0;
  do status = ::fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset_bytes, size_bytes);
  while (status != 0 && errno == EINTR);
  if (status != 0 && errno != EOPNOTSUPP) fail_write(path(), "freeing space", errno);
}

int AsyncFile::fd() const { return state_->fd.get(); }
bool AsyncFile::is_direct() const { return state_->is_direct; }
bool AsyncFile::uses_io_uring() const { return state_->has_ring; }

AsyncFileStatistics AsyncFile::statistics() const {
  const std::lock_guard lock(state_->mutex);
  AsyncFileStatistics statistics = state_->statistics;
  if (state_->num_under_way > 0) statistics.busy_seconds += state_->busy_since.seconds();
  return statistics;
}

}  // namespace tessera
