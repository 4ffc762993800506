#include "data/streamed_rows.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/cache/row_builder.h"
#include "data/row_building.h"
#include "data/row_stream.h"
#include "formats/input_files.h"
#include "formats/json.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Blocks that stay open: the steps of several ranks are at most one block apart.
constexpr size_t kOpenBlocks = 3;
// Blocks of a spool that are made before they are asked for.
constexpr int64_t kBlocksAhead = 2;
constexpr std::chrono::milliseconds kPoll(20);
constexpr double kLogInterval_s = 60;
// Datasets up to this size are hashed in full, which takes a few seconds on a slow network disk.
constexpr int64_t kMaxHashedBytes = int64_t{256} << 20;

// Thrown within the tokenizing thread when it is asked to stop.
struct Stopped {};

// A hash of the start and the end of a file.
Hash128 hash_of_ends(const fs::path& path) {
  constexpr int64_t kBytes = int64_t{1} << 20;
  const InputFile file = InputFile::open(path);
  const int64_t count = std::min(kBytes, file.size_bytes());
  std::vector<std::byte> bytes(static_cast<size_t>(2 * count));
  file.read_at(0, std::span(bytes).first(static_cast<size_t>(count)));
  file.read_at(file.size_bytes() - count, std::span(bytes).subspan(static_cast<size_t>(count)));
  return hash_bytes(bytes);
}

}  // namespace

// Cuts a stream of rows into blocks.
class StreamedRows::BlockWriter {
 public:
  BlockWriter(const StreamedRows& rows, const std::stop_token& stop) : rows_(rows), stop_(stop) {}

  void append(std::span<const int32_t> ids, std::span<const int32_t> labels,
              std::span<const int32_t> sequence_lengths) {
    if (num_rows_ % rows_.block_rows() == 0) begin_block();
    if (writer_) writer_->append_row(ids, labels, sequence_lengths);
    ++num_rows_;
    num_tokens_ += std::ssize(ids);
    if (num_rows_ % rows_.block_rows() == 0) end_block();
  }
  void finish() {
    if (num_rows_ % rows_.block_rows() != 0) end_block();
  }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_blocks() const { return num_blocks_; }

 private:
  // A block that is there already has the same rows.
  void begin_block() {
    std::error_code error;
    if (rows_.spool_) rows_.wait_until_wanted(num_blocks_, stop_);
    if (num_blocks_ >= rows_.first_needed_ && !fs::exists(rows_.block_path(num_blocks_), error))
      writer_.emplace(
          rows_.block_path(num_blocks_), rows_.hash_,
          num_kept_ids(rows_.vocab_size_, rows_.options_.masking ? &*rows_.options_.masking : nullptr),
          rows_.plan_.has_labels);
  }
  void end_block() {
    if (writer_) writer_->commit({});
    writer_.reset();
    ++num_blocks_;
  }

  const StreamedRows& rows_;
  const std::stop_token& stop_;
  std::optional<TokenCacheWriter> writer_;
  int64_t num_rows_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_blocks_ = 0;
};

StreamedRows::StreamedRows(std::span<const DataSource> sources, const DatasetOptions& options,
                           const Tokenizer* tokenizer, int64_t vocab_size, ThreadPool& pool)
    : options_(options), tokenizer_(tokenizer), vocab_size_(vocab_size) {
  options_.sources.assign(sources.begin(), sources.end());
  if (options_.spool) {
    spool_.emplace(options_.spool->folder);
    spool_->wait_for_first_file(options_.while_waiting);
  }
  plan_ = checked_row_plan(options_.sources, options_, tokenizer, vocab_size);
  if (plan_.is_pretokenized) {
    fail(ExitCode::kBadConfig, "{}: rows of token ids are read without tokenizing: leave --streaming out",
         plan_.files.front().path.string());
  }
  // Rows that are fed again may be cut into other files.
  if (spool_) plan_.files.front().stamp = {};
  folder_ = spool_ ? spool_->own_folder() : token_cache_folder(options_);
  key_ = make_key(pool);
  name_ = spool_ ? options_.spool->reading : key_;
  hash_ = hash_text(key_);
  create_token_cache_folder(folder_);
  remove_abandoned_files(folder_, ".tokens");
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

StreamedRows::~StreamedRows() {
  thread_.request_stop();
  thread_.join();
  if (reads_spool_) spool_->clear();
}

std::string StreamedRows::make_key(ThreadPool& pool) const {
  int64_t size_bytes = 0;
  for (const SourceFile& file : plan_.files) size_bytes += file.stamp.size_bytes;
  std::vector<Hash128> hashes;
  if (spool_) {
    hashes.emplace_back();
  } else if (size_bytes <= kMaxHashedBytes) {
    hashes = hash_files(plan_, pool);
  } else {
    for (const fs::path& path : plan_.paths()) hashes.push_back(hash_of_ends(path));
  }
  return hash_text(fmt::format("stream of {} rows\n{}", block_rows(),
                               row_settings_text(plan_, options_, tokenizer_, vocab_size_, hashes)))
      .hex();
}

// One for all readings of a spool.
fs::path StreamedRows::lock_path() const { return folder_ / (spool_ ? "lock" : key_ + ".lock"); }

fs::path StreamedRows::block_path(int64_t block) const {
  return folder_ / fmt::format("{}-{}.tokens", name_, block);
}

fs::path StreamedRows::end_path() const { return folder_ / (name_ + ".end"); }

std::optional<StreamedRows::End> StreamedRows::find_end() const {
  std::error_code error;
  if (!fs::exists(end_path(), error)) return std::nullopt;
  const std::string origin = end_path().string();
  const Json json = parse_json(read_text_file(end_path()), origin);
  const JsonNode node(json, origin);
  return End{node["blocks"].integer(1), node["rows"].integer(1)};
}

bool StreamedRows::has_blocks(int64_t count) const {
  std::error_code error;
  for (int64_t block = 0; block < count; ++block) {
    if (!fs::exists(block_path(block), error)) return false;
  }
  return true;
}

void StreamedRows::run(const std::stop_token& stop) {
  // The training threads go first.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 10);
  const auto check_stop = [&stop] {
    if (stop.stop_requested()) throw Stopped();
  };
  try {
    const LockFile lock(lock_path(), check_stop);
    if (spool_) {
      reads_spool_ = spool_->begin_reading(name_, check_stop);
      if (reads_spool_) tokenize(stop);
      return;
    }
    // A block may have been deleted since, because it was damaged or by a cache cleaner.
    if (const std::optional<End> end = find_end(); !end || !has_blocks(end->num_blocks)) tokenize(stop);
  } catch (const Stopped&) {
  } catch (...) {
    const std::lock_guard hold(mutex_);
    error_ = std::current_exception();
  }
}

void StreamedRows::tokenize(const std::stop_token& stop) {
  const Stopwatch watch;
  int64_t size_bytes = 0;
  for (const SourceFile& file : plan_.files) size_bytes += file.stamp.size_bytes;
  DocumentCounts counts;
  BlockWriter writer(*this, stop);
  RowBuilder builder(
      plan_.packing, options_.max_length, plan_.has_labels,
      [&](auto ids, auto labels, auto lengths) { writer.append(ids, labels, lengths); }, &counts);
  RowBatch batch = {.max_bytes = int64_t{1} << 20, .max_documents = 256};
  SourceFile fed = plan_.files.front();
  if (spool_) batch.next_file = [&] { return next_fed_file(stop, &fed); };
  RowStream stream(plan_, options_, tokenizer_, vocab_size_, nullptr, batch);
  const auto speed = [&] {
    return format_count(static_cast<int64_t>(static_cast<double>(writer.num_tokens()) / watch.seconds()));
  };
  std::string first_problem;
  double logged_s = 0;
  while (stream.next()) {
    add_rows(stream.rows(), options_, vocab_size_, &builder, &counts, &first_problem);
    if (stop.stop_requested()) throw Stopped();
    if (!spool_ && watch.seconds() - logged_s > kLogInterval_s) {
      logged_s = watch.seconds();
      log_info("dataset: {} tokenized in the background, {} of {}, {} tokens/s",
               count_of(writer.num_rows(), "row"), format_bytes(stream.bytes_read()),
               format_bytes(size_bytes), speed());
    }
    if (writer.num_blocks() > 0) check_cut(counts, writer.num_tokens());
  }
  builder.finish();
  if (writer.num_rows() == 0) {
    const std::string why = counts.num_masked_rows > 0
                                ? ": no target in " + count_of(counts.num_masked_rows, "row")
                            : first_problem.empty() ? ""
                                                    : ": " + first_problem;
    fail(ExitCode::kBadData, "{}: the dataset is empty{}", plan_.files.front().path.string(), why);
  }
  check_cut(counts, writer.num_tokens());
  writer.finish();
  if (counts.num_bad_rows > 0)
    log_warning("dataset: skipped {}; the first: {}", count_of(counts.num_bad_rows, "row"), first_problem);
  if (counts.num_masked_rows > 0) {
    log_warning("dataset: skipped {} without a label that is not ignored",
                count_of(counts.num_masked_rows, "row"));
  }
  write_text_file(end_path(),
                  fmt::format("{{\"blocks\": {}, \"rows\": {}}}\n", writer.num_blocks(), writer.num_rows()));
  log_info("dataset: tokenized {} into {} of {} in the background, {} tokens/s",
           count_of(counts.num_documents, "document"), count_of(writer.num_rows(), "row"),
           count_of(writer.num_tokens(), "token"), speed());
}

const SourceFile* StreamedRows::next_fed_file(const std::stop_token& stop, SourceFile* file) {
  const std::optional<fs::path> path = spool_->next_file([&stop] {
    if (stop.stop_requested()) throw Stopped();
  });
  if (!path) return nullptr;
  file->path = *path;
  file->stamp = InputFile::open(*path).stamp();
  return file;
}

void StreamedRows::wait_until_wanted(int64_t block, const std::stop_token& stop) const {
  for (; block > last_wanted_ + kBlocksAhead; std::this_thread::sleep_for(kPoll)) {
    if (stop.stop_requested()) throw Stopped();
  }
}

// Checked as soon as there is a block, so that it does not end a run of days.
void StreamedRows::check_cut(const DocumentCounts& counts, int64_t num_tokens) const {
  if (options_.allow_truncation || options_.source_target) return;
  if (counts.num_cut_tokens <= (num_tokens + counts.num_cut_tokens) / 10) return;
  fail(ExitCode::kBadConfig,
       "{}: {} of the first {} would be dropped, as {} longer than max_length {}: set {}a larger "
       "--max_length, or --allow_truncation to drop them",
       plan_.files.front().path.string(), format_count(counts.num_cut_tokens),
       count_of(num_tokens + counts.num_cut_tokens, "token"), count_of(counts.num_cut_documents, "document"),
       shown_max_length(options_), ways_to_keep_tokens(plan_));
}

std::optional<int64_t> StreamedRows::find_block(int64_t block) const {
  const std::lock_guard hold(mutex_);
  last_wanted_ = std::max<int64_t>(last_wanted_, block);
  if (error_) std::rethrow_exception(error_);
  if (open_blocks_.contains(block)) return open_blocks_.at(block)->trailer().num_rows;
  // In this order: the end is written after the last block.
  if (!end_) end_ = find_end();
  if (end_ && block >= end_->num_blocks) return 0;
  std::error_code error;
  if (!fs::exists(block_path(block), error)) return std::nullopt;
  auto found = std::make_shared<const TokenCache>(TokenCache::open(block_path(block), hash_, nullptr));
  const int64_t num_rows = found->trailer().num_rows;
  // The last one, which is there before the file that says so.
  if (num_rows < block_rows()) end_ = End{block + 1, block * block_rows() + num_rows};
  open_blocks_.emplace(block, std::move(found));
  while (open_blocks_.size() > kOpenBlocks) {
    // Passes go from the first block to the last; the farthest is needed last.
    const bool drops_first = block - open_blocks_.begin()->first >= open_blocks_.rbegin()->first - block;
    open_blocks_.erase(drops_first ? open_blocks_.begin() : std::prev(open_blocks_.end()));
  }
  return num_rows;
}

int64_t StreamedRows::wait_for_block(int64_t block) const {
  for (;; std::this_thread::sleep_for(kPoll)) {
    if (const std::optional<int64_t> num_rows = find_block(block)) return *num_rows;
    if (options_.while_waiting) options_.while_waiting();
  }
}

std::optional<int64_t> StreamedRows::num_rows() const {
  const std::lock_guard hold(mutex_);
  return end_ && !spool_ ? std::optional(end_->num_rows) : std::nullopt;
}

void StreamedRows::release_before(int64_t block) const {
  if (!spool_) return;
  const std::lock_guard hold(mutex_);
  open_blocks_.erase(open_blocks_.begin(), open_blocks_.lower_bound(block));
  std::error_code error;
  for (int64_t old = first_needed_; old < block; ++old) fs::remove(block_path(old), error);
  first_needed_ = std::max<int64_t>(first_needed_, block);
}

std::shared_ptr<const TokenCache> StreamedRows::block_of(int64_t* row) const {
  const int64_t block = *row / block_rows();
  *row %= block_rows();
  for (;;) {
    {
      const std::lock_guard hold(mutex_);
      if (const auto found = open_blocks_.find(block); found != open_blocks_.end()) return found->second;
    }
    TESSERA_CHECK(wait_for_block(block) > *row, "row {} of block {}", *row, block);
  }
}

}  // namespace tessera
