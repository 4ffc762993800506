#include "monitor/metrics/exposition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "base/error.h"

namespace tessera {
namespace {

constexpr std::array<double, 19> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                            2.5,   5,      10,    25,   50,    100,  250, 500,  1000};

// The shortest text that reads as the same number.
std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string escaped_label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

// OpenMetrics names a counter's family without _total.
std::string_view without_total(std::string_view name) {
  constexpr std::string_view kTotal = "_total";
  TESSERA_CHECK(name.ends_with(kTotal), "counter {}", name);
  return name.substr(0, name.size() - kTotal.size());
}

std::string_view unit_of(std::string_view family) {
  for (const std::string_view unit : {"seconds", "bytes", "ratio", "hertz", "watts", "celsius"}) {
    if (family.ends_with(unit) && family[family.size() - unit.size() - 1] == '_') return unit;
  }
  return "";
}

}  // namespace

std::span<const double> TimeHistogram::bounds() { return kBounds; }

void TimeHistogram::observe(double seconds) {
  static_assert(kBounds.size() + 1 == std::tuple_size_v<decltype(counts_)>);
  ++counts_[static_cast<size_t>(std::ranges::lower_bound(kBounds, seconds) - kBounds.begin())];
  sum_ += seconds;
}

int64_t TimeHistogram::count() const { return std::accumulate(counts_.begin(), counts_.end(), int64_t{0}); }

void Exposition::family(const MetricInfo& info) {
  info_ = &info;
  std::string_view name = info.name;
  if (is_open_metrics_ && info.type == MetricType::kCounter) name = without_total(name);
  auto out = std::back_inserter(text_);
  fmt::format_to(out, "# HELP {} {}\n# TYPE {} {}\n", name, info.help, name, info.type);
  const std::string_view unit = unit_of(name);
  if (is_open_metrics_ && !unit.empty()) fmt::format_to(out, "# UNIT {} {}\n", name, unit);
}

void Exposition::line(std::string_view suffix, Labels labels, std::string_view bound, double value) {
  text_ += info_->name;
  text_ += suffix;
  char separator = '{';
  const auto add = [&](std::string_view name, std::string_view label) {
    text_ += std::exchange(separator, ',');
    fmt::format_to(std::back_inserter(text_), "{}=\"{}\"", name, escaped_label(label));
  };
  for (const auto& [name, label] : labels) add(name, label);
  if (!bound.empty()) add("le", bound);
  if (separator == ',') text_ += '}';
  fmt::format_to(std::back_inserter(text_), " {}\n", number_text(value));
}

void Exposition::sample(double value, Labels labels) { line("", labels, "", value); }

void Exposition::histogram(const TimeHistogram& histogram, Labels labels) {
  int64_t count = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    count += histogram.bucket(i);
    // OpenMetrics wants a point in every bound.
    const std::string bound = number_text(kBounds[i]);
    line("_bucket", labels, bound.find('.') == bound.npos ? bound + ".0" : bound, static_cast<double>(count));
  }
  line("_bucket", labels, "+Inf", static_cast<double>(histogram.count()));
  line("_sum", labels, "", histogram.sum());
  line("_count", labels, "", static_cast<double>(histogram.count()));
}

std::string Exposition::finish() && {
  if (is_open_metrics_) text_ += "# EOF\n";
  return std::move(text_);
}

std::string Exposition::content_type(bool is_open_metrics) {
  return is_open_metrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                         : "text/plain; version=0.0.4; charset=utf-8";
}

}  // namespace tessera
