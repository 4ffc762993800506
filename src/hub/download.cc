#include "hub/download.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "hub/digest.h"
#include "hub/ordered_ranges.h"
#include "io/file.h"
#include "io/output_file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kReadBytes = 4 << 20;
constexpr size_t kAppendBytes = 256 << 10;  // hashed and then written while still in the L2 cache

// ETAG.incomplete: bytes are appended and hashed in order.
class IncompleteFile {
 public:
  IncompleteFile(fs::path path, const FileSource& source, const DownloadEvents& events)
      : path_(std::move(path)), events_(events), digest_(source.etag, source.size_bytes) {
    std::error_code error;
    const bool is_resumed = fs::exists(path_, error) && fs::file_size(path_, error) > 0 &&
                            static_cast<int64_t>(fs::file_size(path_, error)) <= source.size_bytes;
    if (!is_resumed) fs::remove(path_, error);
    file_ = is_resumed ? OutputFile::open(path_) : OutputFile::create(path_, 0);
    if (is_resumed) read_what_is_there();
  }

  int64_t size_bytes() const { return size_bytes_; }

  void append(std::string_view data) {
    for (; !data.empty(); data.remove_prefix(std::min(data.size(), kAppendBytes)))
      append_piece(data.substr(0, kAppendBytes));
  }

  // Whether the content is right; if not, it is dropped.
  bool check(std::string* found) {
    if (digest_.matches(found)) return true;
    std::error_code ignored;
    fs::remove(path_, ignored);
    events_.on_bytes(-size_bytes_, false);
    return false;
  }
  const char* digest_name() const { return digest_.name(); }

  void move_to(const fs::path& blob) {
    file_.sync();
    file_.close();
    std::error_code error;
    fs::rename(path_, blob, error);
    // Without locks (some network file systems) another process may have been here first, with the same
    // bytes.
    if (error && !fs::exists(blob)) fail_write(path_, "rename", error.value());
    fsync_folder(blob.parent_path());
  }

 private:
  void append_piece(std::string_view data) {
    digest_.add(data);
    try {
      file_.write_at(size_bytes_, data);
    } catch (const Error& error) {
      throw Error(
          error.code(),
          fmt::format("{}; what has arrived stays, and the same command goes on from there", error.what()));
    }
    file_.start_writeback(size_bytes_, std::ssize(data));
    size_bytes_ += std::ssize(data);
    events_.on_bytes(std::ssize(data), true);
  }

  void read_what_is_there() {
    const InputFile input = InputFile::open(path_);
    std::vector<std::byte> buffer;
    while (size_bytes_ < input.size_bytes()) {
      buffer.resize(static_cast<size_t>(std::min(kReadBytes, input.size_bytes() - size_bytes_)));
      input.read_at(size_bytes_, buffer);
      digest_.add({reinterpret_cast<const char*>(buffer.data()), buffer.size()});
      size_bytes_ += std::ssize(buffer);
    }
    events_.on_bytes(size_bytes_, false);
  }

  fs::path path_;
  const DownloadEvents& events_;
  ContentDigest digest_;
  OutputFile file_;
  int64_t size_bytes_ = 0;
};

// The server has answered a range with the whole file.
struct NoRanges {};

void append_in_order(HubClient& client, const std::string& commit, const FileSource& source, int64_t begin,
                     IncompleteFile* file) {
  int64_t surplus = file->size_bytes() - begin;  // already there
  const bool has_ranges = client.fetch(source, commit, begin, source.size_bytes, [&](std::string_view data) {
    const size_t skipped = std::min(data.size(), static_cast<size_t>(surplus));
    surplus -= static_cast<int64_t>(skipped);
    file->append(data.substr(skipped));
    return true;
  });
  if (!has_ranges) throw NoRanges();
}

void append_in_parallel(HubClient& client, const std::string& commit, const FileSource& source,
                        IncompleteFile* file) {
  const OrderedRanges::Fetch fetch = [&](int64_t begin, int64_t end, const std::function<bool()>& is_wanted,
                                         std::string* text) {
    const bool has_ranges = client.fetch(source, commit, begin, end, [&](std::string_view data) {
      text->append(data);
      return is_wanted();
    });
    if (!has_ranges) throw NoRanges();
  };
  const OrderedRanges::Write write = [&](std::string_view data) { file->append(data); };
  const HubSettings& settings = client.settings();
  OrderedRanges(file->size_bytes(), source.size_bytes, settings.range_bytes, settings.connections, fetch,
                write)
      .run();
}

void fetch_rest(HubClient& client, const std::string& commit, const FileSource& source,
                IncompleteFile* file) {
  const int64_t missing = source.size_bytes - file->size_bytes();
  if (missing == 0) return;
  try {
    if (missing > 2 * client.settings().range_bytes) {
      append_in_parallel(client, commit, source, file);
    } else {
      append_in_order(client, commit, source, file->size_bytes(), file);
    }
  } catch (const NoRanges&) {
    append_in_order(client, commit, source, 0, file);
  }
}

}  // namespace

void download_blob(HubClient& client, const RepoCache& cache, const std::string& commit,
                   const FileSource& source, const DownloadEvents& events) {
  const LockFile lock(cache.lock(source.etag), events.on_waiting);
  const fs::path blob = cache.blob(source.etag);
  if (fs::exists(blob)) {
    events.on_bytes(source.size_bytes, false);
    return;
  }
  std::string found;
  for (int attempt = 0; attempt < 2; ++attempt) {
    IncompleteFile file(cache.incomplete(source.etag), source, events);
    fetch_rest(client, commit, source, &file);
    if (file.check(&found)) return file.move_to(blob);
  }
  fail(ExitCode::kIoError,
       "{}: {}: damaged on its way twice: expected the hash {}, found {}: try again, or check a proxy in "
       "between",
       client.repo().text(), source.path, source.etag, found);
}

}  // namespace tessera
