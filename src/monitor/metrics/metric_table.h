// Every metric there is: metrics.tsv, the one place that names them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "monitor/metrics/exposition.h"

namespace tessera {

// The one of this name, which must be in the table.
const MetricInfo& metric(std::string_view name);
std::span<const MetricInfo> all_metrics();

// The table of docs/operations.md.
std::string metrics_markdown();

}  // namespace tessera
