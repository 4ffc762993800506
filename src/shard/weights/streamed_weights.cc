#include "shard/weights/streamed_weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/file.h"
#include "io/transfer.h"
#include "shard/model_places.h"

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
  const std::filesystem::path path = folder->path / "rank-0.weights";
  std::vector<int64_t> sizes;
  for (const ParameterLayout::Group& group : layout.groups()) {
    sizes.push_back((group.end - group.begin) * dtype_bytes(dtype));
  }
  file_.emplace(path, folder->transfers, memory_.bytes(),
                layer_places(std::move(sizes), /*layers_in_file=*/true));
  // The file has no name any more.
  const std::string again = fmt::format("/proc/self/fd/{}", file_->file().fd());
  cached_fd_ = UniqueFd(::open(again.c_str(), O_RDWR | O_CLOEXEC));
  if (!cached_fd_) fail_write(path, "opening again", errno);
}

int64_t StreamedWeights::file_offset(int64_t group, int64_t begin) const {
  const int64_t first = layout_->groups()[static_cast<size_t>(group)].begin;
  return window_.file_begin[static_cast<size_t>(group)] + (begin - first) * dtype_bytes(memory_.dtype());
}

std::byte* StreamedWeights::open(int64_t group, bool forward) {
  if (file_) return file_->open(group, forward);
  return memory_.bytes() + begin(group) * dtype_bytes(memory_.dtype());
}

void StreamedWeights::updated(int64_t group) {
  if (file_) file_->updated(group);
}

void StreamedWeights::finish_updates() {
  if (file_) file_->finish_updates();
}

std::span<std::byte> StreamedWeights::staged(int64_t count) const {
  TESSERA_CHECK(count <= kStagedElements, "{} elements", count);
  const int64_t size = dtype_bytes(memory_.dtype());
  return {memory_.bytes() + window_.staging_begin * size, static_cast<size_t>(count * size)};
}

void StreamedWeights::stage(int64_t group, int64_t begin, int64_t count) const {
  const std::span<std::byte> to = staged(count);
  const int64_t offset = file_offset(group, begin);
  transfer_all(file_->file().path(), "read", offset, to.size(), [&](size_t done) {
    return ::pread(cached_fd_.get(), to.data() + done, to.size() - done, offset + static_cast<int64_t>(done));
  });
}

void StreamedWeights::write_staged(int64_t group, int64_t begin, int64_t count) {
  const std::span<const std::byte> from = staged(count);
  const int64_t offset = file_offset(group, begin);
  transfer_all(file_->file().path(), "write", offset, from.size(), [&](size_t done) {
    return ::pwrite(cached_fd_.get(), from.data() + done, from.size() - done,
                    offset + static_cast<int64_t>(done));
  });
}

// Direct reads must see it, and the memory of its pages is wanted back.
void StreamedWeights::written() {
  if (!file_) return;
  file_->forget();
  if (::fdatasync(cached_fd_.get()) != 0) fail_write(file_->file().path(), "sync", errno);
  ::posix_fadvise(cached_fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
}

FileBytes StreamedWeights::in_file(int64_t group, int64_t begin, int64_t count) const {
  return {cached_fd_.get(), file_offset(group, begin), count * dtype_bytes(memory_.dtype())};
}

}  // namespace tessera
