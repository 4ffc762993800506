#include "formats/parquet/schema.h"

#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "formats/parquet/problem.h"

namespace tessera::parquet {
namespace {

// Both keep recursion over nodes shallow and levels within a byte.
constexpr int kMaxDepth = 64;

class SchemaBuilder {
 public:
  explicit SchemaBuilder(const std::vector<SchemaElement>& elements) : elements_(elements) {}

  Schema build() {
    if (elements_.empty()) reject("the schema is empty");
    Place place;
    schema_.columns = fields_of(take(), place);
    if (next_ != elements_.size()) reject("the schema has {} elements, expected {}", elements_.size(), next_);
    return std::move(schema_);
  }

 private:
  // Where an element is: the levels of what encloses it.
  struct Place {
    std::string path;
    int depth = 0;
    int definition_level = 0;
    int repetition_level = 0;
    bool is_variant = false;
  };

  const SchemaElement& take() {
    if (next_ >= elements_.size()) reject("the schema ends early: it has only {} elements", elements_.size());
    const SchemaElement& element = elements_[next_++];
    if (!is_valid_utf8(element.name)) reject("the schema has a field called '{}'", printable(element.name));
    return element;
  }

  static Place inside(const Place& outer, const SchemaElement& element) {
    if (outer.depth == kMaxDepth) reject("the schema nests deeper than {}", kMaxDepth);
    Place place = outer;
    place.path += (outer.path.empty() ? "" : ".") + element.name;
    ++place.depth;
    return place;
  }

  std::vector<SchemaNode> fields_of(const SchemaElement& group, const Place& place) {
    std::vector<SchemaNode> fields;
    std::set<std::string_view> names;
    for (int32_t i = 0; i < group.num_children; ++i) {
      const SchemaElement& field = take();
      if (!names.insert(field.name).second)
        reject("the schema has two fields '{}'", printable(inside(place, field).path));
      fields.push_back(field_node(field, place));
    }
    return fields;
  }

  // The node of a field, by its repetition.
  SchemaNode field_node(const SchemaElement& element, const Place& outer) {
    Place place = inside(outer, element);
    SchemaNode node;
    if (element.repetition == Repetition::kRepeated) {
      // Without annotation: a list of required elements.
      node = list_node(
          outer, [&](const Place& at) { return value_node(element, at); }, place.path);
    } else {
      const bool is_nullable = element.repetition == Repetition::kOptional;
      place.definition_level += is_nullable ? 1 : 0;
      node = value_node(element, place);
      node.is_nullable = is_nullable;
    }
    node.name = element.name;
    return node;
  }

  // A list whose elements are what `make_element` makes of the place within the list.
  template <typename MakeElement>
  SchemaNode list_node(const Place& outer, MakeElement&& make_element, const std::string& path) {
    Place place = outer;
    place.path = path;
    ++place.depth;
    ++place.definition_level;
    ++place.repetition_level;
    SchemaNode node;
    node.kind = SchemaNode::Kind::kList;
    node.definition_level = outer.definition_level;
    node.element_definition_level = place.definition_level;
    node.repetition_level = place.repetition_level;
    node.first_leaf = static_cast<int>(schema_.leaves.size());
    node.children.push_back(make_element(place));
    node.num_leaves = static_cast<int>(schema_.leaves.size()) - node.first_leaf;
    return node;
  }

  // The node of an element that is not repeated, or of one element of a repeated one.
  SchemaNode value_node(const SchemaElement& element, const Place& place) {
    SchemaNode node;
    node.definition_level = place.definition_level;
    node.first_leaf = static_cast<int>(schema_.leaves.size());
    if (element.type) {
      schema_.leaves.push_back(
          {&element, place.path, place.definition_level, place.repetition_level, place.is_variant});
    } else if (element.logical == LogicalType::kList && has_repeated_child(element)) {
      return annotated_list(element, place);
    } else if (element.logical == LogicalType::kMap && has_repeated_child(element) &&
               elements_[next_].num_children >= 1 && elements_[next_].num_children <= 2) {
      return map_node(place);
    } else {
      node.kind = SchemaNode::Kind::kStruct;
      Place within = place;
      within.is_variant |= element.logical == LogicalType::kVariant;
      node.children = fields_of(element, within);
      if (node.children.empty()) reject("the group '{}' of the schema has no fields", printable(place.path));
    }
    node.num_leaves = static_cast<int>(schema_.leaves.size()) - node.first_leaf;
    return node;
  }

  bool has_repeated_child(const SchemaElement& group) const {
    return group.num_children == 1 && next_ < elements_.size() &&
           elements_[next_].repetition == Repetition::kRepeated;
  }

  // By the rules for backward compatibility, the repeated field is either the element itself (two levels) or
  // a group around it (three levels).
  SchemaNode annotated_list(const SchemaElement& list, const Place& outer) {
    const SchemaElement& repeated = take();
    const Place place = inside(outer, repeated);
    const bool is_element =
        repeated.type || repeated.num_children != 1 || repeated.name == "array" ||
        repeated.name == list.name + "_tuple" ||
        (next_ < elements_.size() && elements_[next_].repetition == Repetition::kRepeated);
    return list_node(
        outer,
        [&](const Place& at) { return is_element ? value_node(repeated, at) : field_node(take(), at); },
        place.path);
  }

  SchemaNode map_node(const Place& outer) {
    const SchemaElement& repeated = take();
    const Place place = inside(outer, repeated);
    SchemaNode node = list_node(
        outer,
        [&](const Place& at) {
          SchemaNode entry;
          entry.kind = SchemaNode::Kind::kStruct;
          entry.children = fields_of(repeated, at);
          return entry;
        },
        place.path);
    node.kind = SchemaNode::Kind::kMap;
    node.children = std::move(std::vector(node.children).front().children);
    return node;
  }

  const std::vector<SchemaElement>& elements_;
  size_t next_ = 0;
  Schema schema_;
};

}  // namespace

Schema build_schema(const std::vector<SchemaElement>& elements) { return SchemaBuilder(elements).build(); }

}  // namespace tessera::parquet
