// The errors of quantized gradients: GradientStore's part that keeps, settles and hands them out.
#include <algorithm>

#include "base/error.h"
#include "platform/prefault.h"
#include "shard/gradients/gradient_store.h"

namespace tessera {
namespace {

constexpr const char* kErrors = "errors of gradients";

// The parts of `range` that belong to no parameter.
std::vector<Part> gaps_of(const Part& range, const std::vector<ZeroParameter>& parameters) {
  std::vector<Part> gaps;
  int64_t covered = range.begin;
  for (const ZeroParameter& parameter : parameters) {
    const int64_t begin = std::max(parameter.elements.begin, range.begin);
    if (begin >= std::min(parameter.elements.end, range.end)) continue;
    if (covered < begin) gaps.push_back({covered, begin});
    covered = std::min(parameter.elements.end, range.end);
  }
  if (covered < range.end) gaps.push_back({covered, range.end});
  return gaps;
}

}  // namespace

void GradientStore::plan_feedback(const ZeroLayout& layout) {
  TESSERA_CHECK(!layout.parameters.empty());
  int64_t num_elements = 0;
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    feedback_begin_.push_back(num_elements);
    num_elements += share_size(g);
    std::vector<Part>& gaps = gaps_.emplace_back();
    const Share& share = this->share(g);
    for (size_t i = 0; i < share.elements.size(); ++i) {
      const Part part = share.elements[i];
      const int64_t to_share = share.places[i].begin - part.begin;
      for (const Part& gap : gaps_of(part, layout.parameters)) {
        gaps.push_back({gap.begin + to_share, gap.end + to_share});
      }
    }
  }
  has_own_feedback_.resize(gaps_.size());
  feedback_ = PageBuffer(num_elements * dtype_bytes(DType::kBF16));  // zeros
  prefault(*pool_, feedback_.as<std::byte>());
}

GradientFeedback GradientStore::next_feedback(int64_t group) {
  const auto at = static_cast<size_t>(group);
  const GradientFeedback feedback = {feedback_of(group), keeps_feedback_, has_own_feedback_[at]};
  if (!keeps_feedback_) {
    has_own_feedback_[at] = false;
    is_settled_ = false;
  }
  return feedback;
}

void GradientStore::settle_feedback(const std::function<void()>& before_change) {
  TESSERA_CHECK(reductions_.empty() && closed_.empty(), "a pass is not finished");
  if (!has_feedback() || is_settled_) return;
  if (before_change) before_change();
  NetworkGroup::Ticket last = 0;
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    const Part own = own_in_share(g).front();
    if (!has_own_feedback_[static_cast<size_t>(g)])
      std::fill_n(feedback_of(g) + own.begin, own.size(), bf16{});
    last = comm_->rail().reduce_scatter_of_bf16({feedback_of(g), static_cast<size_t>(share_size(g))},
                                                share(g).exchanged(), {kErrors, g});
  }
  comm_->rail().wait(last);
  feedback_written();
}

void GradientStore::feedback_written() {
  if (!has_feedback()) return;
  clear_sent_feedback();
  has_own_feedback_.assign(has_own_feedback_.size(), true);
  is_settled_ = true;
}

void GradientStore::discard_feedback() {
  if (!has_feedback()) return;
  while (!reductions_.empty()) finish_oldest_reduction();
  clear_sent_feedback();
}

// Clears all errors except those of this rank's own parts.
void GradientStore::clear_sent_feedback() {
  constexpr int64_t kBlockElements = int64_t{1} << 18;
  for (int64_t g = 0; g < plan_.num_groups(); ++g) {
    for (int node = 0; node < plan_.num_nodes(); ++node) {
      if (node == comm_->world().node_rank) continue;
      const Part part = share(g).places[static_cast<size_t>(node)];
      bf16* const errors = feedback_of(g) + part.begin;
      pool_->parallel_blocks(part.size(), kBlockElements, [&](int64_t begin, int64_t end) {
        std::fill(errors + begin, errors + end, bf16{});
      });
    }
  }
}

bf16* GradientStore::own_feedback(int64_t group, int64_t element) const {
  const int64_t first = plan_.part(group, comm_->world().rank).begin;
  return feedback_of(group) + own_in_share(group).front().begin + element - first;
}

void GradientStore::read_feedback(int64_t group, int64_t element, std::span<float> values) const {
  std::transform(own_feedback(group, element), own_feedback(group, element) + values.size(), values.begin(),
                 [](bf16 error) { return to_float(error); });
}

void GradientStore::write_feedback(int64_t group, int64_t element, std::span<const float> values) {
  std::transform(values.begin(), values.end(), own_feedback(group, element), to_bf16);
}

}  // namespace tessera
