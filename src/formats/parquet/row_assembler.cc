#include "formats/parquet/row_assembler.h"

#include <map>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace tessera::parquet {
namespace {

// A few bytes of a damaged file can stand for a list of any length.
constexpr int64_t kMaxRowBytes = int64_t{256} << 20;

}  // namespace

RowAssembler::RowAssembler(const InputFile& file, const Schema& schema,
                           std::vector<const SchemaNode*> columns, bool keeps_null_fields)
    : file_(file),
      schema_(schema),
      columns_(std::move(columns)),
      keeps_null_fields_(keeps_null_fields),
      readers_(schema.leaves.size()) {
  for (const Leaf& leaf : schema.leaves) converters_.emplace_back(*leaf.element);
  for (const SchemaNode* column : columns_) {
    for (int leaf = column->first_leaf; leaf < column->first_leaf + column->num_leaves; ++leaf)
      readers_[static_cast<size_t>(leaf)] =
          std::make_unique<ColumnReader>(file, schema.leaves[static_cast<size_t>(leaf)]);
  }
}

void RowAssembler::open_row_group(const RowGroup& group) {
  for (size_t leaf = 0; leaf < readers_.size(); ++leaf) {
    if (readers_[leaf] != nullptr) readers_[leaf]->open_chunk(group.columns[leaf]);
  }
}

int64_t RowAssembler::bytes_read() const {
  int64_t bytes = 0;
  for (const auto& column : readers_) bytes += column != nullptr ? column->bytes_read() : 0;
  return bytes;
}

void RowAssembler::fail_at(const SchemaNode& node, const char* message) {
  fail(ExitCode::kBadData, "{}: column '{}': {}", file_.path().native(), path_of(node), message);
}

std::string RowAssembler::path_of(const SchemaNode& node) const {
  return printable(schema_.leaves[static_cast<size_t>(node.first_leaf)].path);
}

void RowAssembler::spend(int64_t bytes) {
  row_bytes_left_ -= bytes;
  if (row_bytes_left_ < 0)
    fail(ExitCode::kBadData, "{}: a row takes more than {}", file_.path().native(),
         format_bytes(kMaxRowBytes));
}

Value RowAssembler::next(std::string* bad_value) {
  bad_value_ = bad_value;
  row_bytes_left_ = kMaxRowBytes;
  Value::Object row;
  row.reserve(columns_.size());
  for (const SchemaNode* column : columns_) {
    for (int leaf = column->first_leaf; leaf < column->first_leaf + column->num_leaves; ++leaf) {
      if (reader(leaf).repetition_level() != 0) fail_at(*column, "a list goes on that no row has begun");
    }
    row.push_back({column->name, assemble(*column)});
  }
  return row;
}

void RowAssembler::check_at_end() {
  for (size_t leaf = 0; leaf < readers_.size(); ++leaf) {
    if (readers_[leaf] != nullptr && !readers_[leaf]->at_end())
      fail(ExitCode::kBadData, "{}: column '{}': has more values than the rows of its row group",
           file_.path().native(), printable(schema_.leaves[leaf].path));
  }
}

// Where a node is null or has no elements, each of its columns has one entry that says so.
void RowAssembler::skip_nulls(const SchemaNode& node) {
  const int level = reader(node.first_leaf).definition_level();
  for (int leaf = node.first_leaf; leaf < node.first_leaf + node.num_leaves; ++leaf) {
    if (reader(leaf).definition_level() != level) fail_at(node, "its fields disagree on what is null");
    reader(leaf).skip_null();
  }
}

Value RowAssembler::assemble(const SchemaNode& node) {
  spend(sizeof(Value::Field));
  const int level = reader(node.first_leaf).definition_level();
  if (level < node.definition_level) {
    if (!node.is_nullable || level < node.definition_level - 1) fail_at(node, "a required value is null");
    skip_nulls(node);
    return {};
  }
  switch (node.kind) {
    case SchemaNode::Kind::kLeaf: {
      const RawValue raw = reader(node.first_leaf).take_value();
      spend(std::ssize(raw.bytes));
      std::string problem;
      Value value = converters_[static_cast<size_t>(node.first_leaf)].convert(raw, &problem);
      if (!problem.empty())
        *bad_value_ = fmt::format(
            "column '{}': {}", printable(schema_.leaves[static_cast<size_t>(node.first_leaf)].path), problem);
      return value;
    }
    case SchemaNode::Kind::kStruct: {
      Value::Object object;
      object.reserve(node.children.size());
      for (const SchemaNode& child : node.children) {
        Value value = assemble(child);
        if (keeps_null_fields_ || !value.is_null()) object.push_back({child.name, std::move(value)});
      }
      return object;
    }
    case SchemaNode::Kind::kList:
      return assemble_list(node);
    case SchemaNode::Kind::kMap:
      break;
  }
  return assemble_map(node);
}

template <typename OnElement>
void RowAssembler::for_each_element(const SchemaNode& node, OnElement&& element) {
  if (reader(node.first_leaf).definition_level() < node.element_definition_level) return skip_nulls(node);
  int level = node.repetition_level;
  while (level == node.repetition_level) {
    element();
    level = reader(node.first_leaf).repetition_level();
    for (int leaf = node.first_leaf; leaf < node.first_leaf + node.num_leaves; ++leaf) {
      if (reader(leaf).repetition_level() != level)
        fail_at(node, "its fields disagree on the length of a list");
    }
  }
  if (level > node.repetition_level) fail_at(node, "a list has values of a list within it that it lacks");
}

Value RowAssembler::assemble_list(const SchemaNode& node) {
  Value::List list;
  for_each_element(node, [&] { list.push_back(assemble(node.children.front())); });
  return list;
}

Value RowAssembler::assemble_map(const SchemaNode& node) {
  Value::Object object;
  std::map<std::string, size_t> places;
  for_each_element(node, [&] {
    Value key = assemble(node.children.front());
    Value value = node.children.size() == 2 ? assemble(node.children[1]) : Value();
    if (key.integer() != nullptr) key = std::to_string(*key.integer());
    if (key.string() == nullptr) {
      *bad_value_ = fmt::format("column '{}': expected a string as key of a map, found {}", path_of(node),
                                key.kind_name());
      return;
    }
    // The last value of a key counts.
    const auto [place, is_new] = places.try_emplace(*key.string(), object.size());
    if (is_new) {
      object.push_back({*key.string(), std::move(value)});
    } else {
      object[place->second].value = std::move(value);
    }
  });
  return object;
}

}  // namespace tessera::parquet
