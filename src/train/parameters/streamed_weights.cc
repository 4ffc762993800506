#include "train/parameters/streamed_weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "io/file.h"
#include "io/transfer.h"
#include "plan/memory_plan.h"

namespace tessera {

namespace {

// Calls transfer(bytes done so far) until all bytes are; it returns what pread and pwrite do.
template <typename Transfer>
void transfer_all(const std::filesystem::path& path, const char* action, int64_t offset, size_t size,
                  const Transfer& transfer) {
  const size_t done = transfer_fully(size, transfer);
  if (done == size) return;
  fail(ExitCode::kIoError, "{}: {} of {} bytes at {} failed: {}", path.native(), action, size - done,
       offset + static_cast<int64_t>(done),
       errno != 0 ? std::generic_category().message(errno) : "the file ends early");
}

}  // namespace

StreamedWeights::StreamedWeights(const ParameterLayout& layout, DType dtype,
                                 const std::optional<StateFileSettings>& folder)
    : layout_(&layout),
      window_(weight_window(zero_layout(layout, 1, 1), dtype, folder.has_value())),
      buffer_(window_.num_elements * dtype_bytes(dtype)),
      memory_(buffer_.data(), dtype, {window_.num_elements}) {
  if (window_.file_bytes == 0) return;
  const std::filesystem::path file = folder->path / "rank-0.weights";
  file_ = std::make_unique<AsyncFile>(file, window_.file_bytes, folder->transfers);
  // The file has no name any more.
  const std::string again = fmt::format("/proc/self/fd/{}", file_->fd());
  cached_fd_ = UniqueFd(::open(again.c_str(), O_RDWR | O_CLOEXEC));
  if (!cached_fd_) fail_write(file, "opening again", errno);
}

std::byte* StreamedWeights::address(int64_t group) const {
  return memory_.bytes() + begin(group) * dtype_bytes(memory_.dtype());
}

// Memory of a group that is in the file, with the padding that transfers need.
std::span<std::byte> StreamedWeights::bytes_of(int64_t group) const {
  const ParameterLayout::Group range = layout_->groups()[static_cast<size_t>(group)];
  const int64_t size_bytes = (range.end - range.begin) * dtype_bytes(memory_.dtype());
  return {address(group), static_cast<size_t>(round_up(size_bytes, kDirectAlignment))};
}

int64_t StreamedWeights::file_offset(int64_t group, int64_t begin) const {
  const int64_t first = layout_->groups()[static_cast<size_t>(group)].begin;
  return window_.file_begin[static_cast<size_t>(group)] + (begin - first) * dtype_bytes(memory_.dtype());
}

void StreamedWeights::settle(Slot& slot) {
  if (slot.transfer) file_->wait(*slot.transfer);
  slot.transfer.reset();
}

void StreamedWeights::fetch(int64_t group) {
  Slot& slot = slot_of(group);
  if (slot.group == group) return;
  settle(slot);
  slot.group = group;
  slot.transfer = file_->read(window_.file_begin[static_cast<size_t>(group)], bytes_of(group));
}

std::byte* StreamedWeights::open(int64_t group, bool forward) {
  if (is_in_file(group)) {
    fetch(group);
    settle(slot_of(group));
  }
  const int64_t next = forward ? group + 1 : group - 1;
  if (0 <= next && next < std::ssize(window_.begin) && is_in_file(next)) fetch(next);
  return address(group);
}

void StreamedWeights::updated(int64_t group) {
  if (!is_in_file(group)) return;
  Slot& slot = slot_of(group);
  TESSERA_CHECK(slot.group == group, "group {} in the place of group {}", slot.group, group);
  slot.transfer = file_->write(window_.file_begin[static_cast<size_t>(group)], bytes_of(group));
}

void StreamedWeights::finish_updates() {
  for (Slot& slot : slots_) settle(slot);
}

std::span<std::byte> StreamedWeights::staged(int64_t count) const {
  TESSERA_CHECK(count <= kStagedElements, "{} elements", count);
  const int64_t size = dtype_bytes(memory_.dtype());
  return {memory_.bytes() + window_.staging_begin * size, static_cast<size_t>(count * size)};
}

void StreamedWeights::stage(int64_t group, int64_t begin, int64_t count) const {
  const std::span<std::byte> to = staged(count);
  const int64_t offset = file_offset(group, begin);
  transfer_all(file_->path(), "read", offset, to.size(), [&](size_t done) {
    return ::pread(cached_fd_.get(), to.data() + done, to.size() - done, offset + static_cast<int64_t>(done));
  });
}

void StreamedWeights::write_staged(int64_t group, int64_t begin, int64_t count) {
  const std::span<const std::byte> from = staged(count);
  const int64_t offset = file_offset(group, begin);
  transfer_all(file_->path(), "write", offset, from.size(), [&](size_t done) {
    return ::pwrite(cached_fd_.get(), from.data() + done, from.size() - done,
                    offset + static_cast<int64_t>(done));
  });
}

// Direct reads must see it, and the memory of its pages is wanted back.
void StreamedWeights::written() {
  if (!file_) return;
  finish_updates();
  slots_.fill({});
  if (::fdatasync(cached_fd_.get()) != 0) fail_write(file_->path(), "sync", errno);
  ::posix_fadvise(cached_fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace tessera
