#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/command.h"
#include "cli/terminal/terminal.h"
#include "settings/resolved_settings.h"

namespace tessera {
namespace {

constexpr int64_t kMaxRanks = 1'000'000;

class ConfigShowCommand : public Command {
 public:
  std::string name() const override { return "config show"; }

  void declare_flags(FlagTable* table) override {
    declare_training_flags(table, &given_);
    list_only(table, "config deepspeed");
    table->begin_section("Show");
    declare(table, "all", &all_);
    declare(table, "world_size", &world_size_);
    declare(table, "json", &json_);
  }
  bool completes_unlisted_flags() const override { return true; }
  bool resolves_hub_names() const override { return false; }

  void complete_flags(FlagTable* table) override {
    read_setting_files(table, &given_);
    read_environment(process_environment(), table, &given_);
  }

  void run(FlagTable* table) override {
    std::vector<ResolvedSetting> settings =
        settings_with_origins(*table, given_, read_run_spec(*table, given_, world_size_));
    const size_t num_settings = settings.size();
    if (!all_) {
      std::erase_if(settings,
                    [](const ResolvedSetting& each) { return each.origin == SettingOrigin::kDefault; });
    }
    json_ ? print_json(settings) : print_text(settings, num_settings);
  }

 private:
  void print_json(const std::vector<ResolvedSetting>& settings) const {
    nlohmann::ordered_json by_name = nlohmann::ordered_json::object();
    for (const ResolvedSetting& each : settings) {
      by_name[each.name] = {{"value", each.value},
                            {"default", each.default_value},
                            {"origin", origin_name(each.origin)},
                            {"source", each.source}};
    }
    print("{}\n", nlohmann::ordered_json{{"world_size", world_size_}, {"settings", by_name}}.dump(2));
  }

  static std::string value_text(const nlohmann::json& value) {
    if (value.is_null()) return "none";
    if (value.is_string()) return printable(value.get<std::string>());
    if (!value.is_array()) return value.dump();
    std::string text;
    for (const auto& item : value) text += (text.empty() ? "" : " ") + printable(item.get<std::string>());
    return text.empty() ? "none" : text;
  }

  static std::string origin_text(const ResolvedSetting& setting) {
    if (setting.origin == SettingOrigin::kFlag) return kCommandLineOrigin;
    if (setting.source.empty()) return origin_name(setting.origin);
    return setting.origin == SettingOrigin::kDerived ? "derived " + setting.source : setting.source;
  }

  static void print_text(const std::vector<ResolvedSetting>& settings, size_t num_settings) {
    constexpr size_t kMaxValueColumns = 32;
    size_t name_columns = 0, value_columns = 0;
    for (const ResolvedSetting& each : settings) {
      name_columns = std::max(name_columns, each.name.size());
      const size_t size = value_text(each.value).size();
      if (size <= kMaxValueColumns) value_columns = std::max(value_columns, size);
    }
    for (const ResolvedSetting& each : settings) {
      print("{:<{}}  {:<{}}  {}\n", each.name, name_columns, value_text(each.value), value_columns,
            origin_text(each));
    }
    if (settings.size() < num_settings) {
      print("{} have their defaults; --all shows them\n",
            format_count(static_cast<int64_t>(num_settings - settings.size()), "other setting"));
    }
  }

  RunSettings given_;
  bool all_ = false;
  int64_t world_size_ = 1;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_config_show_command() { return std::make_unique<ConfigShowCommand>(); }

}  // namespace tessera
