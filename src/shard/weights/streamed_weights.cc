#include "shard/weights/streamed_weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "io/file.h"
#include "io/transfer.h"
#include "platform/prefault.h"
#include "shard/layout/model_places.h"

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

std::vector<int64_t> group_sizes(const ParameterLayout& layout, DType dtype) {
  std::vector<int64_t> sizes;
  for (const ParameterLayout::Group& group : layout.groups()) {
    sizes.push_back((group.end - group.begin) * dtype_bytes(dtype));
  }
  return sizes;
}

}  // namespace

StreamedWeights::StreamedWeights(const ParameterLayout& layout, DType dtype, const StateFileSettings& folder,
                                 ThreadPool& pool)
    : layout_(&layout),
      window_(weight_window(zero_layout(layout, 1, 1), dtype, /*layers_in_file=*/true)),
      buffer_(window_.num_elements * dtype_bytes(dtype)),
      memory_(buffer_.data(), dtype, {window_.num_elements}),
      file_(folder.path / "rank-0.weights", folder.transfers, buffer_.data(),
            layer_places(group_sizes(layout, dtype), /*layers_in_file=*/true)) {
  prefault(pool, buffer_.as<std::byte>());
  // The file has no name by now.
  const std::string again = fmt::format("/proc/self/fd/{}", file_.file().fd());
  cached_fd_ = UniqueFd(::open(again.c_str(), O_RDWR | O_CLOEXEC));
  if (!cached_fd_) fail_write(file_.file().path(), "opening again", errno);
}

int64_t StreamedWeights::index(int64_t group, int64_t element) const {
  const auto at = static_cast<size_t>(group);
  return window_.begin[at] + element - layout_->groups()[at].begin;
}

int64_t StreamedWeights::file_offset(int64_t group, int64_t begin) const {
  const int64_t first = layout_->groups()[static_cast<size_t>(group)].begin;
  return window_.file_begin[static_cast<size_t>(group)] + (begin - first) * dtype_bytes(memory_.dtype());
}

std::byte* StreamedWeights::open(int64_t group, WeightUse use) {
  return file_.open(group, use == WeightUse::kForward);
}

void StreamedWeights::written(int64_t group) { file_.updated(group); }

void StreamedWeights::finish_updates() { file_.finish_updates(); }

std::span<std::byte> StreamedWeights::staged(int64_t count) const {
  TESSERA_CHECK(count <= kStagedElements, "{} elements", count);
  const int64_t size = dtype_bytes(memory_.dtype());
  return {memory_.bytes() + window_.staging_begin * size, static_cast<size_t>(count * size)};
}

void StreamedWeights::visit(Access access, int64_t group, int64_t begin, int64_t count, Visit body) const {
  if (!is_in_file(group)) return body(index(group, begin), begin, count, nullptr);
  const bool reads = access == Access::kRead;
  for (int64_t first = begin; first < begin + count; first += kStagedElements) {
    const int64_t size = std::min(kStagedElements, begin + count - first);
    const int64_t offset = file_offset(group, first);
    const std::lock_guard lock(staging_);
    const std::span<std::byte> bytes = staged(size);
    if (reads) {
      transfer_all(file_.file().path(), "read", offset, bytes.size(), [&](size_t done) {
        return ::pread(cached_fd_.get(), bytes.data() + done, bytes.size() - done,
                       offset + static_cast<int64_t>(done));
      });
    }
    const FileBytes in_file = {cached_fd_.get(), offset, std::ssize(bytes)};
    body(window_.staging_begin, first, size, reads ? &in_file : nullptr);
    if (reads) continue;
    transfer_all(file_.file().path(), "write", offset, bytes.size(), [&](size_t done) {
      return ::pwrite(cached_fd_.get(), bytes.data() + done, bytes.size() - done,
                      offset + static_cast<int64_t>(done));
    });
  }
}

// Direct reads must see what was written, and the memory of its pages is wanted back.
void StreamedWeights::loaded(bool /*whole_node*/) {
  file_.forget();
  if (::fdatasync(cached_fd_.get()) != 0) fail_write(file_.file().path(), "sync", errno);
  ::posix_fadvise(cached_fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace tessera
