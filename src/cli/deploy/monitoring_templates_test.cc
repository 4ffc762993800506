// Checks that the metrics, recorded series, runbooks and flags used by alerts and dashboards exist.
// tests/monitoring runs the expressions in a Prometheus.
#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "base/text.h"
#include "cluster/manifests/templates.h"
#include "io/file.h"
#include "monitor/metrics/metric_table.h"
#include "test_paths.h"

namespace tessera {
namespace {

// The first group of every match.
std::set<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) found.insert((*at)[1]);
  return found;
}

std::string monitoring_templates() {
  const DeployTemplates templates;
  return templates.text("alerts.yaml.jinja") + templates.text("dashboard.json.jinja");
}

std::string runbook() { return read_text_file(source_folder() / "docs/bottlenecks.md"); }

TEST(MonitoringTemplates, NameMetricsThatExist) {
  std::set<std::string> known;
  for (const MetricInfo& info : all_metrics()) {
    known.emplace(info.name);
    if (info.type != MetricType::kHistogram) continue;
    for (const char* suffix : {"_sum", "_count", "_bucket"}) known.insert(std::string(info.name) + suffix);
  }
  const std::set<std::string> used = matches(monitoring_templates() + runbook(), R"(\b(tessera_[a-z_0-9]+))");
  EXPECT_GT(used.size(), 30U);
  for (const std::string& name : used) EXPECT_TRUE(known.contains(name)) << name;
}

TEST(MonitoringTemplates, NameRecordedSeriesThatExist) {
  const std::string text = monitoring_templates();
  const std::set<std::string> recorded = matches(text, R"(record\('(tessera:[a-z_0-9:]+)')");
  EXPECT_GT(recorded.size(), 5U);
  EXPECT_EQ(matches(text + runbook(), R"(\b(tessera:[a-z_0-9:]+))"), recorded);
}

TEST(MonitoringTemplates, EveryAlertHasASectionInTheRunbook) {
  const std::string page = runbook();
  const std::set<std::string> alerts = matches(monitoring_templates(), R"(alert\('(\w+)')");
  EXPECT_GT(alerts.size(), 15U);
  EXPECT_EQ(matches(page, R"(\n### (Tessera\w+)\n)"), alerts);
  // Links within the page, which its table has for every alert.
  std::set<std::string> anchors;
  for (const std::string& alert : alerts) anchors.insert(lower_case(alert));
  EXPECT_EQ(matches(page, R"(\(#(\w+)\))"), anchors);
}

TEST(MonitoringTemplates, TheRunbookNamesFlagsThatExist) {
  const std::string flags = read_text_file(source_folder() / "docs/flags.md");
  const std::set<std::string> named = matches(runbook(), R"(`--([a-z][a-z_0-9]*))");
  EXPECT_GT(named.size(), 30U);
  for (const std::string& flag : named) EXPECT_THAT(flags, testing::HasSubstr("`--" + flag + "`"));
}

}  // namespace
}  // namespace tessera
