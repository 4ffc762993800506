#include "cli/deploy/deploy_command.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cli/terminal/terminal.h"
#include "cluster/manifests/lint.h"
#include "cluster/manifests/names.h"

namespace tessera {
namespace {

Value variable_of(const Flag& flag) {
  const std::vector<std::string> texts = flag.get();
  if (flag.type == FlagType::kStringList) return Value::List(texts.begin(), texts.end());
  if (texts.empty()) return {};
  switch (flag.type) {
    case FlagType::kBool:
      return texts[0] == "true";
    case FlagType::kInt:
      return parse_integer(texts[0]).value();
    case FlagType::kFloat:
      return parse_number(texts[0]).value();
    default:
      return texts[0];
  }
}

constexpr std::string_view kLabels[] = {"namespace", "monitoring_namespace", "release", "queue", "region",
                                        "zone"};
constexpr std::string_view kObjectNames[] = {
    "claim",          "hf_token_secret", "token_secret", "rendezvous_secret",
    "priority_class", "runtime",         "storage_class"};
constexpr std::string_view kTexts[] = {"image", "runbook_url", "loki_url", "fsx", "efs", "nfs"};

}  // namespace

void DeployCommand::complete_flags(FlagTable* table) {
  for (const Flag& flag : table->flags()) {
    if (!table->is_set(flag.name)) continue;
    const auto is_one_of = [&](const auto& names) { return std::ranges::count(names, flag.name) > 0; };
    for (const std::string& value : flag.get ? flag.get() : std::vector<std::string>()) {
      if (value.empty() && flag.default_text.empty()) continue;  // none
      if (is_one_of(kLabels)) check_label(flag.name, value);
      if (is_one_of(kObjectNames)) check_object_name(flag.name, value);
      if (is_one_of(kTexts)) check_text(flag.name, value);
    }
  }
}

void DeployCommand::declare_common_flags(FlagTable* table) {
  declare(table, "namespace", &namespace_);
  declare(table, "templates", &templates_);
}

void DeployCommand::declare_pod_flags(FlagTable* table) {
  declare(table, "image", &pod_.image);
  declare(table, "claim", &pod_.claim);
  declare(table, "hf_token_secret", &pod_.hf_secret);
  declare(table, "priority_class", &pod_.priority_class);
  declare(table, "runtime", &runtime_);
  declare(table, "node_check", &pod_.node_check);
}

PodSettings DeployCommand::pod_settings(bool on_card) const {
  PodSettings pod = pod_;
  pod.on_card = on_card;
  pod.needs_amx = !on_card;
  pod.runtime = runtime_.empty() ? node_kind(on_card).runtime : runtime_;
  pod.name_space = namespace_;
  if (pod.image.empty()) pod.image = default_image(on_card);
  return pod;
}

std::string DeployCommand::default_image(bool on_card) {
  return fmt::format("tessera:{}{}", TESSERA_VERSION, on_card ? "-cuda" : "");
}

void DeployCommand::write_manifests(const std::string& text) const {
  check_manifests(text, name(), templates_.empty() ? ExitCode::kInternal : ExitCode::kBadData);
  // The separator makes it possible to concatenate outputs.
  write_result("---\n" + text);
}

Value::Object DeployCommand::variables(const FlagTable& table, Value::Object more) const {
  more.push_back({"version", TESSERA_VERSION});
  for (const Flag& flag : table.flags()) {
    if (std::ranges::find(more, flag.name, &Value::Field::name) == more.end())
      more.push_back({flag.name, variable_of(flag)});
  }
  return more;
}

}  // namespace tessera
