#include "data/rows/token_masks.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "data/masked_rows.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

// The numbers of one row in one step.
class RowDraws {
 public:
  RowDraws(const MaskingRule& rule, int64_t step, int64_t row) : rule_(rule) {
    const auto words = philox4x32(rule.seed ^ hash_name("masked tokens"), static_cast<uint64_t>(row),
                                  static_cast<uint64_t>(step));
    key_ = uint64_t{words[0]} << 32 | words[1];
  }

  std::array<uint32_t, 4> words_of(int64_t place) const {
    return philox4x32(key_, static_cast<uint64_t>(place), 0);
  }
  bool is_target(int32_t id, const std::array<uint32_t, 4>& words) const {
    return share(words[0]) < rule_.mlm_probability && !std::ranges::binary_search(rule_.special_ids, id);
  }
  int32_t replacement(int32_t id, const std::array<uint32_t, 4>& words) const {
    const double drawn = share(words[1]);
    if (drawn < rule_.mask_replace_prob) return *rule_.mask_id;
    if (drawn >= rule_.mask_replace_prob + rule_.random_replace_prob) return id;
    const uint64_t number = uint64_t{words[2]} << 32 | words[3];
    return static_cast<int32_t>(number % static_cast<uint64_t>(rule_.num_random_ids));
  }

 private:
  static double share(uint32_t word) { return word * 0x1.0p-32; }

  const MaskingRule& rule_;
  uint64_t key_;
};

}  // namespace

int64_t mask_tokens(const MaskingRule& rule, int64_t step, int64_t row, std::span<int32_t> ids,
                    std::vector<int32_t>* targets) {
  TESSERA_CHECK(rule.mask_id.has_value(), "row {}", row);
  const RowDraws draws(rule, step, row);
  targets->assign(ids.size(), kIgnoredLabel);
  int64_t count = 0;
  for (size_t place = 0; place < ids.size(); ++place) {
    const auto words = draws.words_of(static_cast<int64_t>(place));
    if (!draws.is_target(ids[place], words)) continue;
    (*targets)[place] = ids[place];
    ids[place] = draws.replacement(ids[place], words);
    ++count;
  }
  return count;
}

int64_t count_masked_tokens(const MaskingRule& rule, int64_t step, int64_t row,
                            std::span<const int32_t> ids) {
  const RowDraws draws(rule, step, row);
  int64_t count = 0;
  for (size_t place = 0; place < ids.size(); ++place)
    count += draws.is_target(ids[place], draws.words_of(static_cast<int64_t>(place))) ? 1 : 0;
  return count;
}

int64_t resolve_masked_row(const MaskingRule& rule, int64_t step, int64_t row, std::vector<int32_t>* ids,
                           std::vector<int32_t>* labels) {
  if (labels->empty()) return mask_tokens(rule, step, row, *ids, labels);
  const bool is_labelled = labels->front() == kIgnoredLabel;
  ids->pop_back();
  if (!is_labelled) return mask_tokens(rule, step, row, *ids, labels);
  labels->erase(labels->begin());
  return std::ssize(*labels) - std::ranges::count(*labels, kIgnoredLabel);
}

int64_t count_row_targets(const Dataset& dataset, int64_t step, int64_t row) {
  if (dataset.masking() == nullptr) return dataset.row_num_targets(row);
  thread_local Dataset::Row content;  // keeps its memory from row to row
  dataset.read_row(row, &content);
  std::span<const int32_t> ids = content.input_ids;
  if (!content.labels.empty()) {
    if (content.labels.front() == kIgnoredLabel) return dataset.row_num_targets(row);
    ids = ids.first(ids.size() - 1);
  }
  return count_masked_tokens(*dataset.masking(), step, row, ids);
}

}  // namespace tessera
