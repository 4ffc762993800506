#include "checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/checkpoint_catalog.h"
#include "checkpoint/piece_codec.h"
#include "checkpoint/state_conversion.h"
#include "io/direct_file.h"
#include "platform/crc32c.h"
#include "platform/thread_pool.h"
#include "tensor/shape_text.h"
#include "weights/load_meter.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Pieces announced for readahead: enough to keep several requests in flight on a disk.
constexpr size_t kAnnouncedPieces = 64;

// Bytes of one piece of one file.
struct PieceSlice {
  size_t file = 0;
  size_t piece = 0;
  int64_t offset_bytes = 0;  // of the slice's first element, or of its block, within the piece
  int64_t skipped = 0;       // elements of the block before it
};

// Elements passed to the sink in one call: a slice of one piece and, for BF16 masters, the matching slice of
// remainders.
struct ReadUnit {
  StateKind kind;
  size_t part;  // of `values`
  int64_t flat_begin;
  int64_t count;
  PieceSlice values;
  PieceSlice remainders;
};

// Opens files on first use.
class OpenFiles {
 public:
  explicit OpenFiles(const CheckpointCatalog& catalog) : catalog_(catalog), files_(catalog.files.size()) {}

  // Reads a whole piece into `buffer` and verifies its checksum.
  std::span<std::byte> read(size_t file, size_t piece_index, PageBuffer* buffer) {
    const PieceRecord& piece = catalog_.files[file].pieces[piece_index];
    const DirectInputFile& input = at(file);
    const std::span<std::byte> bytes = input.read_at(piece.offset_bytes, piece.size_bytes, buffer);
    check_piece(input.path(), piece, bytes);
    return bytes;
  }
  void announce(size_t file, size_t piece_index) {
    const PieceRecord& piece = catalog_.files[file].pieces[piece_index];
    at(file).announce(piece.offset_bytes, piece.size_bytes);
  }

 private:
  const DirectInputFile& at(size_t index) {
    const std::lock_guard lock(mutex_);
    if (!files_[index]) {
      files_[index] = std::make_unique<DirectInputFile>(catalog_.path_of(catalog_.files[index].name));
    }
    return *files_[index];
  }

  const CheckpointCatalog& catalog_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<DirectInputFile>> files_;
};

// A disk is fastest with several requests in flight: 2 readers reach 0.8 of its speed, 4 reach 0.9.
constexpr int64_t kMinReaders = 4;

// Runs body(i) for all i, several at once, started in ascending order. Rethrows the error of the lowest
// failed i.
template <typename MakeBody>
void for_each_in_order(ThreadPool& pool, size_t count, const MakeBody& make_body) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t failed = std::numeric_limits<size_t>::max();
  std::exception_ptr error;
  pool.run_on_each(kMinReaders, [&] {
    size_t i = 0;
    try {
      auto body = make_body();
      while ((i = next++) < count) body(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (i < failed) {
        failed = i;
        error = std::current_exception();
      }
      next = count;
    }
  });
  if (error) std::rethrow_exception(error);
}

// A part's elements [begin, end) within one piece.
struct Cut {
  int64_t begin;
  int64_t end;
  PieceSlice slice;
};

void add_cuts(const CheckpointCatalog& catalog, const Extent& extent, DType dtype, int64_t begin, int64_t end,
              std::vector<Cut>* cuts) {
  const int64_t block = state_block(dtype), block_bytes = state_bytes(dtype, block);
  const CatalogFile& file = catalog.files[extent.file];
  begin = std::max(begin, extent.begin);
  end = std::min(end, extent.end);
  while (begin < end) {
    const int64_t skipped = (begin - extent.begin) % block;
    const int64_t offset = extent.offset_bytes + (begin - extent.begin) / block * block_bytes;
    const size_t index = file.piece_at(offset);
    const PieceRecord& piece = file.pieces[index];
    const int64_t left = (piece.offset_bytes + piece.size_bytes - offset) / block_bytes * block - skipped;
    const int64_t cut_end = std::min(end, begin + left);
    cuts->push_back({begin, cut_end, {extent.file, index, offset - piece.offset_bytes, skipped}});
    begin = cut_end;
  }
}

std::vector<Cut> cuts_of(const CheckpointCatalog& catalog, const CatalogParameter& parameter, size_t part,
                         int64_t begin, int64_t end) {
  const DType dtype = *catalog.parts.dtype(part);
  std::vector<Cut> cuts;
  if (part == StoredParts::kModel) {
    add_cuts(catalog, parameter.model, dtype, begin, end, &cuts);
    return cuts;
  }
  const std::vector<Extent>& extents = parameter.state[part];
  auto extent = std::partition_point(extents.begin(), extents.end(),
                                     [&](const Extent& candidate) { return candidate.end <= begin; });
  for (; extent != extents.end() && extent->begin < end; ++extent) {
    add_cuts(catalog, *extent, dtype, begin, end, &cuts);
  }
  return cuts;
}

// BF16 masters are the model's values with their remainders.
bool needs_remainders(const CheckpointCatalog& catalog, StateKind kind) {
  return kind == StateKind::kMaster && catalog.parts.model_dtype() == DType::kBF16;
}

// Adds the units of one kind, whose values are in `part`, for elements [begin, end) of a parameter.
void add_units(const CheckpointCatalog& catalog, const Parameter& parameter, StateKind kind, size_t part,
               int64_t begin, int64_t end, std::vector<ReadUnit>* units) {
  const CatalogParameter& stored = catalog.parameters.at(parameter.name);
  std::vector<Cut> cuts = cuts_of(catalog, stored, part, begin, end);
  if (!needs_remainders(catalog, kind)) {
    for (const Cut& cut : cuts) {
      units->push_back({kind, part, parameter.offset + cut.begin, cut.end - cut.begin, cut.slice, {}});
    }
    return;
  }
  // The pieces of weights and remainders mostly have the same boundaries, but need not.
  const std::vector<Cut> others = cuts_of(catalog, stored, StoredParts::kMaster, begin, end);
  auto other = others.begin();
  for (const Cut& cut : cuts) {
    for (int64_t at = cut.begin; at < cut.end;) {
      while (other->end <= at) ++other;
      const int64_t unit_end = std::min(cut.end, other->end);
      PieceSlice values = cut.slice;
      PieceSlice remainders = other->slice;
      values.offset_bytes += (at - cut.begin) * static_cast<int64_t>(sizeof(bf16));
      remainders.offset_bytes += (at - other->begin) * static_cast<int64_t>(sizeof(int16_t));
      units->push_back({kind, part, parameter.offset + at, unit_end - at, values, remainders});
      at = unit_end;
    }
  }
}

int64_t unit_bytes(const CheckpointCatalog& catalog, const ReadUnit& unit) {
  const auto bytes = [&](const PieceSlice& slice) {
    return catalog.files[slice.file].pieces[slice.piece].size_bytes;
  };
  return bytes(unit.values) + (needs_remainders(catalog, unit.kind) ? bytes(unit.remainders) : 0);
}

int64_t bytes_of(const CheckpointCatalog& catalog, const std::vector<ReadUnit>& units) {
  int64_t bytes = 0;
  for (const ReadUnit& unit : units) bytes += unit_bytes(catalog, unit);
  return bytes;
}

std::vector<ReadUnit> plan_units(const CheckpointCatalog& catalog, const ParameterLayout& layout,
                                 StateTensors tensors, const std::vector<ElementRange>& ranges) {
  // For BF16 masters, the rounded values.
  const size_t masters =
      catalog.parts.model_dtype() == DType::kF16 ? StoredParts::kMaster : StoredParts::kModel;
  const std::vector<OwnedPart> parts = owned_parts(layout, ranges);
  std::vector<ReadUnit> units;
  for_each_state_kind(tensors.size(), [&](StateKind kind) {
    for (const OwnedPart& part : parts) {
      const Parameter& parameter = *part.parameter;
      if (kind == StateKind::kMaster) {
        add_units(catalog, parameter, kind, masters, part.begin, part.end, &units);
        continue;
      }
      const StateTensor& tensor = tensors[tensor_index(kind)];
      const int64_t end = std::min(part.end, num_values_of(tensor, parameter));
      if (part.begin >= end) continue;
      const std::optional<StateOrigin> origin = find_origin(catalog, parameter, tensor);
      if (!origin) continue;  // it may lack
      if (!origin->is_mean) add_units(catalog, parameter, kind, origin->part, part.begin, end, &units);
    }
  });
  return units;
}

// A matrix of whose stored values the optimizer has means.
struct MeansUnit {
  struct Wanted {
    StateKind kind;
    bool are_rows;
    int64_t begin;
    int64_t end;
  };
  const Parameter* parameter;
  std::vector<ReadUnit> reads;  // all its elements, ascending
  std::vector<Wanted> wanted;
};

std::vector<MeansUnit> plan_means(const CheckpointCatalog& catalog, const ParameterLayout& layout,
                                  StateTensors tensors, const std::vector<ElementRange>& ranges) {
  std::vector<MeansUnit> units;
  for (const OwnedPart& part : owned_parts(layout, ranges)) {
    const Parameter& parameter = *part.parameter;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const int64_t end = std::min(part.end, num_values_of(tensors[i], parameter));
      if (part.begin >= end) continue;
      const std::optional<StateOrigin> origin = find_origin(catalog, parameter, tensors[i]);
      if (!origin || !origin->is_mean) continue;
      if (units.empty() || units.back().parameter != &parameter) {
        units.push_back({&parameter, {}, {}});
        add_units(catalog, parameter, state_kind(i), origin->part, 0, parameter.num_elements,
                  &units.back().reads);
      }
      TESSERA_CHECK(units.back().reads.front().part == origin->part, "{}", tensors[i].name);
      units.back().wanted.push_back(
          {state_kind(i), tensors[i].extent == StateExtent::kRows, part.begin, end});
    }
  }
  return units;
}

// Reads units; owns its buffers.
class UnitReader {
 public:
  UnitReader(const CheckpointCatalog& catalog, OpenFiles& files, const StateSink& sink)
      : catalog_(catalog), files_(files), sink_(sink) {}

  void read(const ReadUnit& unit) {
    const auto count = static_cast<size_t>(unit.count);
    const std::byte* values = read_slice(unit.values, &values_);
    if (!needs_remainders(catalog_, unit.kind)) {
      const DType dtype = *catalog_.parts.dtype(unit.part);
      sink_(unit.kind, unit.flat_begin, decode_values(values, unit.values.skipped, count, dtype, &decoded_));
      return;
    }
    const std::byte* remainders = read_slice(unit.remainders, &remainders_);
    decoded_.resize(count);
    decode_masters(reinterpret_cast<const bf16*>(values), reinterpret_cast<const int16_t*>(remainders),
                   decoded_);
    sink_(unit.kind, unit.flat_begin, decoded_);
  }

 private:
  // Returns the slice aligned for its elements, even if another program wrote a header of odd length.
  const std::byte* read_slice(const PieceSlice& slice, PageBuffer* buffer) {
    std::span<std::byte> bytes = files_.read(slice.file, slice.piece, buffer);
    if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(float) != 0) {
      std::memmove(buffer->data(), bytes.data(), bytes.size());
      bytes = {buffer->data(), bytes.size()};
    }
    return bytes.data() + slice.offset_bytes;
  }

  const CheckpointCatalog& catalog_;
  OpenFiles& files_;
  const StateSink& sink_;
  PageBuffer values_, remainders_;
  std::vector<float> decoded_;
};

void announce_unit(const CheckpointCatalog& catalog, OpenFiles& files, const ReadUnit& unit) {
  files.announce(unit.values.file, unit.values.piece);
  if (needs_remainders(catalog, unit.kind)) files.announce(unit.remainders.file, unit.remainders.piece);
}

void announce_first(const CheckpointCatalog& catalog, OpenFiles& files, const std::vector<ReadUnit>& units) {
  for (size_t i = 0; i < std::min(kAnnouncedPieces, units.size()); ++i)
    announce_unit(catalog, files, units[i]);
}

// On the calling thread, in the order of the elements.
void load_means(const CheckpointCatalog& catalog, OpenFiles& files, const MeansUnit& unit,
                const StateSink& sink, LoadMeter& progress) {
  const Parameter& parameter = *unit.parameter;
  MatrixMeans means(parameter.shape[0], parameter.shape[1]);
  const StateSink add = [&](StateKind /*kind*/, int64_t /*begin*/, std::span<const float> values) {
    means.add(values);
  };
  UnitReader reader(catalog, files, add);
  announce_first(catalog, files, unit.reads);
  for (size_t i = 0; i < unit.reads.size(); ++i) {
    if (i + kAnnouncedPieces < unit.reads.size())
      announce_unit(catalog, files, unit.reads[i + kAnnouncedPieces]);
    reader.read(unit.reads[i]);
    progress.add(unit_bytes(catalog, unit.reads[i]));
  }
  for (const MeansUnit::Wanted& wanted : unit.wanted) {
    const std::vector<float> all = wanted.are_rows ? means.of_rows() : means.of_columns();
    sink(wanted.kind, parameter.offset + wanted.begin,
         std::span(all).subspan(static_cast<size_t>(wanted.begin),
                                static_cast<size_t>(wanted.end - wanted.begin)));
  }
}

void check_parameters(const CheckpointCatalog& catalog, const ParameterLayout& layout) {
  const std::string& folder = catalog.folder.native();
  for (const Parameter& parameter : layout.parameters()) {
    const auto at = catalog.parameters.find(parameter.name);
    if (at != catalog.parameters.end() && at->second.shape == parameter.shape) continue;
    fail(ExitCode::kBadData, "{}: tensor '{}': expected shape {} of the model to be trained, found {}",
         folder, parameter.name, shape_text(parameter.shape),
         at == catalog.parameters.end() ? "no such tensor" : shape_text(at->second.shape));
  }
  for (const auto& [name, stored] : catalog.parameters) {
    if (layout.find(name) == nullptr) {
      fail(ExitCode::kBadData, "{}: tensor '{}': not part of the model to be trained", folder,
           printable(name));
    }
  }
}

}  // namespace

struct CheckpointReader::Impl {
  CheckpointCatalog catalog;
};

CheckpointReader::CheckpointReader() = default;
CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;

CheckpointReader CheckpointReader::open(const fs::path& folder) {
  CheckpointReader reader;
  reader.impl_ = std::make_unique<Impl>(Impl{CheckpointCatalog::read(folder)});
  return reader;
}

const fs::path& CheckpointReader::folder() const { return impl_->catalog.folder; }
int64_t CheckpointReader::step() const { return impl_->catalog.manifest.step; }
int CheckpointReader::world_size() const { return static_cast<int>(impl_->catalog.manifest.world_size); }
const std::string& CheckpointReader::run_json() const { return impl_->catalog.manifest.run_json; }

const std::string& CheckpointReader::program_version() const {
  return impl_->catalog.manifest.program_version;
}
DType CheckpointReader::model_dtype() const { return impl_->catalog.manifest.model_dtype; }
int64_t CheckpointReader::num_files() const { return std::ssize(impl_->catalog.manifest.files) + 1; }
int64_t CheckpointReader::bytes() const {
  int64_t total = 0;
  for (const FileRecord& file : impl_->catalog.manifest.files) total += file.bytes;
  return total;
}

std::string CheckpointReader::conversion_to(const ParameterLayout& layout, StateTensors tensors) const {
  return conversion_text(impl_->catalog, layout, tensors);
}

bool CheckpointReader::has_state(std::string_view tensor) const {
  return impl_->catalog.parts.find(tensor).has_value();
}

void CheckpointReader::load(const ParameterLayout& layout, StateTensors tensors,
                            const std::vector<ElementRange>& ranges, const StateSink& sink, ThreadPool& pool,
                            const std::function<void(const LoadProgress&)>& report) const {
  const CheckpointCatalog& catalog = impl_->catalog;
  check_parameters(catalog, layout);
  check_origins(catalog, layout, tensors);
  const std::vector<ReadUnit> units = plan_units(catalog, layout, tensors, ranges);
  const std::vector<MeansUnit> means = plan_means(catalog, layout, tensors, ranges);
  int64_t total_bytes = bytes_of(catalog, units);
  for (const MeansUnit& unit : means) total_bytes += bytes_of(catalog, unit.reads);
  LoadMeter progress(total_bytes, report);
  OpenFiles files(catalog);
  announce_first(catalog, files, units);
  for_each_in_order(pool, units.size(), [&] {
    return [&, reader = std::make_shared<UnitReader>(catalog, files, sink)](size_t i) {
      if (i + kAnnouncedPieces < units.size()) announce_unit(catalog, files, units[i + kAnnouncedPieces]);
      reader->read(units[i]);
      progress.add(unit_bytes(catalog, units[i]));
    };
  });
  for_each_in_order(pool, means.size(),
                    [&] { return [&](size_t i) { load_means(catalog, files, means[i], sink, progress); }; });
}

void CheckpointReader::verify(ThreadPool& pool,
                              const std::function<void(const LoadProgress&)>& report) const {
  const CheckpointCatalog& catalog = impl_->catalog;
  int64_t total_bytes = 0;
  std::vector<const FileRecord*> texts;
  for (const FileRecord& record : catalog.manifest.files) {
    total_bytes += record.bytes;
    if (record.crc32c) texts.push_back(&record);
  }
  std::vector<std::pair<size_t, size_t>> pieces;  // file, piece
  for (size_t file = 0; file < catalog.files.size(); ++file) {
    for (size_t piece = 0; piece < catalog.files[file].pieces.size(); ++piece)
      pieces.emplace_back(file, piece);
  }
  LoadMeter progress(total_bytes, report);
  OpenFiles files(catalog);
  for_each_in_order(pool, texts.size() + pieces.size(), [&] {
    return [&, buffer = std::make_shared<PageBuffer>()](size_t i) {
      if (i < texts.size()) {
        check_text(catalog.path_of(texts[i]->name), *texts[i]);
        progress.add(texts[i]->bytes);
        return;
      }
      const size_t ahead = i - texts.size() + kAnnouncedPieces;
      if (ahead < pieces.size()) files.announce(pieces[ahead].first, pieces[ahead].second);
      const auto& [file, piece] = pieces[i - texts.size()];
      progress.add(std::ssize(files.read(file, piece, buffer.get())));
    };
  });
}

}  // namespace tessera
