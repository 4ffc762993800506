// The text formats in which Prometheus reads metrics: its own (version 0.0.4) and OpenMetrics 1.0.
// https://prometheus.io/docs/instrumenting/exposition_formats/
// https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/choice.h"

namespace tessera {

enum class MetricType { kGauge, kCounter, kHistogram };
constexpr auto choice_words(MetricType) {
  using enum MetricType;
  return std::to_array<Word<MetricType>>(
      {{"gauge", kGauge}, {"counter", kCounter}, {"histogram", kHistogram}});
}

struct MetricInfo {
  std::string_view name;  // of a counter: with _total
  MetricType type = MetricType::kGauge;
  std::string_view labels;  // their names, for the documentation: "op, scope"
  std::string_view help;    // one sentence without characters to escape
};

// Counts of values up to each bound. Bounds grow by 2 or 2.5: 1, 2.5, 5, 10 ms, ... 1000 s.
class TimeHistogram {
 public:
  static std::span<const double> bounds();
  void observe(double seconds);

  int64_t count() const;
  double sum() const { return sum_; }
  int64_t bucket(size_t index) const { return counts_[index]; }  // of its own, not cumulative

 private:
  std::array<int64_t, 20> counts_{};  // the last one: beyond all bounds
  double sum_ = 0;
};

// Writes families one after another; all samples of one follow its family() call.
class Exposition {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  explicit Exposition(bool is_open_metrics) : is_open_metrics_(is_open_metrics) {}

  void family(const MetricInfo& info);
  void sample(double value, Labels labels = {});
  void histogram(const TimeHistogram& histogram, Labels labels);
  // The whole text.
  std::string finish() &&;

  static std::string content_type(bool is_open_metrics);

 private:
  void line(std::string_view suffix, Labels labels, std::string_view bound, double value);

  bool is_open_metrics_;
  std::string text_;
  const MetricInfo* info_ = nullptr;
};

}  // namespace tessera
