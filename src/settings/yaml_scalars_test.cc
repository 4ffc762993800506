// Against what PyYAML 6.0.3 reads.
#include "settings/yaml_scalars.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

std::string value_of(const std::string& text) {
  const std::string file = "first: 1\nk: " + text;
  return yaml_scalar(YAML::Load(file)["k"], file);
}

TEST(YamlScalars, LineBreaksInQuotesFold) {
  EXPECT_EQ(value_of("'\n\n'\n"), "\n");
  EXPECT_EQ(value_of("\"\n \n\"\nz: end"), "\n");
  EXPECT_EQ(value_of("'\n'"), " ");
  EXPECT_EQ(value_of("'a\"\tb\n\n\t\n\n\n'\n"), "a\"\tb\n\n\n\n");
  EXPECT_EQ(value_of("\"a  b \\\n  c\n  d\n\n\n\"\n"), "a  b c d\n\n");
  EXPECT_EQ(value_of("\"a\\\n\n\n\"\n"), "a\n\n");
  EXPECT_EQ(value_of("'it''s \n ''\n'\n"), "it's ' ");
  EXPECT_EQ(value_of("\"a\r\n\r\n\"\r\n"), "a\n");
  EXPECT_EQ(value_of("&here !!str \"\n\n\"\n"), "\n");
}

TEST(YamlScalars, EscapesAreThoseOfYaml) {
  EXPECT_EQ(value_of(R"("\0\a\b\t\n\v\f\r\e\ \"\/\\")"), std::string("\0\a\b\t\n\v\f\r\x1b \"/\\", 13));
  EXPECT_EQ(value_of(R"("\x41\xe9\u20ac\U0001F600")"), "Aé€😀");
  EXPECT_EQ(value_of(R"("\N\_\L\P")"), "\xC2\x85\xC2\xA0\xE2\x80\xA8\xE2\x80\xA9");
  EXPECT_EQ(value_of(R"('\n')"), "\\n");
}

TEST(YamlScalars, BlocksKeepTheirLastLineBreaks) {
  EXPECT_EQ(value_of(">+\n  a\n  b\n\n\nz: end\n"), "a b\n\n\n");
  EXPECT_EQ(value_of(">+\n  x: ya\t\t\n  \n\nz: end\n"), "x: ya\t\t\n\n\n");
  EXPECT_EQ(value_of(">+\n  \n\n  \t\n  \n  \t\n  - a \n\n"), "\n\n\t\n\n\t\n- a \n\n");
  EXPECT_EQ(value_of(">2+ # kept\n   a\n\n"), " a\n\n");
  EXPECT_EQ(value_of(">+\n\n\nz: end\n"), "\n\n");
  EXPECT_EQ(value_of(">\n  a\n\n\n"), "a\n");
  EXPECT_EQ(value_of("|+\n  a\n\n\n"), "a\n\n\n");
  EXPECT_EQ(value_of("|-\n  a\n   b\n\n"), "a\n b");
  EXPECT_EQ(value_of("plain\n  text\n"), "plain text");
}

}  // namespace
}  // namespace tessera
