#include "hub/download.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/divide_up.h"
#include "base/error.h"
#include "hub/digest.h"
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

// Ranges of a file that are fetched at the same time and passed on in order.
class OrderedRanges {
 public:
  // Fetches bytes [begin, end) and appends them to the text; called by several threads. It should return
  // early, with any text, once `is_wanted` returns false.
  using Fetch =
      std::function<void(int64_t begin, int64_t end, const std::function<bool()>& is_wanted, std::string*)>;
  using Write = std::function<void(std::string_view)>;

  // Both outlive this.
  OrderedRanges(int64_t begin, int64_t end, int64_t range_bytes, int num_threads, const Fetch& fetch,
                const Write& write)
      : begin_(begin),
        end_(end),
        range_bytes_(range_bytes),
        num_threads_(num_threads),
        fetch_(fetch),
        write_(write) {}

  // Calls write(), one thread at a time, with all bytes in order. Rethrows the first exception of either
  // function; what was written by then is a first part. At most num_threads + 4 ranges are in memory.
  void run();

 private:
  void work();
  // Writes what follows what is written, unless another thread does.
  void drain(std::unique_lock<std::mutex>* lock);

  const int64_t begin_;
  const int64_t end_;
  const int64_t range_bytes_;
  const int num_threads_;
  const Fetch& fetch_;
  const Write& write_;

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_started_ = 0;
  int64_t num_written_ = 0;
  bool is_draining_ = false;
  std::map<int64_t, std::string> arrived_;  // by index
  std::vector<std::string> spare_;          // empty, with the memory of ranges that are written
  std::exception_ptr error_;
};

void OrderedRanges::run() {
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < num_threads_; ++i) threads.emplace_back([this] { work(); });
  }
  if (error_) std::rethrow_exception(error_);
}

void OrderedRanges::work() {
  const int64_t num_ranges = divide_up(end_ - begin_, range_bytes_);
  const auto is_wanted = [this] {
    const std::lock_guard lock(mutex_);
    return error_ == nullptr;
  };
  std::unique_lock lock(mutex_);
  try {
    while (true) {
      changed_.wait(lock, [&] {
        return error_ || num_started_ == num_ranges || num_started_ < num_written_ + num_threads_ + 4;
      });
      if (error_ || num_started_ == num_ranges) return;
      const int64_t index = num_started_++;
      std::string text;
      if (!spare_.empty()) {
        text = std::move(spare_.back());
        spare_.pop_back();
      }
      lock.unlock();
      const int64_t first = begin_ + index * range_bytes_;
      const int64_t last = std::min(end_, first + range_bytes_);
      text.reserve(static_cast<size_t>(last - first));
      fetch_(first, last, is_wanted, &text);
      lock.lock();
      if (error_) return;
      arrived_.emplace(index, std::move(text));
      drain(&lock);
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (!error_) error_ = std::current_exception();
    changed_.notify_all();
  }
}

void OrderedRanges::drain(std::unique_lock<std::mutex>* lock) {
  if (is_draining_) return;
  is_draining_ = true;
  while (!arrived_.empty() && arrived_.begin()->first == num_written_ && !error_) {
    std::string text = std::move(arrived_.begin()->second);
    arrived_.erase(arrived_.begin());
    lock->unlock();
    write_(text);
    text.clear();
    lock->lock();
    spare_.push_back(std::move(text));
    ++num_written_;
    changed_.notify_all();
  }
  is_draining_ = false;
}

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
