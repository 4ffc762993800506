// Random rows of random schemas, written in every layout of lists, encoding and page version, split over
// pages and row groups at random.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/value.h"
#include "formats/parquet/parquet_reader.h"
#include "support/parquet_bytes.h"
#include "support/value_json.h"
#include "test_folder.h"

namespace tessera {
namespace {

using parquet::Encoding;
using parquet::PageType;
using parquet::PhysicalType;
using parquet::Repetition;

enum class NodeShape { kLeaf, kObject, kList };
enum class ListLayout { kThreeLevels, kTwoLevels, kRepeatedField };

struct TypeNode {
  NodeShape shape = NodeShape::kLeaf;
  std::string name;
  bool is_nullable = false;
  PhysicalType type = PhysicalType::kByteArray;
  ListLayout layout = ListLayout::kThreeLevels;
  std::vector<TypeNode> children;
};

struct Entry {
  uint32_t repetition = 0;
  uint32_t definition = 0;
  const Value* value = nullptr;  // null if there is none
};

struct LeafEntries {
  PhysicalType type = PhysicalType::kByteArray;
  uint32_t max_repetition = 0;
  uint32_t max_definition = 0;
  std::vector<Entry> entries;
};

class RandomFile {
 public:
  explicit RandomFile(unsigned seed) : random_(seed) {}

  void make(int64_t num_rows) {
    for (int i = 0; i < 3; ++i) columns_.push_back(make_type(fmt::format("c{}", i), 0));
    for (int64_t i = 0; i < num_rows; ++i) rows_.push_back(make_object(columns_));
  }
  const std::vector<Value>& rows() const { return rows_; }

  std::string bytes() {
    ParquetBytes file;
    for (const TypeNode& column : columns_) add_schema(&file, column);
    for (size_t at = 0; at < rows_.size();) {
      const size_t count = std::min(rows_.size() - at, size_t{1} + below(rows_.size()));
      write_row_group(&file, std::span(rows_).subspan(at, count));
      at += count;
      if (below(4) == 0) write_row_group(&file, {});
    }
    return file.finish(static_cast<int>(columns_.size()));
  }

 private:
  uint32_t below(size_t bound) { return static_cast<uint32_t>(random_() % bound); }

  TypeNode make_type(std::string name, int depth) {
    TypeNode node;
    node.name = std::move(name);
    node.is_nullable = below(2) == 0;
    node.shape = depth == 4 ? NodeShape::kLeaf : static_cast<NodeShape>(below(3));
    if (node.shape == NodeShape::kLeaf) {
      constexpr PhysicalType kTypes[] = {PhysicalType::kByteArray, PhysicalType::kByteArray,
                                         PhysicalType::kInt32,     PhysicalType::kInt64,
                                         PhysicalType::kDouble,    PhysicalType::kBoolean};
      node.type = kTypes[below(std::size(kTypes))];
    } else if (node.shape == NodeShape::kObject) {
      const size_t num_fields = 1 + below(3);
      for (size_t i = 0; i < num_fields; ++i)
        node.children.push_back(make_type(fmt::format("f{}", i), depth + 1));
    } else {
      node.layout = static_cast<ListLayout>(below(3));
      node.children.push_back(make_type("element", depth + 1));
      // A repeated field would be the only one of the group around an element, which makes that the element.
      if (TypeNode& element = node.children[0]; element.layout == ListLayout::kRepeatedField) {
        element.layout = ListLayout::kThreeLevels;
        if (element.shape == NodeShape::kList) element.children[0].name = "element";
      }
      if (node.layout == ListLayout::kRepeatedField) node.is_nullable = false;
      // Elements of these two layouts are required, and a list in them would be taken for a third level.
      if (node.layout != ListLayout::kThreeLevels) {
        node.children[0].is_nullable = false;
        if (node.children[0].shape == NodeShape::kList) node.children[0] = TypeNode();
        node.children[0].name = node.layout == ListLayout::kTwoLevels ? "array" : node.name;
      }
    }
    return node;
  }

  Value make_value(const TypeNode& node) {
    if (node.is_nullable && below(4) == 0) return {};
    if (node.shape == NodeShape::kObject) return make_object(node.children);
    if (node.shape == NodeShape::kList) {
      Value::List list;
      for (size_t left = below(4); left > 0; --left) list.push_back(make_value(node.children[0]));
      return list;
    }
    switch (node.type) {
      case PhysicalType::kBoolean:
        return below(2) == 0;
      case PhysicalType::kInt32:
        return static_cast<int32_t>(random_() * 2);
      case PhysicalType::kInt64:
        return static_cast<int64_t>(uint64_t{below(9)} << 61 ^ random_());
      case PhysicalType::kDouble:
        return below(1000) / 8.0;
      default:
        break;
    }
    std::string text = fmt::format("text {}", below(20));
    if (below(3) == 0) text.append(below(50), '.');
    return text;
  }

  Value make_object(const std::vector<TypeNode>& fields) {
    Value::Object object;
    for (const TypeNode& field : fields) object.push_back({field.name, make_value(field)});
    return object;
  }

  void add_schema(ParquetBytes* file, const TypeNode& node) {
    const Repetition repetition = node.is_nullable ? Repetition::kOptional : Repetition::kRequired;
    if (node.shape != NodeShape::kList) return add_field(file, node, repetition);
    if (node.layout == ListLayout::kRepeatedField)
      return add_field(file, node.children[0], Repetition::kRepeated);
    file->add_group(node.name, repetition, 1, ParquetBytes::kList);
    if (node.layout == ListLayout::kTwoLevels)
      return add_field(file, node.children[0], Repetition::kRepeated);
    file->add_group("list", Repetition::kRepeated, 1);
    add_schema(file, node.children[0]);
  }

  void add_field(ParquetBytes* file, const TypeNode& node, Repetition repetition) {
    if (node.shape == NodeShape::kLeaf)
      return file->add_leaf(
          node.name, repetition, node.type,
          node.type == PhysicalType::kByteArray ? ParquetBytes::kUtf8 : ParquetBytes::kNoAnnotation);
    file->add_group(node.name, repetition, static_cast<int>(node.children.size()));
    for (const TypeNode& child : node.children) add_schema(file, child);
  }

  // Dremel's column striping: appends the entries of one value to the node's leaves, from `leaf` on; returns
  // the leaf after them. `value` is null where an ancestor is null or empty.
  size_t stripe(const TypeNode& node, const Value* value, Entry entry, LeafEntries levels, size_t leaf) {
    levels.max_definition += node.is_nullable ? 1 : 0;
    if (value != nullptr && node.is_nullable) {
      if (value->is_null()) {
        value = nullptr;
      } else {
        ++entry.definition;
      }
    }
    if (node.shape == NodeShape::kLeaf) {
      if (leaf == leaves_.size())
        leaves_.push_back({node.type, levels.max_repetition, levels.max_definition, {}});
      entry.value = value;
      leaves_[leaf].entries.push_back(entry);
      return leaf + 1;
    }
    if (node.shape == NodeShape::kObject) {
      for (size_t i = 0; i < node.children.size(); ++i) {
        const Value* field = value != nullptr ? &(*value->object())[i].value : nullptr;
        leaf = stripe(node.children[i], field, entry, levels, leaf);
      }
      return leaf;
    }
    ++levels.max_repetition;
    ++levels.max_definition;
    if (value == nullptr || value->list()->empty())
      return stripe(node.children[0], nullptr, entry, levels, leaf);
    size_t end = leaf;
    ++entry.definition;
    for (const Value& element : *value->list()) {
      end = stripe(node.children[0], &element, entry, levels, leaf);
      entry.repetition = levels.max_repetition;
    }
    return end;
  }

  void write_row_group(ParquetBytes* file, std::span<const Value> rows) {
    for (LeafEntries& leaf : leaves_) leaf.entries.clear();
    for (const Value& row : rows) {
      size_t leaf = 0;
      for (size_t i = 0; i < columns_.size(); ++i)
        leaf = stripe(columns_[i], &(*row.object())[i].value, Entry(), LeafEntries(), leaf);
    }
    file->start_row_group(std::ssize(rows));
    for (const LeafEntries& leaf : leaves_) write_column(file, leaf);
  }

  void write_column(ParquetBytes* file, const LeafEntries& leaf) {
    file->start_column(leaf.type, std::ssize(leaf.entries), static_cast<int>(below(2)));
    dictionary_.clear();
    std::string entries;
    if (leaf.type != PhysicalType::kBoolean && below(2) == 0) {
      for (const Entry& entry : leaf.entries) {
        if (entry.value == nullptr || dictionary_.size() == 40) continue;
        const std::string plain = encode_plain(leaf.type, *entry.value);
        if (std::find(dictionary_.begin(), dictionary_.end(), plain) != dictionary_.end()) continue;
        dictionary_.push_back(plain);
        entries += plain;
      }
      file->add_page(
          {PageType::kDictionary, Encoding::kPlain, std::ssize(dictionary_), "", "", entries, true});
    }
    const std::span<const Entry> all = leaf.entries;
    for (size_t at = 0; at < all.size();) {
      size_t end = std::min(all.size(), at + 1 + below(below(3) == 0 ? 2000 : 30));
      const bool is_v2 = below(2) == 0;
      // Pages of version 2 hold whole rows.
      while (is_v2 && end < all.size() && all[end].repetition != 0) ++end;
      write_page(file, leaf, all.subspan(at, end - at), is_v2);
      at = end;
    }
  }

  void write_page(ParquetBytes* file, const LeafEntries& leaf, std::span<const Entry> entries, bool is_v2) {
    ParquetPage page;
    page.type = is_v2 ? PageType::kDataV2 : PageType::kData;
    page.num_values = std::ssize(entries);
    page.has_crc = below(2) == 0;
    std::vector<uint32_t> repetition;
    std::vector<uint32_t> definition;
    std::vector<const Value*> values;
    for (const Entry& entry : entries) {
      repetition.push_back(entry.repetition);
      definition.push_back(entry.definition);
      if (entry.value != nullptr) values.push_back(entry.value);
    }
    const bool is_bit_packed = !is_v2 && below(4) == 0;
    const auto encode_levels = is_bit_packed ? encode_bit_packed_levels : encode_rle;
    if (is_bit_packed) page.level_encoding = Encoding::kBitPacked;
    if (leaf.max_repetition > 0)
      page.repetition_levels = encode_levels(repetition, std::bit_width(leaf.max_repetition));
    if (leaf.max_definition > 0)
      page.definition_levels = encode_levels(definition, std::bit_width(leaf.max_definition));
    encode_values(leaf.type, values, &page);
    file->add_page(page);
  }

  static uint64_t bits_of(const Value& value) {
    if (const double* number = value.number()) return std::bit_cast<uint64_t>(*number);
    return static_cast<uint64_t>(*value.integer());
  }

  static std::string encode_plain(PhysicalType type, const Value& value) {
    if (type == PhysicalType::kByteArray) return encode_byte_array(*value.string());
    return encode_fixed(bits_of(value), type == PhysicalType::kInt32 ? 4 : 8);
  }

  // Any encoding that this type has; the dictionary if it has all values.
  void encode_values(PhysicalType type, const std::vector<const Value*>& values, ParquetPage* page) {
    std::vector<uint32_t> indices;
    for (const Value* value : values) {
      if (type == PhysicalType::kBoolean) {
        indices.push_back(*value->boolean() ? 1 : 0);
        continue;
      }
      const auto found = std::find(dictionary_.begin(), dictionary_.end(), encode_plain(type, *value));
      if (found != dictionary_.end()) indices.push_back(static_cast<uint32_t>(found - dictionary_.begin()));
    }
    const bool is_listed = indices.size() == values.size();
    if (type == PhysicalType::kBoolean) {
      page->encoding = below(2) == 0 ? Encoding::kRle : Encoding::kPlain;
      std::vector<uint32_t> bits = indices;
      page->values = page->encoding == Encoding::kRle ? encode_byte_array(encode_rle(bits, 1)) : "";
      if (page->encoding == Encoding::kRle) return;
      for (size_t i = 0; i < bits.size(); i += 8) {
        uint32_t byte = 0;
        for (size_t bit = i; bit < std::min(bits.size(), i + 8); ++bit) byte |= bits[bit] << (bit - i);
        page->values += static_cast<char>(byte);
      }
      return;
    }
    if (!dictionary_.empty() && is_listed && below(4) != 0) {
      const int width = std::bit_width(dictionary_.size() - 1);
      page->encoding = below(2) == 0 ? Encoding::kRleDictionary : Encoding::kPlainDictionary;
      page->values = static_cast<char>(width) + encode_rle(indices, width);
      return;
    }
    if (type == PhysicalType::kByteArray) return encode_texts(values, page);
    encode_numbers(type, values, page);
  }

  void encode_texts(const std::vector<const Value*>& values, ParquetPage* page) {
    std::vector<std::string> texts;
    for (const Value* value : values) texts.push_back(*value->string());
    page->encoding =
        std::vector{Encoding::kPlain, Encoding::kDeltaLengthByteArray, Encoding::kDeltaByteArray}[below(3)];
    if (page->encoding == Encoding::kDeltaLengthByteArray) page->values = encode_delta_lengths(texts);
    if (page->encoding == Encoding::kDeltaByteArray) page->values = encode_delta_bytes(texts);
    if (page->encoding != Encoding::kPlain) return;
    for (const std::string& text : texts) page->values += encode_byte_array(text);
  }

  void encode_numbers(PhysicalType type, const std::vector<const Value*>& values, ParquetPage* page) {
    const int size = type == PhysicalType::kInt32 ? 4 : 8;
    std::vector<uint64_t> bits;
    for (const Value* value : values) bits.push_back(bits_of(*value));
    const size_t choices = type == PhysicalType::kDouble ? 2 : 3;
    page->encoding = std::vector{Encoding::kPlain, Encoding::kByteStreamSplit,
                                 Encoding::kDeltaBinaryPacked}[below(choices)];
    if (page->encoding == Encoding::kByteStreamSplit) page->values = encode_byte_stream_split(bits, size);
    if (page->encoding == Encoding::kDeltaBinaryPacked) {
      const int miniblocks = 1 << below(3);
      page->values =
          encode_delta({bits.begin(), bits.end()}, 128 * static_cast<int>(1 + below(2)), miniblocks);
    }
    if (page->encoding != Encoding::kPlain) return;
    for (const uint64_t value : bits) page->values += encode_fixed(value, size);
  }

  std::minstd_rand random_;
  std::vector<TypeNode> columns_;
  std::vector<Value> rows_;
  std::vector<LeafEntries> leaves_;
  std::vector<std::string> dictionary_;  // PLAIN entries
};

TEST(RowAssembler, RandomRowsOfRandomSchemasReadBackExactly) {
  TestFolder folder(memory_folder());
  for (unsigned seed = 1; seed <= 300; ++seed) {
    RandomFile random(seed);
    random.make(seed % 10 == 0 ? 3000 : 1 + seed % 40);
    const auto path = folder.write("rows.parquet", random.bytes());
    ParquetReader reader(path);
    size_t at = 0;
    for (Value row; reader.next(&row); ++at)
      ASSERT_EQ(row, random.rows()[at]) << "seed " << seed << ", row " << at << "\n"
                                        << to_json(row) << "\n"
                                        << to_json(random.rows()[at]);
    ASSERT_EQ(at, random.rows().size()) << "seed " << seed;
  }
}

void drop_nulls(Value* value) {
  if (Value::List* items = value->list()) {
    for (Value& item : *items) drop_nulls(&item);
  }
  if (Value::Object* fields = value->object()) {
    std::erase_if(*fields, [](const Value::Field& field) { return field.value.is_null(); });
    for (Value::Field& field : *fields) drop_nulls(&field.value);
  }
}

TEST(RowAssembler, FieldsOfStructsThatAreNullCanBeLeftOut) {
  TestFolder folder(memory_folder());
  for (unsigned seed = 501; seed <= 540; ++seed) {
    RandomFile random(seed);
    random.make(40);
    ParquetReader reader(folder.write("rows.parquet", random.bytes()));
    reader.drop_null_fields();
    size_t at = 0;
    for (Value row; reader.next(&row); ++at) {
      Value expected = random.rows()[at];
      for (Value::Field& column : *expected.object()) drop_nulls(&column.value);
      ASSERT_EQ(row, expected) << "seed " << seed << ", row " << at;
    }
  }
}

TEST(RowAssembler, RowsCanBeSkippedAndColumnsSelected) {
  TestFolder folder(memory_folder());
  for (unsigned seed = 1001; seed <= 1040; ++seed) {
    RandomFile random(seed);
    random.make(200);
    ParquetReader reader(folder.write("rows.parquet", random.bytes()));
    const std::vector<std::string> columns = {"c2", "c0"};
    reader.select(columns);
    for (const int64_t row : {0, 150, 20, 199, 200, 1}) {
      reader.skip_to(row);
      Value found;
      ASSERT_EQ(reader.next(&found), row < 200) << "seed " << seed << ", row " << row;
      if (row == 200) continue;
      const Value& expected = random.rows()[static_cast<size_t>(row)];
      ASSERT_EQ(reader.row_number(), row);
      ASSERT_EQ(found, (Value::Object{{"c0", *expected.find("c0")}, {"c2", *expected.find("c2")}}))
          << "seed " << seed << ", row " << row;
    }
    reader.skip_to(200);
    EXPECT_EQ(reader.bytes_consumed(), reader.total_bytes());
  }
}

}  // namespace
}  // namespace tessera
