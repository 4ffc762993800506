#include "tokenizer/pipeline/post_processor.h"

#include <fmt/format.h>

#include "base/text.h"

namespace tessera {
namespace {

constexpr int64_t kMaxIds = 4096;  // ids added to a text; usually one or two

PostProcessor make_template(const JsonNode& node, int64_t num_ids) {
  node.expect_keys({"type", "single", "pair", "special_tokens"});
  PostProcessor out;
  bool after_text = false;
  for (const JsonNode& piece : node["single"].list()) {
    const JsonNode sequence = piece["Sequence"];
    if (!sequence.is_null()) {
      if (sequence["id"].string() != "A") sequence["id"].expected("\"A\"");
      if (after_text) piece.expected("a template that holds the text once");
      after_text = true;
      continue;
    }
    const JsonNode special = piece["SpecialToken"];
    if (special.is_null()) piece.expected("\"Sequence\" or \"SpecialToken\"");
    const JsonNode entry = node["special_tokens"][special["id"].string()];
    if (entry.is_null()) entry.expected("the ids of this special token");
    for (const JsonNode& id : entry["ids"].list()) {
      (after_text ? out.after : out.before).push_back(static_cast<int32_t>(id.integer(0, num_ids - 1)));
      if (std::ssize(out.before) + std::ssize(out.after) > kMaxIds)
        entry.expected(fmt::format("at most {} tokens around a text", kMaxIds));
    }
  }
  if (!after_text) node["single"].expected("a template that holds the text once");
  return out;
}

// cls before the text and sep after it, each a token and its id.
PostProcessor make_cls_sep(const JsonNode& node, int64_t num_ids) {
  const auto id_of = [&](const char* name) {
    const std::vector<JsonNode> pair = node[name].list();
    if (pair.size() != 2 || !pair[0].is_string()) node[name].expected("a token and its id");
    return static_cast<int32_t>(pair[1].integer(0, num_ids - 1));
  };
  return {{id_of("cls")}, {id_of("sep")}};
}

}  // namespace

PostProcessor make_post_processor(const JsonNode& node, int64_t num_ids) {
  if (node.is_null()) return {};
  const std::string& type = node.type();
  if (type == "TemplateProcessing") return make_template(node, num_ids);
  if (type == "BertProcessing") {
    node.expect_keys({"type", "sep", "cls"});
    return make_cls_sep(node, num_ids);
  }
  if (type == "RobertaProcessing") {  // the other two change offsets only
    node.expect_keys({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    return make_cls_sep(node, num_ids);
  }
  if (type == "ByteLevel") {
    node.expect_keys({"type", "add_prefix_space", "use_regex", "trim_offsets"});
    return {};
  }
  if (type != "Sequence") node.not_supported("post-processor", type);
  node.expect_keys({"type", "processors"});
  PostProcessor out;
  for (const JsonNode& part : node["processors"].list()) {
    if (part.is_null()) part.expected("a post-processor");
    const PostProcessor outer = make_post_processor(part, num_ids);
    out.before.insert(out.before.begin(), outer.before.begin(), outer.before.end());
    out.after.insert(out.after.end(), outer.after.begin(), outer.after.end());
    if (std::ssize(out.before) + std::ssize(out.after) > kMaxIds)
      node["processors"].expected(fmt::format("at most {} tokens around a text", kMaxIds));
  }
  return out;
}

}  // namespace tessera
