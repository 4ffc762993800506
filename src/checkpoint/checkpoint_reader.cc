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
#include "checkpoint/load_meter.h"
#include "checkpoint/piece_codec.h"
#include "io/direct_file.h"
#include "platform/crc32c.h"
#include "platform/thread_pool.h"
#include "tensor/shape_text.h"

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

int64_t num_values_of(const StateTensor& tensor, const Parameter& parameter) {
  return num_values(tensor.extent, shape_of(parameter), parameter.num_elements);
}

// The parts with the values, by StateKind; those of BF16 masters are the rounded ones. Of a tensor that the
// optimizer keeps for none of these parameters there is none.
std::vector<std::optional<size_t>> find_parts_of(const CheckpointCatalog& catalog,
                                                 const ParameterLayout& layout, StateTensors tensors) {
  const bool is_half = catalog.parts.model_dtype() == DType::kF16;
  std::vector<std::optional<size_t>> parts = {is_half ? StoredParts::kMaster : StoredParts::kModel};
  for (const StateTensor& tensor : tensors) {
    parts.push_back(catalog.parts.find(tensor.name));
    const auto has_values = [&](const Parameter& parameter) { return num_values_of(tensor, parameter) > 0; };
    if (parts.back() || std::ranges::none_of(layout.parameters(), has_values)) continue;
    fail(ExitCode::kBadConfig,
         "{}: optimizer state: expected {} of the optimizer to be used, found {}; resume with the optimizer "
         "that wrote it, or start a new run from its weights: --model {}",
         catalog.folder.native(), StoredParts(catalog.parts.model_dtype(), tensors).tensors_text(),
         catalog.parts.tensors_text(), catalog.folder.native());
  }
  return parts;
}

// An optimizer may keep a tensor for some parameters only, another one for others.
void check_values(const CheckpointCatalog& catalog, const Parameter& parameter, const StateTensor& tensor,
                  size_t part) {
  int64_t found = 0;
  for (const Extent& extent : catalog.parameters.at(parameter.name).state[part]) {
    if (extent.begin == found) found = extent.end;
  }
  if (found >= num_values_of(tensor, parameter)) return;
  fail(ExitCode::kBadConfig,
       "{}: optimizer state: expected {} of '{}' for the optimizer to be used, found {}; resume with the "
       "optimizer that wrote it, or start a new run from its weights: --model {}",
       catalog.folder.native(), tensor.name, printable(parameter.name),
       found == 0 ? "none" : count_of(found, "value"), catalog.folder.native());
}

std::vector<ReadUnit> plan_units(const CheckpointCatalog& catalog, const ParameterLayout& layout,
                                 StateTensors tensors, const std::vector<ElementRange>& ranges) {
  const std::vector<std::optional<size_t>> part_of_kind = find_parts_of(catalog, layout, tensors);
  const std::vector<OwnedPart> parts = owned_parts(layout, ranges);
  std::vector<ReadUnit> units;
  for_each_state_kind(tensors.size(), [&](StateKind kind) {
    const std::optional<size_t> part_of = part_of_kind[static_cast<size_t>(kind)];
    if (!part_of) return;
    const StateTensor* tensor = kind == StateKind::kMaster ? nullptr : &tensors[tensor_index(kind)];
    for (const Parameter& parameter : layout.parameters()) {
      if (tensor != nullptr) check_values(catalog, parameter, *tensor, *part_of);
    }
    for (const OwnedPart& part : parts) {
      const Parameter& parameter = *part.parameter;
      const int64_t stored = tensor == nullptr ? parameter.num_elements : num_values_of(*tensor, parameter);
      add_units(catalog, parameter, kind, *part_of, part.begin, std::min(part.end, stored), &units);
    }
  });
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

namespace {

int significant_bits(DType state) { return is_block_code(state) ? 4 : state == DType::kBF16 ? 8 : 24; }

std::string loss_text(DType from, DType to) {
  if (significant_bits(to) >= significant_bits(from)) return " (exactly)";
  return fmt::format(" (rounded to {} significant bits)", significant_bits(to));
}

}  // namespace

std::string CheckpointReader::conversion_to(StateTensors tensors) const {
  const StoredParts& parts = impl_->catalog.parts;
  std::vector<std::string> changes;
  for (const StateTensor& tensor : tensors) {
    const auto part = parts.find(tensor.name);
    if (part && parts.dtype(*part) != tensor.dtype)
      changes.push_back(fmt::format("{} from {} to {}{}", tensor.name, dtype_name(*parts.dtype(*part)),
                                    dtype_name(tensor.dtype), loss_text(*parts.dtype(*part), tensor.dtype)));
  }
  for (size_t part = StoredParts::kFirstTensor; part < parts.count(); ++part) {
    if (std::ranges::find(tensors, parts.prefix(part), &StateTensor::name) == tensors.end())
      changes.push_back("without " + parts.prefix(part));
  }
  return fmt::format("{}", fmt::join(changes, ", "));
}

void CheckpointReader::load(const ParameterLayout& layout, StateTensors tensors,
                            const std::vector<ElementRange>& ranges, const StateSink& sink, ThreadPool& pool,
                            const std::function<void(const LoadProgress&)>& report) const {
  const CheckpointCatalog& catalog = impl_->catalog;
  check_parameters(catalog, layout);
  const std::vector<ReadUnit> units = plan_units(catalog, layout, tensors, ranges);
  int64_t total_bytes = 0;
  for (const ReadUnit& unit : units) total_bytes += unit_bytes(catalog, unit);
  LoadMeter progress(total_bytes, report);
  OpenFiles files(catalog);
  const auto announce_unit = [&](const ReadUnit& unit) {
    files.announce(unit.values.file, unit.values.piece);
    if (needs_remainders(catalog, unit.kind)) files.announce(unit.remainders.file, unit.remainders.piece);
  };
  for (size_t i = 0; i < std::min(kAnnouncedPieces, units.size()); ++i) announce_unit(units[i]);
  for_each_in_order(pool, units.size(), [&] {
    return [&, reader = std::make_shared<UnitReader>(catalog, files, sink)](size_t i) {
      if (i + kAnnouncedPieces < units.size()) announce_unit(units[i + kAnnouncedPieces]);
      reader->read(units[i]);
      progress.add(unit_bytes(catalog, units[i]));
    };
  });
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
