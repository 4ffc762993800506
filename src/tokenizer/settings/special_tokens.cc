#include "tokenizer/settings/special_tokens.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::array kStandardNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kAdditional = "additional_special_tokens";

bool is_standard(std::string_view name) {
  return std::ranges::find(kStandardNames, name) != kStandardNames.end();
}

// The settings of a tokenizer in the order of their file, which gives new tokens their ids.
struct Setting {
  std::string key;
  Json value;
  const std::string* origin;
};
using Settings = std::vector<Setting>;

Settings in_order_of_file(const fs::path& path, const std::string& origin) {
  Settings settings;
  std::error_code error;
  if (!fs::exists(path, error)) return settings;
  const std::string text = read_text_file(path);
  const Json checked = parse_json(text, origin);
  JsonNode(checked, origin).object();
  const auto ordered = nlohmann::ordered_json::parse(text);
  for (const auto& [key, unused] : ordered.items()) settings.push_back({key, checked[key], &origin});
  return settings;
}

std::vector<std::string> keys_in_order(const fs::path& path, const char* object) {
  std::vector<std::string> keys;
  std::error_code error;
  if (!fs::exists(path, error)) return keys;
  const auto document = nlohmann::ordered_json::parse(read_text_file(path));
  if (!document.contains(object) || !document[object].is_object()) return keys;
  for (const auto& [key, unused] : document[object].items()) keys.push_back(key);
  return keys;
}

class TokensOfFolder {
 public:
  TokensOfFolder(const fs::path& folder, const std::string& config_origin, const JsonNode& root,
                 const std::vector<AddedToken>& own)
      : config_origin_(config_origin),
        map_origin_((folder / "special_tokens_map.json").string()),
        added_origin_((folder / "added_tokens.json").string()),
        root_(root),
        own_(own) {}

  SpecialTokens read() {
    settings_ = in_order_of_file(config_origin_, config_origin_);
    if (is_empty(find(kExtra)) && has(kAdditional)) {
      set(kExtra, find(kAdditional)->value, find(kAdditional)->origin);
      remove(kAdditional);
    }
    take_own_names();
    const Setting* decoder = find("added_tokens_decoder");
    if (decoder != nullptr && !decoder->value.is_null()) {
      read_decoder(node_of(*decoder));
    } else {
      read_map();
      read_added();
      for (const AddedToken& token : own_) add(token.id, token);
    }
    if (!has(kExtra) && has(kAdditional)) set(kExtra, find(kAdditional)->value, find(kAdditional)->origin);
    read_names();
    read_extra();
    return std::move(out_);
  }

 private:
  const Setting* find(std::string_view key) const {
    const auto at = std::ranges::find(settings_, key, &Setting::key);
    return at == settings_.end() ? nullptr : &*at;
  }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  void set(const std::string& key, Json value, const std::string* origin) {
    const auto at = std::ranges::find(settings_, key, &Setting::key);
    if (at == settings_.end()) {
      settings_.push_back({key, std::move(value), origin});
    } else {
      *at = {key, std::move(value), origin};
    }
  }
  void remove(std::string_view key) {
    std::erase_if(settings_, [&](const Setting& setting) { return setting.key == key; });
  }
  static bool is_empty(const Setting* setting) {
    return setting == nullptr || setting->value.is_null() || setting->value.empty();
  }
  static JsonNode node_of(const Setting& setting) { return {setting.value, *setting.origin, setting.key}; }
  bool is_of_map(const Setting& setting) const { return setting.origin == &map_origin_; }

  // Whether a setting is a token of the model's own name, such as image_token.
  static bool is_own_name(const Setting& setting) {
    return setting.key.ends_with("_token") && !is_standard(setting.key) &&
           (setting.value.is_string() || (setting.value.is_object() && setting.value.contains("content")));
  }

  // Named tokens as text, and extra tokens by name, come after those in special_tokens_map.json.
  void take_own_names() {
    for (const Setting& setting : settings_) {
      if (is_own_name(setting) && setting.value.is_string()) set_explicit(setting.key, node_of(setting));
    }
    std::erase_if(settings_,
                  [](const Setting& setting) { return is_own_name(setting) && setting.value.is_string(); });
    take_named_extra(config_origin_);
  }

  void take_named_extra(const fs::path& path) {
    const Setting* extra = find(kExtra);
    if (extra == nullptr || !extra->value.is_object()) return;
    const JsonNode node = node_of(*extra);
    std::vector<std::string> keys = keys_in_order(path, kExtra);
    if (keys.empty()) keys = keys_in_order(path, kAdditional);
    for (const std::string& key : keys) set_explicit(key, node[key]);
    remove(kExtra);
  }

  void set_explicit(const std::string& name, const JsonNode& node) {
    AddedToken token = read_added_token(node, node.is_string() ? std::optional(true) : std::nullopt);
    const auto at = std::ranges::find(explicit_, name, &NamedToken::name);
    if (at == explicit_.end()) {
      explicit_.push_back({name, std::move(token), node.is_string()});
    } else {
      *at = {name, std::move(token), node.is_string()};
    }
  }

  void add(int64_t id, AddedToken token) {
    by_content_[token.content] = token;
    out_.by_id[id] = std::move(token);
  }

  void read_decoder(const JsonNode& decoder) {
    for (const auto& [key, unused] : decoder.object().items()) {
      const JsonNode entry = decoder[key];
      const std::optional<int64_t> id = parse_integer(key);
      if (!id || *id < 0 || *id > INT32_MAX) entry.expected("an id as its key");
      if (!entry.is_object()) entry.expected("an object");
      add(*id, read_added_token(entry, std::nullopt));
    }
  }

  void read_map() {
    for (Setting& setting : in_order_of_file(map_origin_, map_origin_)) {
      const Setting* known = find(kExtra);
      if (setting.key == kExtra && setting.value.is_array() && known != nullptr && known->value.is_array()) {
        Json all = known->value;
        for (Json& token : setting.value) {
          if (std::ranges::find(all, token) == all.end()) all.push_back(std::move(token));
        }
        setting.value = std::move(all);
      }
      set(setting.key, std::move(setting.value), &map_origin_);
    }
    take_named_extra(map_origin_);
  }

  void read_added() {
    const Json added = parse_json_file_if_any(added_origin_);
    const JsonNode node(added, added_origin_);
    std::vector<std::string> special;
    for (const Setting& setting : settings_) {
      if (is_standard(setting.key) && !setting.value.is_null())
        special.push_back(read_added_token(node_of(setting), true).content);
    }
    if (const Setting* extra = find(kExtra); extra != nullptr && !extra->value.is_null()) {
      for (const JsonNode& token : node_of(*extra).list())
        special.push_back(read_added_token(token, true).content);
    }
    for (const auto& [content, unused] : node.object().items()) {
      AddedToken token;
      token.content = content;
      token.special = std::ranges::find(special, content) != special.end();
      token.normalized = !token.special;
      add(node[content].integer(0, INT32_MAX), std::move(token));
    }
  }

  void read_names() {
    if (const JsonNode padding = root_["padding"]; !padding.is_null() && !has("pad_token"))
      padding_token_ = padding["pad_token"].string();
    for (const char* name : kStandardNames) {
      const Setting* setting = find(name);
      if (setting != nullptr && setting->value.is_null()) out_.unset.emplace_back(name);
      if (setting != nullptr && !setting->value.is_null()) {
        NamedToken token = {name, token_of(*setting), setting->value.is_string()};
        if (const auto known = by_content_.find(token.token.content); known != by_content_.end())
          token = {name, known->second};
        out_.named.push_back(std::move(token));
      } else if (setting == nullptr && padding_token_ && name == std::string_view("pad_token")) {
        out_.named.push_back({name, {.content = *padding_token_, .special = true}, true});
      }
    }
    std::vector<NamedToken> own;
    for (const Setting& setting : settings_) {
      if (is_own_name(setting)) own.push_back({setting.key, token_of(setting), setting.value.is_string()});
    }
    for (NamedToken& named : explicit_) {
      const auto at = std::ranges::find(own, named.name, &NamedToken::name);
      if (at == own.end()) {
        own.push_back(std::move(named));
      } else {
        *at = std::move(named);
      }
    }
    std::ranges::move(own, std::back_inserter(out_.named));
  }

  AddedToken token_of(const Setting& setting) const {
    const bool is_special = setting.value.is_string() || is_of_map(setting);
    return read_added_token(node_of(setting), is_special ? std::optional(true) : std::nullopt);
  }

  void read_extra() {
    const Setting* extra = find(kExtra);
    if (extra == nullptr || extra->value.is_null()) return;
    for (const JsonNode& token : node_of(*extra).list()) {
      const bool is_special = token.is_string() || is_of_map(*extra);
      out_.extra.push_back(
          {"", read_added_token(token, is_special ? std::optional(true) : std::nullopt), token.is_string()});
    }
  }

  const std::string& config_origin_;
  const std::string map_origin_;
  const std::string added_origin_;
  const JsonNode& root_;
  const std::vector<AddedToken>& own_;
  Settings settings_;
  std::vector<NamedToken> explicit_;
  std::unordered_map<std::string, AddedToken> by_content_;
  std::optional<std::string> padding_token_;
  SpecialTokens out_;
};

}  // namespace

bool same_flags(const AddedToken& a, const AddedToken& b) {
  const auto flags = [](const AddedToken& t) {
    return std::tie(t.content, t.single_word, t.lstrip, t.rstrip, t.normalized, t.special);
  };
  return flags(a) == flags(b);
}

AddedToken read_added_token(const JsonNode& node, std::optional<bool> special) {
  AddedToken token;
  if (node.is_string()) {
    token.content = node.string();
    token.special = special.value_or(true);
    token.normalized = !token.special;
    return token;
  }
  if (!node.is_object()) node.expected("a token: text, or an object with its content");
  node.expect_keys({"__type", "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  token.content = node["content"].string();
  token.single_word = node["single_word"].boolean_or(false);
  token.lstrip = node["lstrip"].boolean_or(false);
  token.rstrip = node["rstrip"].boolean_or(false);
  token.special = special.value_or(node["special"].boolean_or(false));
  token.normalized = node["normalized"].boolean_or(!token.special);
  return token;
}

SpecialTokens read_special_tokens(const fs::path& folder, const std::string& config_origin,
                                  const JsonNode& root, const std::vector<AddedToken>& own) {
  return TokensOfFolder(folder, config_origin, root, own).read();
}

std::vector<NamedToken> with_defaults(const SpecialTokens& special, TokenizerClass kind) {
  std::vector<NamedToken> named;
  const auto defaults = default_special_tokens(kind);
  for (const char* name : kStandardNames) {
    const auto given = std::ranges::find(special.named, name, &NamedToken::name);
    if (given != special.named.end()) {
      named.push_back(*given);
      continue;
    }
    if (std::ranges::find(special.unset, name) != special.unset.end()) continue;
    for (const auto& [default_name, content] : defaults) {
      if (default_name == name) named.push_back({name, {.content = content, .special = true}, true});
    }
  }
  for (const NamedToken& token : special.named) {
    if (!is_standard(token.name)) named.push_back(token);
  }
  return named;
}

void add_special_tokens(const SpecialTokens& special, const std::vector<NamedToken>& named,
                        AddedVocabulary* vocabulary) {
  std::vector<NamedToken> to_add;
  std::unordered_set<std::string> first;  // of the files
  for (const auto& [id, token] : special.by_id) {
    to_add.push_back({"", token});
    first.insert(token.content);
  }
  // A token with the same text and other flags is added once more, and its flags win.
  const auto take = [&](const NamedToken& named_token) {
    const AddedToken& token = named_token.token;
    if (first.contains(token.content) || vocabulary->is_added(token.content)) return;
    const auto is_same = [&](const NamedToken& other) {
      return other.is_text == named_token.is_text && same_flags(other.token, token);
    };
    if (std::ranges::none_of(to_add, is_same)) to_add.push_back(named_token);
  };
  std::ranges::for_each(named, take);
  std::ranges::for_each(special.extra, take);
  for (auto& [name, token, is_text] : to_add) {
    const bool is_named = std::ranges::any_of(named, [&content = token.content](const NamedToken& other) {
      return other.token.content == content;
    });
    if (is_named) token.special = true;
  }
  for (const NamedToken& token : to_add) vocabulary->add(token.token);
}

void add_all_as_special(const SpecialTokens& special, const std::vector<NamedToken>& named,
                        AddedVocabulary* vocabulary) {
  for (const NamedToken& token : named) vocabulary->add({.content = token.token.content, .special = true});
  for (const NamedToken& token : special.extra)
    vocabulary->add({.content = token.token.content, .special = true});
}

}  // namespace tessera
