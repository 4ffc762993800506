#include "data/cache/pretokenized_rows.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "data/cache/row_tensor.h"
#include "formats/safetensors/safetensors.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Values read at once, unless a row is longer.
constexpr int64_t kBlockValues = int64_t{1} << 18;

constexpr std::array<std::string_view, 6> kTensors = {"input_ids",    "labels",          "attention_mask",
                                                      "position_ids", "completion_mask", "assistant_masks"};

// The tensors of one file.
class PretokenizedFile {
 public:
  explicit PretokenizedFile(const fs::path& path, bool of_encoder = false)
      : file_(SafetensorsFile::open(path)) {
    for (const SafetensorsEntry& entry : file_.entries()) {
      if (of_encoder && entry.name == "token_type_ids") continue;
      if (std::find(kTensors.begin(), kTensors.end(), entry.name) == kTensors.end()) {
        fail(ExitCode::kBadData, "{}: tensor '{}': a pre-tokenized dataset has {}", name(),
             printable(entry.name), fmt::join(kTensors, ", "));
      }
    }
    if (!ids_.exists()) fail(ExitCode::kBadData, "{}: tensor 'input_ids' is missing", name());
    for (const RowTensor* tensor :
         {&labels_, &attention_mask_, &position_ids_, &completion_mask_, &assistant_masks_}) {
      if (tensor->exists() && tensor->shape() != ids_.shape()) {
        fail(ExitCode::kBadData, "{}: expected shape {} as input_ids has, found {}", tensor->where(),
             ids_.shape(), tensor->shape());
      }
    }
  }

  bool has(const std::string& tensor) const { return file_.find(tensor) != nullptr; }
  bool has_labels() const {
    return labels_.exists() || completion_mask_.exists() || assistant_masks_.exists();
  }
  int64_t num_rows() const { return row_length() == 0 ? 0 : ids_.num_rows(); }
  int64_t row_length() const { return ids_.row_length(); }

  // The ids of some rows, valid until the next call.
  const std::vector<int32_t>& read_ids(const RowBlock& block, int64_t vocab_size) {
    const std::vector<int32_t>& ids = ids_.read_ids(block, vocab_size);
    if (attention_mask_.exists())
      attention_mask_.read(block, 0, 1, "1 (mark padding by the label -100 instead)");
    return ids;
  }
  // Their labels as TRL makes them: given ones, or else the ids where every mask is 1.
  const std::vector<int32_t>& read_labels(const RowBlock& block, std::span<const int32_t> ids,
                                          int64_t vocab_size, bool reads_completion_mask) {
    if (labels_.exists()) return labels_.read_labels(block, vocab_size);
    made_labels_.assign(ids.begin(), ids.end());
    if (reads_completion_mask) apply_mask(block, &completion_mask_);
    apply_mask(block, &assistant_masks_);
    return made_labels_;
  }

  // The lengths of the documents in a row, where its positions start again; empty for one.
  void read_lengths(int64_t row, int64_t kept, std::vector<int32_t>* lengths) {
    lengths->clear();
    if (!position_ids_.exists()) return;
    const std::vector<int64_t>& positions = position_ids_.read_values({row, 1, kept});
    for (size_t i = 0; i < positions.size(); ++i) {
      if (positions[i] == 0) lengths->push_back(0);
      if (lengths->empty() || positions[i] != lengths->back()) {
        fail(ExitCode::kBadData, "{}: row {}, column {}: expected {}, found {}", position_ids_.where(), row,
             i, lengths->empty() ? "0" : fmt::format("{}, or 0 where a document begins", lengths->back()),
             positions[i]);
      }
      ++lengths->back();
    }
    if (lengths->size() == 1) lengths->clear();
  }

 private:
  std::string name() const { return file_.path().string(); }

  void apply_mask(const RowBlock& block, RowTensor* tensor) {
    if (!tensor->exists()) return;
    const std::vector<int32_t>& mask = tensor->read(block, 2, 0, "0 or 1");
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] == 0) made_labels_[i] = kIgnoredLabel;
    }
  }

  SafetensorsFile file_;
  RowTensor ids_{file_, "input_ids"}, labels_{file_, "labels"}, attention_mask_{file_, "attention_mask"},
      position_ids_{file_, "position_ids"}, completion_mask_{file_, "completion_mask"},
      assistant_masks_{file_, "assistant_masks"};
  std::vector<int32_t> made_labels_;
};

}  // namespace

bool has_tensor(const fs::path& file, const std::string& name) {
  return PretokenizedFile(file, /*of_encoder=*/true).has(name);  // whose rows they are is checked elsewhere
}

bool any_has_labels(std::span<const fs::path> files, bool of_encoder) {
  return std::any_of(files.begin(), files.end(), [of_encoder](const fs::path& file) {
    return PretokenizedFile(file, of_encoder).has_labels();
  });
}

DocumentCounts read_pretokenized_rows(std::span<const fs::path> files, int64_t vocab_size, int64_t max_length,
                                      bool with_labels, bool reads_completion_mask, bool drops_masked,
                                      int64_t max_rows, const RowSink& sink,
                                      const std::function<void(int64_t)>& progress) {
  DocumentCounts counts;
  std::vector<int32_t> lengths;
  int64_t bytes_before = 0;
  for (const fs::path& path : files) {
    PretokenizedFile tensors(path);
    const int64_t length = tensors.row_length();
    const int64_t kept = std::min(length, max_length);
    const int64_t block_rows =
        kept == length ? std::max<int64_t>(1, kBlockValues / std::max<int64_t>(1, length)) : 1;
    const auto file_bytes = static_cast<int64_t>(fs::file_size(path));
    const int64_t wanted = std::min(tensors.num_rows(), max_rows - counts.num_documents);
    for (int64_t row = 0; row < wanted; row += block_rows) {
      const int64_t num_rows = std::min(block_rows, wanted - row);
      const RowBlock block = {row, num_rows, kept};
      const std::span<const int32_t> ids = tensors.read_ids(block, vocab_size);
      std::span<const int32_t> labels;
      if (with_labels) labels = tensors.read_labels(block, ids, vocab_size, reads_completion_mask);
      for (int64_t i = 0; i < num_rows; ++i) {
        const auto begin = static_cast<size_t>(i * kept);
        const auto count = static_cast<size_t>(kept);
        if (with_labels && (drops_masked || kept < length) && is_masked(labels.subspan(begin, count))) {
          ++counts.num_masked_rows;
          continue;
        }
        ++counts.num_documents;
        tensors.read_lengths(row + i, kept, &lengths);
        sink(ids.subspan(begin, count), with_labels ? labels.subspan(begin, count) : labels, lengths);
      }
      if (progress) progress(bytes_before + file_bytes * (row + num_rows) / tensors.num_rows());
    }
    bytes_before += file_bytes;
    if (kept < length) {
      counts.num_cut_documents += wanted;
      counts.num_cut_tokens += wanted * (length - kept);
    }
  }
  return counts;
}

}  // namespace tessera
