#include "support/web/metrics_text.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <regex>
#include <sstream>

namespace tessera {
namespace {

// The family of a sample, by its type.
std::string sample_name(const std::string& family, const std::string& type, bool is_open_metrics) {
  return type == "counter" && is_open_metrics ? family + "_total" : family;
}

struct HistogramCheck {
  double last = -1;  // count of the bucket before
  double bound = -HUGE_VAL;
  void add(const std::string& line, double next_bound, double count) {
    EXPECT_GT(next_bound, bound) << line;
    EXPECT_GE(count, last) << line;
    bound = next_bound;
    last = count;
  }
};

double number_of(const std::string& text, const std::string& line) {
  if (text == "+Inf") return HUGE_VAL;
  if (text == "NaN") return std::nan("");
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  EXPECT_TRUE(error == std::errc() && end == text.data() + text.size()) << line;
  return value;
}

}  // namespace

double MetricsText::at(const std::string& sample) const {
  const auto found = samples.find(sample);
  if (found != samples.end()) return found->second;
  ADD_FAILURE() << "no sample " << sample;
  return std::nan("");
}

MetricsText parse_metrics(std::string_view text, bool is_open_metrics) {
  static const std::regex kMeta(R"(# (HELP|TYPE|UNIT) (tessera_[a-z_]+) (.+))");
  static const std::regex kLabels(R"re(\{([a-z_]+="([^"\\\n]|\\["\\n])*"(,|(?=\})))+\})re");
  static const std::regex kSample(R"re((tessera_[a-z_]+)((\{.*\})?) ([-+.0-9einfaNI]+))re");
  static const std::regex kBound(R"re(,?le="([^"]+)")re");
  MetricsText parsed;
  std::string family, type, helped;
  std::map<std::string, HistogramCheck> histograms;  // by labels without le
  bool ended = false;
  EXPECT_TRUE(text.ends_with('\n'));
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) {
    EXPECT_FALSE(ended) << line;
    std::smatch match;
    if (is_open_metrics && line == "# EOF") {
      ended = true;
    } else if (std::regex_match(line, match, kMeta)) {
      const std::string what = match[1], name = match[2];
      if (what == "HELP") helped = name;
      EXPECT_EQ(name, helped) << line;
      EXPECT_TRUE(what != "UNIT" || (is_open_metrics && name.ends_with("_" + match[3].str()))) << line;
      if (what != "TYPE") continue;
      family = name;
      type = match[3];
      histograms.clear();
      EXPECT_TRUE(parsed.types.emplace(name, type).second) << line;
      EXPECT_EQ(type == "counter" && !is_open_metrics, name.ends_with("_total")) << line;
    } else if (std::regex_match(line, match, kSample)) {
      const std::string name = match[1], labels = match[2];
      EXPECT_TRUE(labels.empty() || std::regex_match(labels, kLabels)) << line;
      const double value = number_of(match[4], line);
      EXPECT_TRUE(parsed.samples.emplace(name + labels, value).second) << line;
      if (type != "histogram") {
        EXPECT_EQ(name, sample_name(family, type, is_open_metrics)) << line;
        EXPECT_TRUE(type != "counter" || value >= 0) << line;
        continue;
      }
      HistogramCheck& histogram = histograms[std::regex_replace(labels, kBound, "")];
      std::smatch bound;
      if (std::regex_search(labels, bound, kBound)) {
        EXPECT_EQ(name, family + "_bucket") << line;
        histogram.add(line, number_of(bound[1], line), value);
      } else if (name == family + "_count") {
        EXPECT_EQ(value, histogram.last) << line;
        EXPECT_EQ(histogram.bound, HUGE_VAL) << line;
      } else {
        EXPECT_EQ(name, family + "_sum") << line;
      }
    } else {
      ADD_FAILURE() << "not a line of metrics: " << line;
    }
  }
  EXPECT_EQ(ended, is_open_metrics);
  return parsed;
}

}  // namespace tessera
