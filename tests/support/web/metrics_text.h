// For tests: reads the text in which metrics are served, and accepts nothing that the format does not allow.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace tessera {

struct MetricsText {
  std::map<std::string, std::string> types;    // by family
  std::map<std::string, double> samples;       // by the name with its labels, as written
  double at(const std::string& sample) const;  // fails the test if it is missing
};

// Adds a test failure for every line that is not well-formed, out of its family, repeated, or without HELP
// and TYPE before it; for histograms whose buckets do not grow or do not end with the count.
MetricsText parse_metrics(std::string_view text, bool is_open_metrics);

}  // namespace tessera
