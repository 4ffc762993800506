#include "hub/snapshot.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "hub/download.h"
#include "io/disk_space.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// git's full names never change what they mean.
bool is_full_commit(const std::string& revision) { return revision.size() == 40 && is_commit(revision); }

}  // namespace

// Counts and reports.
class Snapshot::Meter {
 public:
  Meter(const HubProgressCallback& callback, std::string name) : callback_(callback) {
    state_.name = std::move(name);
  }

  void start(int64_t num_files, int64_t total_bytes) {
    const std::lock_guard lock(mutex_);
    state_.is_waiting = false;
    state_.num_files = num_files;
    state_.total_bytes = total_bytes;
    report(true);
  }
  void add_bytes(int64_t count, bool from_network) {
    const std::lock_guard lock(mutex_);
    state_.done_bytes += count;
    if (from_network) received_bytes_ += count;
    report(false);
  }
  void add_file() {
    const std::lock_guard lock(mutex_);
    ++state_.num_files_done;
    report(state_.num_files_done == state_.num_files);
  }
  void wait() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(has_told_, true))
      log_info("{}: another process is downloading it: waiting", state_.name);
    state_.is_waiting = true;
    report(false);
    state_.is_waiting = false;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void report(bool always) {
    constexpr std::chrono::milliseconds kInterval(50);
    const Clock::time_point now = Clock::now();
    if (!callback_ || (!always && now - last_ < kInterval)) return;
    last_ = now;
    // Over the last seconds.
    constexpr size_t kSamples = 100;
    samples_.emplace_back(now, received_bytes_);
    if (samples_.size() > kSamples) samples_.pop_front();
    const std::chrono::duration<double> elapsed = now - samples_.front().first;
    if (elapsed.count() > 0)
      state_.bytes_per_second =
          static_cast<double>(received_bytes_ - samples_.front().second) / elapsed.count();
    callback_(state_);
  }

  const HubProgressCallback& callback_;
  std::mutex mutex_;
  HubProgress state_;
  int64_t received_bytes_ = 0;
  bool has_told_ = false;  // has reported that another process has the lock
  std::deque<std::pair<Clock::time_point, int64_t>> samples_;
  Clock::time_point last_;
};

Snapshot::Snapshot(const RepoName& repo, const HubSettings& settings, HubProgressCallback progress)
    : settings_(settings),
      progress_(std::move(progress)),
      cache_(settings.cache, repo),
      client_(settings, repo) {
  if (settings.offline) {
    open_cached("HF_HUB_OFFLINE is set");
    return;
  }
  if (is_full_commit(repo.revision)) {
    if (std::optional<std::vector<HubFile>> tree = cache_.read_tree(repo.revision)) {
      commit_ = repo.revision;
      files_ = std::move(*tree);
      return;
    }
  }
  try {
    RepoInfo info = client_.repo_info();
    commit_ = std::move(info.commit);
    std::optional<std::vector<HubFile>> tree = cache_.read_tree(commit_);
    files_ = tree ? std::move(*tree) : client_.list_tree(commit_);
    if (files_.empty()) files_ = std::move(info.files);
  } catch (const HubUnavailable& error) {
    const std::string_view what = error.what();
    if (!cache_.cached_commit(repo.revision)) {
      if (what.starts_with(repo.id)) throw;
      fail(error.code(), "{}: neither a local path nor in the cache, and the Hub cannot be asked: {}",
           repo.text(), what);
    }
    log_warning("{}; using what is in the cache", error.what());
    open_cached(error.what());
  }
}

void Snapshot::open_cached(const std::string& reason) {
  offline_reason_ = reason;
  const std::optional<std::string> commit = cache_.cached_commit(repo().revision);
  if (!commit)
    fail(
        ExitCode::kNoInput,
        "{}: neither a local path nor in the cache {} ({}): download it with 'tessera pull' while there is a "
        "network",
        repo().text(), settings_.cache.string(), reason);
  commit_ = *commit;
  std::optional<std::vector<HubFile>> tree = cache_.read_tree(commit_);
  is_partial_ = !tree;
  files_ = tree ? std::move(*tree) : cache_.snapshot_files(commit_);
}

std::vector<std::string> Snapshot::missing(const std::vector<std::string>& paths) const {
  std::vector<std::string> out;
  std::copy_if(paths.begin(), paths.end(), std::back_inserter(out),
               [this](const std::string& path) { return !cache_.has_file(commit_, path); });
  return out;
}

void Snapshot::fetch(const std::vector<std::string>& paths) {
  const std::vector<std::string> wanted = missing(paths);
  if (!wanted.empty() && !offline_reason_.empty())
    fail(ExitCode::kNoInput,
         "{}: {} of {} are not in the cache {}, such as {} ({}): download them while there is a network",
         repo().text(), wanted.size(), count_of(std::ssize(paths), "file"), settings_.cache.string(),
         wanted[0], offline_reason_);
  Meter meter(progress_, repo().text());
  std::optional<LockFile> lock;
  try {
    if (!wanted.empty()) {
      cache_.create();
      cache_.write_tree(commit_, files_);
      lock.emplace(cache_.lock("snapshot-" + commit_), [&] { meter.wait(); });
    }
    if (offline_reason_.empty()) cache_.write_ref(repo().revision, commit_);
  } catch (const Error& error) {
    if (wanted.empty()) return;  // a cache that only others write
    throw Error(error.code(),
                fmt::format("{}: HF_HOME or HF_HUB_CACHE sets another folder for the cache", error.what()));
  }
  download(missing(wanted), meter);
}

void Snapshot::download(const std::vector<std::string>& wanted, Meter& meter) {
  if (wanted.empty()) return;
  std::vector<FileSource> sources(wanted.size());
  for_each(std::ssize(wanted), [&](int64_t i) {
    const auto index = static_cast<size_t>(i);
    sources[index] = client_.locate(commit_, wanted[index]);
  });
  check_space(sources);
  // Files with the same content share a blob.
  std::set<std::string> etags;
  std::vector<FileSource> blobs;
  std::copy_if(sources.begin(), sources.end(), std::back_inserter(blobs),
               [&](const FileSource& source) { return etags.insert(source.etag).second; });
  int64_t total = 0;
  for (const FileSource& blob : blobs) total += blob.size_bytes;
  meter.start(std::ssize(blobs), total);

  const DownloadEvents events = {
      [&](int64_t count, bool from_network) { meter.add_bytes(count, from_network); }, [&] { meter.wait(); }};
  const auto get = [&](const FileSource& blob) {
    download_blob(client_, cache_, commit_, blob, events);
    for (const FileSource& source : sources) {
      if (source.etag == blob.etag) cache_.link_file(commit_, source.path, source.etag);
    }
    meter.add_file();
  };
  // Small files side by side, then the large ones, each over several connections.
  const auto large = std::partition(blobs.begin(), blobs.end(), [this](const FileSource& blob) {
    return blob.size_bytes <= 2 * settings_.range_bytes;
  });
  for_each(large - blobs.begin(), [&](int64_t i) { get(blobs[static_cast<size_t>(i)]); });
  std::for_each(large, blobs.end(), get);
}

void Snapshot::check_space(const std::vector<FileSource>& sources) const {
  int64_t needed = 0;
  for (const FileSource& source : sources) {
    std::error_code not_there;
    const auto arrived = fs::file_size(cache_.incomplete(source.etag), not_there);
    if (!fs::exists(cache_.blob(source.etag)))
      needed += source.size_bytes - (not_there ? 0 : static_cast<int64_t>(arrived));
  }
  std::error_code error;
  const fs::space_info space = disk_space(nearest_existing(cache_.folder()), error);
  if (!error && static_cast<int64_t>(space.available) < needed)
    fail(ExitCode::kIoError,
         "{}: {} takes {} on disk, only {} are free: free some, or set HF_HOME to a folder on another disk",
         settings_.cache.string(), repo().text(), format_bytes(needed),
         format_bytes(static_cast<int64_t>(space.available)));
}

void Snapshot::for_each(int64_t count, const std::function<void(int64_t)>& body) const {
  std::atomic<int64_t> next = 0;
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    try {
      for (int64_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int64_t i = 0; i < std::min<int64_t>(count, settings_.connections); ++i) threads.emplace_back(work);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace tessera
