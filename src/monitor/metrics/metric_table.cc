#include "monitor/metrics/metric_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/embedded_text.h"
#include "base/error.h"
#include "settings/compat/compat_table.h"

namespace tessera {

std::span<const EmbeddedText> metric_texts();  // monitor/metrics/*.tsv

namespace {

std::vector<MetricInfo> read_table() {
  std::vector<MetricInfo> table;
  for (const auto& row : read_cells("metrics", text_named(metric_texts(), "metrics"), 4)) {
    const auto words = choice_words(MetricType());
    const auto word = std::ranges::find(words, row[1], &Word<MetricType>::text);
    TESSERA_CHECK(word != words.end(), "metric {}: type {}", row[0], row[1]);
    table.push_back({row[0], word->value, row[2], row[3]});
  }
  return table;
}

}  // namespace

std::span<const MetricInfo> all_metrics() {
  static const std::vector<MetricInfo> table = read_table();
  return table;
}

const MetricInfo& metric(std::string_view name) {
  const std::span<const MetricInfo> all = all_metrics();
  const auto found = std::ranges::find(all, name, &MetricInfo::name);
  TESSERA_CHECK(found != all.end(), "no metric {} in metrics.tsv", name);
  return *found;
}

std::string metrics_markdown() {
  std::string text = "| metric | type | labels | meaning |\n|---|---|---|---|\n";
  for (const MetricInfo& info : all_metrics()) {
    fmt::format_to(std::back_inserter(text), "| `{}` | {} | {} | {} |\n", info.name, info.type, info.labels,
                   info.help);
  }
  return text;
}

}  // namespace tessera
