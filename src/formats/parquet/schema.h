// The schema of a Parquet file as rows have it: objects, lists and leaves, with the levels at which each is
// present (https://github.com/apache/parquet-format/blob/master/LogicalTypes.md, "Nested Types").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/parquet/metadata.h"

namespace tessera::parquet {

struct SchemaNode {
  enum class Kind : int8_t { kLeaf, kStruct, kList, kMap };

  Kind kind = Kind::kLeaf;
  std::string name;
  bool is_nullable = false;
  int definition_level = 0;  // the lowest at which the value is not null
  // For kList and kMap: the definition level from which on there is an element, and the repetition level of
  // every element but the first.
  int element_definition_level = 0;
  int repetition_level = 0;
  // Fields of kStruct; the element of kList; key and value of kMap, or the key alone.
  std::vector<SchemaNode> children;
  int first_leaf = 0;  // its leaves among the schema's
  int num_leaves = 0;
};

struct Leaf {
  const SchemaElement* element = nullptr;
  std::string path;  // "messages.list.element.role"
  int max_definition_level = 0;
  int max_repetition_level = 0;
  bool is_variant = false;  // within a group that encodes a VARIANT
};

struct Schema {
  std::vector<SchemaNode> columns;  // the fields of a row
  std::vector<Leaf> leaves;         // in the order of the column chunks of a row group
};

// `elements` must outlive the result. Throws Problem.
Schema build_schema(const std::vector<SchemaElement>& elements);

}  // namespace tessera::parquet
