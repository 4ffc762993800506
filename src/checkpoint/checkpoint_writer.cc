#include "checkpoint/checkpoint_writer.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/piece_codec.h"
#include "checkpoint/piece_queue.h"
#include "formats/safetensors/shard_name.h"
#include "io/disk_space.h"
#include "io/output_file.h"
#include "platform/cpu.h"
#include "platform/crc32c.h"
#include "weights/saved_tensors.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Yields to compute threads: the writer gets the time they leave, which is a lot while they wait for the
// network.
constexpr int kWriterNiceness = 10;
// Contiguous bytes after which writeback is started.
constexpr int64_t kWritebackBytes = int64_t{8} << 20;
// Piece size for small text files.
constexpr int64_t kTextPieceBytes = int64_t{4} << 20;

// Rate limiter: never exceeds the rate, counted from the last pause.
class Pace {
 public:
  explicit Pace(int64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  bool is_limited() const { return bytes_per_second_ > 0; }
  // When the next bytes may be written.
  Clock::time_point ready() const { return ready_; }
  void add(int64_t size_bytes) {
    const auto time = std::chrono::duration<double>(static_cast<double>(size_bytes) /
                                                    static_cast<double>(bytes_per_second_));
    ready_ = std::max(ready_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(time);
  }

 private:
  int64_t bytes_per_second_;
  Clock::time_point ready_ = Clock::now();
};

// A file that this rank writes to, and the checksums of the pieces it wrote. write() and record() are
// thread-safe.
class PieceFile {
 public:
  PieceFile(std::string name, OutputFile file) : name_(std::move(name)), file_(std::move(file)) {}

  void write(int64_t offset_bytes, std::span<const std::byte> data) {
    write_unrecorded(offset_bytes, data);
    record(offset_bytes, data);
  }
  // For parts of a piece.
  void write_unrecorded(int64_t offset_bytes, std::span<const std::byte> data) const {
    file_.write_at(offset_bytes, data);
  }
  std::pair<int64_t, int64_t> share(int64_t offset_bytes, const FileBytes& source) const {
    return file_.share_at(offset_bytes, source);
  }
  // For bytes that are already in the file.
  void record(int64_t offset_bytes, std::span<const std::byte> data) {
    const PieceRecord piece = {offset_bytes, std::ssize(data), crc32c(0, data)};
    const std::lock_guard lock(mutex_);
    pieces_.push_back(piece);
  }
  void start_writeback(int64_t begin, int64_t end) const { file_.start_writeback(begin, end - begin); }

  void finish() {
    file_.sync();
    file_.close();
  }
  RankIndex::File index_entry() {
    std::sort(pieces_.begin(), pieces_.end(),
              [](const PieceRecord& a, const PieceRecord& b) { return a.offset_bytes < b.offset_bytes; });
    return {name_, std::move(pieces_)};
  }

 private:
  std::string name_;
  OutputFile file_;
  std::mutex mutex_;  // guards what follows
  std::vector<PieceRecord> pieces_;
};

// The byte ranges of a piece that are shared with files of the run, by part: [first, second), ascending.
using SharedBytes = std::array<std::vector<std::pair<int64_t, int64_t>>, StoredParts::kMaxCount>;

// Contiguous bytes of one part for which writeback has not been started yet.
struct Stream {
  PieceFile* file = nullptr;
  int64_t begin = 0;
  int64_t end = 0;

  void add(PieceFile* to, int64_t offset_bytes, int64_t size_bytes) {
    if (to != file || offset_bytes != end) {
      flush();
      *this = {to, offset_bytes, offset_bytes};
    }
    end += size_bytes;
    if (end - begin >= kWritebackBytes) flush();
  }
  void flush() {
    if (file != nullptr && end > begin) file->start_writeback(begin, end);
    begin = end;
  }
};

}  // namespace

struct CheckpointWriter::Impl {
  Impl(const CheckpointPlan& plan, const std::vector<ElementRange>& owned, StateSource state_source,
       const WriteOptions& write_options, ThreadPool& thread_pool, StoredSource state_as_stored)
      : folder(plan.unfinished_folder()),
        config(*plan.config),
        export_options(plan.export_options),
        rank(plan.rank),
        world_size(plan.world_size),
        source(std::move(state_source)),
        stored_source(std::move(state_as_stored)),
        options(write_options),
        pool(thread_pool),
        parts(owned_parts(*plan.layout, owned)),
        model_layout(model_file_layout(*plan.layout, export_options)),
        stored(export_options.save_dtype, plan.state_tensors),
        state_layout(state_file_layout(parts, stored)),
        checkpoint_bytes(stored_bytes(*plan.layout, {{0, plan.layout->num_elements()}}, stored)),
        queue(cut_into_pieces(parts), stored, options.snapshot_bytes) {}

  // The writer's thread.
  void run() noexcept;
  void open_files();
  bool has_room() const;
  void write_pieces();
  // Encodes the piece into `memory`, and shares what can be shared; from several threads.
  SharedBytes read_piece(const ParameterPiece& piece, std::byte* memory);
  // Besides what is shared; returns how many bytes were written. `part_streams`: of the writer's thread.
  int64_t write_piece(const ParameterPiece& piece, const std::byte* encoded, const SharedBytes& shared,
                      std::span<Stream> part_streams);
  void capture(const std::vector<PieceQueue::Capture>& captures);
  void write_texts();
  void finish_files();
  void set_failure(std::exception_ptr error);

  // Where a part of a piece is written.
  struct Place {
    PieceFile* file;
    int64_t offset_bytes;
  };
  Place place_of(const ParameterPiece& piece, size_t part);

  const std::filesystem::path folder;
  const ModelConfig config;
  const ExportOptions export_options;
  const int rank;
  const int world_size;
  const StateSource source;
  const StoredSource stored_source;
  const WriteOptions options;
  ThreadPool& pool;
  const std::vector<OwnedPart> parts;
  const SafetensorsModelLayout model_layout;
  const StoredParts stored;
  const SafetensorsLayout state_layout;
  const int64_t checkpoint_bytes;  // of all ranks
  PieceQueue queue;

  // Opened by the writer's thread.
  std::vector<std::unique_ptr<PieceFile>> model_files;  // null where the rank owns nothing
  std::unique_ptr<PieceFile> state_file;
  std::atomic<bool> may_share = false;  // once they are open

  // Used only by the writer's thread.
  std::vector<RankIndex::File> texts;
  std::array<Stream, StoredParts::kMaxCount> streams;  // by part
  PageBuffer buffer;
  Pace pace{options.max_bytes_per_second};

  std::atomic<bool> finished = false;
  std::mutex mutex;  // guards the following two
  std::exception_ptr failure;
  WriteReport report;

  std::thread thread;  // last: it uses all of the above
};

void CheckpointWriter::Impl::set_failure(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex);
    if (!failure) failure = std::move(error);
  }
  queue.close();
}

void CheckpointWriter::Impl::run() noexcept {
  ::setpriority(PRIO_PROCESS, 0, kWriterNiceness);  // this thread only; failure costs a little speed
  const Stopwatch stopwatch;
  try {
    open_files();
    write_pieces();
    finish_files();
  } catch (...) {
    set_failure(std::current_exception());
  }
  {
    const std::lock_guard lock(mutex);
    report.write_s = stopwatch.seconds();
  }
  finished.store(true, std::memory_order_release);
  finished.notify_all();
}

void CheckpointWriter::Impl::open_files() {
  // Rank 0 wrote the headers, so it records and syncs every file.
  std::vector<bool> is_used(model_layout.files.size(), rank == 0);
  for (const OwnedPart& part : parts) {
    is_used[static_cast<size_t>(model_layout.at(saved_name(*part.parameter)).file)] = true;
  }
  for (size_t i = 0; i < model_layout.files.size(); ++i) {
    const auto& [name, layout] = model_layout.files[i];
    model_files.push_back(is_used[i] ? std::make_unique<PieceFile>(name, OutputFile::open(folder / name))
                                     : nullptr);
    if (rank == 0) model_files.back()->record(0, std::as_bytes(std::span(layout.header())));
  }
  const std::string name = state_file_name(rank, world_size);
  state_file = std::make_unique<PieceFile>(name, state_layout.create(folder / name));
  state_file->record(0, std::as_bytes(std::span(state_layout.header())));
  may_share.store(stored_source && has_room(), std::memory_order_release);
}

// Shared pages take room only once the run changes them, and a disk that is full by then ends the run.
// Without room for a whole checkpoint its pieces are written: when that fails, the run continues.
bool CheckpointWriter::Impl::has_room() const {
  std::error_code ignored;
  const std::filesystem::space_info space = disk_space(folder, ignored);
  return !ignored && space.available >= static_cast<uintmax_t>(checkpoint_bytes);
}

void CheckpointWriter::Impl::write_pieces() {
  buffer = PageBuffer(max_encoded_bytes(stored));
  while (const auto work = queue.next()) {
    const ParameterPiece& piece = queue.piece(work->index);
    SharedBytes shared;
    if (work->captured == nullptr) {
      shared = read_piece(piece, buffer.data());
      queue.set_read(work->index);
    }
    if (pace.is_limited()) queue.sleep_until(pace.ready());
    const std::byte* encoded = work->captured != nullptr ? work->captured : buffer.data();
    const int64_t written_bytes = write_piece(piece, encoded, shared, streams);
    if (pace.is_limited()) pace.add(written_bytes);
    queue.set_written(work->index);
  }
  buffer = PageBuffer();
  // Abandoned, or a caller has failed; then the caller's error, set first, is the one reported.
  if (queue.is_closed()) fail(ExitCode::kIoError, "{}: abandoned", folder.native());
}

CheckpointWriter::Impl::Place CheckpointWriter::Impl::place_of(const ParameterPiece& piece, size_t part) {
  const std::string& name = piece.parameter->name;
  if (part == StoredParts::kModel) {
    const SafetensorsModelLayout::Place place = model_layout.at(saved_name(*piece.parameter));
    return {model_files[static_cast<size_t>(place.file)].get(),
            place.entry->offset_bytes + stored.bytes(part, saved_begin(*piece.parameter) + piece.begin)};
  }
  const SafetensorsEntry* entry = state_layout.find(stored.tensor_name(part, name));
  TESSERA_CHECK(entry != nullptr, "{}", name);
  return {state_file.get(), entry->offset_bytes + stored.bytes(part, piece.position)};
}

SharedBytes CheckpointWriter::Impl::read_piece(const ParameterPiece& piece, std::byte* memory) {
  SharedBytes shared;
  const bool shares = may_share.load(std::memory_order_acquire);
  encode_piece(piece, stored, {source, stored_source}, memory,
               [&](size_t part, int64_t first_bytes, const FileBytes& bytes) {
                 if (!shares) return;
                 const Place place = place_of(piece, part);
                 const auto [begin, end] = place.file->share(place.offset_bytes + first_bytes, bytes);
                 if (begin < end) shared[part].emplace_back(first_bytes + begin, first_bytes + end);
               });
  return shared;
}

int64_t CheckpointWriter::Impl::write_piece(const ParameterPiece& piece, const std::byte* encoded,
                                            const SharedBytes& shared, std::span<Stream> part_streams) {
  const EncodedSizes sizes = encoded_sizes(piece, stored);
  int64_t total_bytes = 0, shared_bytes = 0;
  for (size_t part = 0; part < stored.count(); ++part) {
    if (sizes.size_bytes[part] == 0) continue;
    const Place place = place_of(piece, part);
    const std::span data(encoded + sizes.offset_bytes[part], static_cast<size_t>(sizes.size_bytes[part]));
    const auto write = [&](int64_t begin, int64_t end) {
      if (begin == end) return;
      place.file->write_unrecorded(
          place.offset_bytes + begin,
          data.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      if (!part_streams.empty()) part_streams[part].add(place.file, place.offset_bytes + begin, end - begin);
    };
    int64_t done = 0;
    for (const auto& [begin, end] : shared[part]) {
      write(done, begin);
      shared_bytes += end - begin;
      done = end;
    }
    write(done, std::ssize(data));
    place.file->record(place.offset_bytes, data);
    total_bytes += std::ssize(data);
  }
  const std::lock_guard lock(mutex);
  report.bytes += total_bytes;
  report.shared_bytes += shared_bytes;
  return total_bytes - shared_bytes;
}

// Runs on the caller's threads. Pieces that share anything are written at once and take no more
// memory.
void CheckpointWriter::Impl::capture(const std::vector<PieceQueue::Capture>& captures) {
  std::vector<char> is_written(captures.size(), 0);
  pool.parallel_for(std::ssize(captures), [&](int64_t i) {
    const auto& [index, memory] = captures[static_cast<size_t>(i)];
    const ParameterPiece& piece = queue.piece(index);
    const SharedBytes shared = read_piece(piece, memory);
    if (std::ranges::all_of(shared, [](const auto& ranges) { return ranges.empty(); })) return;
    write_piece(piece, memory, shared, {});
    queue.set_written(index);
    is_written[static_cast<size_t>(i)] = 1;
  });
  std::vector<PieceQueue::Capture> kept;
  for (size_t i = 0; i < captures.size(); ++i) {
    if (is_written[i] == 0) kept.push_back(captures[i]);
  }
  queue.set_captured(kept);
}

// Writes config.json, the tokenizer files and the shard index.
void CheckpointWriter::Impl::write_texts() {
  std::vector<NamedText> files = model_folder_texts(config, export_options);
  if (!model_layout.index_json.empty()) files.push_back({kIndexFileName, model_layout.index_json});
  for (const auto& [name, text] : files) {
    PieceFile file(name, OutputFile::create(folder / name, 0));
    const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
    for (int64_t begin = 0; begin < std::ssize(bytes); begin += kTextPieceBytes) {
      const int64_t count = std::min(kTextPieceBytes, std::ssize(bytes) - begin);
      file.write(begin, bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
    }
    file.finish();
    texts.push_back(file.index_entry());
  }
}

void CheckpointWriter::Impl::finish_files() {
  for (Stream& stream : streams) stream.flush();
  RankIndex index;
  index.rank = rank;
  index.world_size = world_size;
  if (rank == 0) write_texts();
  index.files = std::move(texts);
  for (const auto& file : model_files) {
    if (!file) continue;
    file->finish();
    index.files.push_back(file->index_entry());
  }
  state_file->finish();
  index.files.push_back(state_file->index_entry());
  for (const OwnedPart& part : parts) {
    index.elements[part.parameter->name].push_back({part.begin, part.end});
  }
  write_synced_file(folder / state_index_name(rank, world_size), write_rank_index(index));
}

CheckpointWriter::CheckpointWriter(const CheckpointPlan& plan, std::vector<ElementRange> owned,
                                   StateSource source, const WriteOptions& options, ThreadPool& pool,
                                   StoredSource stored)
    : impl_(std::make_unique<Impl>(plan, owned, std::move(source), options, pool, std::move(stored))) {
  const UnpinnedScope unpinned(spare_cpus());  // on spare cores, not on the creator's pinned one
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

CheckpointWriter::~CheckpointWriter() {
  impl_->queue.close();
  impl_->thread.join();
}

void CheckpointWriter::before_change(ElementRange elements) {
  if (finished()) return;
  const Stopwatch stopwatch;
  Impl& impl = *impl_;
  try {
    while (true) {
      const std::vector<PieceQueue::Capture> captures = impl.queue.claim(elements);
      if (captures.empty()) break;
      impl.capture(captures);
    }
  } catch (...) {
    impl.set_failure(std::current_exception());
  }
  const std::lock_guard lock(impl.mutex);
  impl.report.stall_s += stopwatch.seconds();
}

bool CheckpointWriter::finished() const { return impl_->finished.load(std::memory_order_acquire); }

void CheckpointWriter::wait() {
  impl_->queue.hurry();
  impl_->finished.wait(false, std::memory_order_acquire);
  const std::lock_guard lock(impl_->mutex);
  if (impl_->failure) std::rethrow_exception(impl_->failure);
}

WriteReport CheckpointWriter::report() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->report;
}

}  // namespace tessera
