#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <mutex>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/float_types.h"
#include "base/text.h"
#include "weights/load_meter.h"
#include "weights/load_plan.h"
#include "weights/model_folder.h"
#include "weights/weight_names.h"

namespace tessera {
namespace {

using Location = SafetensorsModel::Location;
// 256 KiB of BF16: still in the core's cache when it is checked, even if ranks share a core.
constexpr int64_t kPieceElements = int64_t{1} << 17;
// Bytes announced for readahead: enough to keep several requests in flight on a disk.
constexpr int64_t kAnnouncedBytes = int64_t{64} << 20;

// A unit of reading: for the sink, or for comparison with the tied embedding.
struct Piece {
  size_t tensor;
  int64_t begin;
  int64_t count;
};

// Adds the parts of a tensor that lie in the ranges, in pieces.
void add_pieces(std::span<const PlannedTensor> tensors, size_t index, std::span<const ElementRange> ranges,
                std::vector<Piece>* pieces) {
  const PlannedTensor& tensor = tensors[index];
  const int64_t tensor_end = tensor.offset + tensor.num_elements;
  const auto ends_before = [](const ElementRange& range, int64_t offset) { return range.end <= offset; };
  auto range = std::lower_bound(ranges.begin(), ranges.end(), tensor.offset, ends_before);
  for (; range != ranges.end() && range->begin < tensor_end; ++range) {
    const int64_t end = std::min(range->end, tensor_end) - tensor.offset;
    for (int64_t begin = std::max(range->begin, tensor.offset) - tensor.offset; begin < end;
         begin += kPieceElements) {
      pieces->push_back({index, begin, std::min(kPieceElements, end - begin)});
    }
  }
}

std::vector<Piece> plan_pieces(std::span<const PlannedTensor> tensors, std::span<const ElementRange> ranges) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) add_pieces(tensors, i, ranges, &pieces);
  return pieces;
}

void read_piece(const Location& location, int64_t begin, std::span<float> values) {
  location.file->read(*location.entry, begin,
                      TensorView(values.data(), DType::kF32, {static_cast<int64_t>(values.size())}));
}

int64_t count_non_finite(std::span<const float> values) {
  int64_t count = 0;
  for (const float value : values) count += is_finite(value) ? 0 : 1;
  return count;
}

// Infinities and NaN have all exponent bits set. A first loop only detects them, 64 bytes at a time, at the
// speed of the cache; they are counted only if there are any.
int64_t count_non_finite(std::span<const bf16> values) {
  using Lanes [[gnu::vector_size(16)]] = uint16_t;
  constexpr uint16_t kExponent = 0x7F80;
  constexpr uint16_t kLastExponentBit = 0x0080;
  constexpr size_t kNumLanes = sizeof(Lanes) / sizeof(uint16_t);
  const auto is_bad = [](bf16 value) { return !is_finite(value); };
  // An all-ones exponent carries into bit 15.
  const auto marks = [](const bf16* at) {
    Lanes lanes;
    std::memcpy(&lanes, at, sizeof(lanes));
    return (lanes & kExponent) + kLastExponentBit;
  };
  Lanes even = {}, odd = {};
  const bf16* at = values.data();
  const bf16* const end = at + values.size();
  for (; end - at >= 4 * static_cast<ptrdiff_t>(kNumLanes); at += 4 * kNumLanes) {
    even |= marks(at) | marks(at + 2 * kNumLanes);
    odd |= marks(at + kNumLanes) | marks(at + 3 * kNumLanes);
  }
  bool any = std::any_of(at, end, is_bad);
  for (size_t lane = 0; lane < kNumLanes; ++lane) any = any || ((even[lane] | odd[lane]) & 0x8000) != 0;
  return any ? std::count_if(values.begin(), values.end(), is_bad) : 0;
}

void check_equal(const PlannedTensor& tensor, int64_t begin, std::span<const float> found,
                 std::span<const float> expected) {
  // Equal bits count too: check_finite reports a NaN in both.
  const auto same = [](float a, float b) {
    return a == b || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
  };
  const auto [at, other] = std::mismatch(found.begin(), found.end(), expected.begin(), same);
  if (at == found.end()) return;
  if (tensor.name != kLmHeadName)
    fail(ExitCode::kBadData,
         "{}: tensor '{}': expected the values of {}, found {} instead of {} at element {}",
         tensor.location.file->path().native(), tensor.name, tensor.equal->first, *at, *other,
         begin + (at - found.begin()));
  fail(ExitCode::kBadData,
       "{}: tensor '{}': expected the values of {} since tie_word_embeddings is true in config.json, found "
       "{} instead of {} at element {} (Transformers uses both: set it to false)",
       tensor.location.file->path().native(), tensor.name, tensor.equal->first, *at, *other,
       begin + (at - found.begin()));
}

void check_finite(std::span<const PlannedTensor> tensors,
                  const std::vector<std::atomic<int64_t>>& non_finite) {
  int64_t total = 0, bad_tensors = 0;
  const PlannedTensor* first = nullptr;
  int64_t first_count = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t count = non_finite[i].load();
    if (count == 0) continue;
    if (first == nullptr) {
      first = &tensors[i];
      first_count = count;
    }
    total += count;
    ++bad_tensors;
  }
  if (first == nullptr) return;
  fail(ExitCode::kBadData, "{}: tensor '{}': expected finite weights, found {} of {} NaN or infinite{}",
       first->location.file->path().native(), first->name, format_count(first_count),
       format_count(first->num_elements),
       bad_tensors == 1 ? "" : fmt::format(" ({} in {} tensors in all)", format_count(total), bad_tensors));
}

// Keeps kAnnouncedBytes announced for readahead, counted from the piece that a thread is starting.
class Announcer {
 public:
  Announcer(std::span<const PlannedTensor> tensors, const std::vector<Piece>& pieces)
      : tensors_(tensors), pieces_(pieces) {}

  void begin(size_t piece) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;  // another thread is doing it
    while (next_ < pieces_.size() && (next_ <= piece || ahead(piece) < kAnnouncedBytes)) announce(next_++);
  }

 private:
  int64_t bytes_of(const Piece& piece) const { return tensors_[piece.tensor].stored.bytes_of(piece.count); }

  int64_t ahead(size_t piece) {
    for (; passed_ < piece; ++passed_) passed_bytes_ += bytes_of(pieces_[passed_]);
    return announced_bytes_ - passed_bytes_;
  }

  void announce(size_t index) {
    const Piece& piece = pieces_[index];
    const PlannedTensor& tensor = tensors_[piece.tensor];
    const StoredParameter& stored = tensor.stored;
    const int64_t per_element = stored.is_mxfp4() ? 2 : 1;  // codes in a byte
    tensor.location.file->announce(*tensor.location.entry, (stored.first_element + piece.begin) / per_element,
                                   piece.count / per_element);
    announced_bytes_ += bytes_of(piece);
  }

  std::span<const PlannedTensor> tensors_;
  const std::vector<Piece>& pieces_;
  std::mutex mutex_;
  size_t next_ = 0;
  size_t passed_ = 0;
  int64_t announced_bytes_ = 0;
  int64_t passed_bytes_ = 0;
};

// Reads pieces; owns its buffers.
class PieceReader {
 public:
  PieceReader(const WeightSink& sink, const Bf16Destination& bf16_destination, bool adds_up)
      : sink_(sink), bf16_destination_(bf16_destination), adds_up_(adds_up) {}

  const ValueSums& sums() const { return sums_; }

  // Returns the number of values that are not finite.
  int64_t read(const PlannedTensor& tensor, const Piece& piece) {
    if (bf16_destination_ && tensor.equal == nullptr && tensor.location.entry->dtype == DType::kBF16) {
      return read_in_place(tensor, piece);
    }
    const size_t count = static_cast<size_t>(piece.count);
    values_.resize(count);
    reader_.read(tensor.stored, *tensor.parameter, piece.begin, values_);
    if (tensor.equal != nullptr) {
      others_.resize(count);
      read_piece(tensor.equal->second, piece.begin, others_);
      check_equal(tensor, piece.begin, values_, others_);
      return 0;
    }
    sink_(tensor.offset + piece.begin, values_);
    if (adds_up_) sums_.add(*tensor.parameter, piece.begin, std::span<const float>(values_));
    return count_non_finite(std::span<const float>(values_));
  }

 private:
  int64_t read_in_place(const PlannedTensor& tensor, const Piece& piece) {
    int64_t num_non_finite = 0;
    for (int64_t begin = piece.begin, end = piece.begin + piece.count; begin < end;) {
      const std::span<bf16> values = bf16_destination_(tensor.offset + begin, end - begin);
      const int64_t count = std::ssize(values);
      TESSERA_CHECK(0 < count && count <= end - begin, "{}: memory for {} of {} elements", tensor.name, count,
                    end - begin);
      tensor.location.file->read(*tensor.location.entry, tensor.stored.first_element + begin,
                                 TensorView(values.data(), DType::kBF16, {count}));
      num_non_finite += count_non_finite(std::span<const bf16>(values));
      if (adds_up_) sums_.add(*tensor.parameter, begin, std::span<const bf16>(values));
      begin += count;
    }
    return num_non_finite;
  }

  const WeightSink& sink_;
  const Bf16Destination& bf16_destination_;
  const bool adds_up_;
  ValueSums sums_;
  ParameterReader reader_;
  std::vector<float> values_, others_;
};

}  // namespace

void load_weights(std::span<const PlannedTensor> tensors, const WeightSink& sink, ThreadPool& pool,
                  const LoadOptions& options) {
  constexpr ElementRange everything = {0, std::numeric_limits<int64_t>::max()};
  const std::vector<Piece> pieces = plan_pieces(tensors, options.ranges.value_or(std::span(&everything, 1)));
  std::vector<std::atomic<int64_t>> non_finite(tensors.size());
  int64_t total_bytes = 0;
  for (const Piece& piece : pieces) total_bytes += tensors[piece.tensor].stored.bytes_of(piece.count);
  LoadMeter progress(total_bytes, options.progress);
  Announcer announcer(tensors, pieces);
  // Threads take the pieces in order, so that the files are read front to back.
  std::atomic<size_t> next = 0;
  std::mutex sums_mutex;
  pool.parallel_for(pool.num_threads(), [&](int64_t /*reader*/) {
    PieceReader reader(sink, options.bf16_destination, options.sums != nullptr);
    for (size_t index = next++; index < pieces.size(); index = next++) {
      const Piece& piece = pieces[index];
      const PlannedTensor& tensor = tensors[piece.tensor];
      announcer.begin(index);
      non_finite[piece.tensor] += reader.read(tensor, piece);
      progress.add(tensor.stored.bytes_of(piece.count));
    }
    if (options.sums == nullptr) return;
    const std::lock_guard lock(sums_mutex);
    *options.sums += reader.sums();
  });
  check_finite(tensors, non_finite);
}

void load_weights(const SafetensorsModel& model, const ModelConfig& config, const ParameterLayout& layout,
                  const WeightSink& sink, ThreadPool& pool, const LoadOptions& options) {
  load_weights(plan_load(model, config, layout), sink, pool, options);
}

}  // namespace tessera
