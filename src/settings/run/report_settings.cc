#include "settings/run/report_settings.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr std::string_view kUnsupportedServices[] = {
    "wandb",    "comet_ml", "comet",   "clearml", "neptune", "swanlab",  "trackio",
    "azure_ml", "dagshub",  "dvclive", "flyte",   "logfire", "kubeflow", "codecarbon"};

bool is_unsupported_service(std::string_view name) {
  return std::ranges::find(kUnsupportedServices, name) != std::end(kUnsupportedServices);
}

std::string sink_names() {
  std::vector<std::string_view> names;
  for (const auto& word : choice_words(ReportTo())) names.push_back(word.text);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::vector<ReportTo> read_report_to(const std::vector<std::string>& given) {
  std::vector<std::string> values;
  for (const std::string& names : given) {
    for (const std::string& name : split(names, ',')) values.push_back(name);
  }
  if (values.empty() ||
      (values.size() == 1 && (lower_case(values[0]) == "none" || lower_case(values[0]) == "null"))) {
    return {};
  }
  for (const std::string& value : values) {
    if (value == "all" || std::ranges::count(choice_words(ReportTo()), value, &Word<ReportTo>::text))
      continue;
    if (is_unsupported_service(value)) {
      fail(ExitCode::kUsage, "--report_to {} is not supported: choose from {}", value, sink_names());
    }
    if (value == "none")
      fail(ExitCode::kUsage, "--report_to: expected none alone, found other names with it");
    fail(ExitCode::kUsage, "--report_to: expected none, all or some of {}, found '{}'", sink_names(),
         printable(value));
  }
  const auto is_given = [&](std::string_view name) {
    return std::ranges::find(values, name) != values.end();
  };
  std::vector<ReportTo> chosen;
  for (const auto& [name, sink] : choice_words(ReportTo())) {
    if (is_given("all") || is_given(name)) chosen.push_back(sink);
  }
  return chosen;
}

std::vector<std::string> report_to_words(const std::vector<ReportTo>& sinks) {
  std::vector<std::string> names;
  for (const ReportTo sink : sinks) names.emplace_back(word_of(sink));
  return names.empty() ? std::vector<std::string>{"none"} : names;
}

void drop_unsupported_services(const std::string& origin, const FlagTable& table,
                               std::vector<ConfigSetting>* settings) {
  for (ConfigSetting& setting : *settings) {
    if (setting.name != "report_to" || table.is_set("report_to")) continue;
    if (setting.value.is_string()) setting.value = nlohmann::json::array({setting.value});
    if (!setting.value.is_array()) continue;  // a mistake that reading the flag reports
    nlohmann::json kept = nlohmann::json::array();
    for (const nlohmann::json& name : setting.value) {
      if (name.is_string() && is_unsupported_service(name.get<std::string>())) {
        log_warning("{}:{}: report_to {} has no effect: it is not supported; choose from {}", origin,
                    setting.line, name.get<std::string>(), sink_names());
      } else {
        kept.push_back(name);
      }
    }
    // If nothing is left, the default applies.
    setting.value = kept.empty() && !setting.value.empty() ? nlohmann::json() : kept;
  }
}

}  // namespace tessera
