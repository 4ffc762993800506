#include "monitor/records/rank_history.h"

#include <utility>

namespace tessera {

void RankHistory::add(int64_t step, std::span<const double> compute_s) {
  if (last_s_.size() != compute_s.size()) {
    spans_.clear();
    steps_per_span_ = 1;
  }
  last_s_.assign(compute_s.begin(), compute_s.end());
  if (spans_.empty() || spans_.back().num_steps == steps_per_span_) {
    if (std::ssize(spans_) == kMaxSpans) {
      for (size_t i = 0; i < spans_.size() / 2; ++i) {
        Span merged = std::move(spans_[2 * i]);
        const Span& next = spans_[2 * i + 1];
        merged.num_steps += next.num_steps;
        for (size_t rank = 0; rank < merged.sum_s.size(); ++rank) merged.sum_s[rank] += next.sum_s[rank];
        spans_[i] = std::move(merged);
      }
      spans_.resize(spans_.size() / 2);
      steps_per_span_ *= 2;
    }
    spans_.push_back({step, 0, std::vector<double>(compute_s.size())});
  }
  Span& span = spans_.back();
  ++span.num_steps;
  for (size_t rank = 0; rank < compute_s.size(); ++rank) span.sum_s[rank] += compute_s[rank];
}

nlohmann::ordered_json RankHistory::json() const {
  if (spans_.empty()) return nullptr;
  nlohmann::ordered_json first_step = nlohmann::json::array();
  nlohmann::ordered_json means = nlohmann::json::array();
  for (const Span& span : spans_) {
    first_step.push_back(span.first_step);
    std::vector<double> mean_s = span.sum_s;
    for (double& value : mean_s) value /= static_cast<double>(span.num_steps);
    means.push_back(std::move(mean_s));
  }
  return {{"first_step", std::move(first_step)}, {"compute_s", std::move(means)}, {"last_s", last_s_}};
}

}  // namespace tessera
