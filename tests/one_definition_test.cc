// One definition per name: no type, alias, function or inline variable of a namespace is defined in two
// files.
//
// Two classes of the same name in one program are undefined behaviour that neither compiler nor linker
// reports: where both have a function, the linker keeps one of the two. The test treats all files as one
// program, which they nearly are; static names and those in unnamed namespaces belong to their file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "test_paths.h"

namespace tessera {
namespace {

using Tokens = std::vector<std::string_view>;

bool is_name(std::string_view token) {
  return std::isalpha(static_cast<unsigned char>(token[0])) != 0 || token[0] == '_';
}

// The end of the literal that starts at `at`; `at` if there is none.
size_t end_of_literal(std::string_view text, size_t at) {
  size_t quote = at;
  for (const std::string_view prefix : {"R", "u8", "L"}) {
    if (text.substr(at, prefix.size() + 1) == std::string(prefix) + "\"") quote = at + prefix.size();
  }
  if (text[quote] != '"' && text[quote] != '\'') return at;
  if (text[at] == 'R') {
    const size_t open = text.find('(', quote);
    const std::string close = ")" + std::string(text.substr(quote + 1, open - quote - 1)) + "\"";
    return text.find(close, open) + close.size();
  }
  size_t end = quote + 1;
  while (text[end] != text[quote]) end += text[end] == '\\' ? 2 : 1;
  return end + 1;
}

// Names, numbers, "::" and single characters; no comments, literals or preprocessor lines.
Tokens tokens_of(std::string_view text) {
  Tokens tokens;
  bool starts_line = true;
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    if (std::isspace(static_cast<unsigned char>(text[at])) != 0) {
      starts_line = starts_line || text[at] == '\n';
      end = at + 1;
    } else if (text[at] == '#' && starts_line) {
      end = text.find('\n', at);
      while (end != std::string_view::npos && text[end - 1] == '\\') end = text.find('\n', end + 1);
    } else if (text.substr(at, 2) == "//") {
      end = text.find('\n', at);
    } else if (text.substr(at, 2) == "/*") {
      end = text.find("*/", at) + 2;
    } else if (end = end_of_literal(text, at); end > at) {
      starts_line = false;
    } else {
      starts_line = false;
      end = at + 1;
      const bool is_number = std::isdigit(static_cast<unsigned char>(text[at])) != 0;
      if (is_word(text[at])) {
        while (end < text.size() && (is_word(text[end]) || (is_number && text[end] == '\''))) ++end;
      } else if (text.substr(at, 2) == "::") {
        ++end;
      }
      tokens.push_back(text.substr(at, end - at));
    }
    end = std::min(end, text.size());
  }
  return tokens;
}

bool contains(const Tokens& tokens, std::string_view token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

// The position after the bracket that closes the one at `open`.
size_t behind_bracket(const Tokens& tokens, size_t open, std::string_view opening, std::string_view closing) {
  int depth = 0;
  for (size_t i = open; i < tokens.size(); ++i) {
    if (tokens[i] == opening) ++depth;
    if (tokens[i] == closing && --depth == 0) return i + 1;
  }
  return tokens.size();
}

// The tokens without "template <...>", attributes and alignas(...).
Tokens without_decoration(const Tokens& tokens) {
  Tokens kept;
  for (size_t i = 0; i < tokens.size();) {
    const std::string_view token = tokens[i];
    if (token == "template") {
      i = behind_bracket(tokens, i + 1, "<", ">");
    } else if (token == "alignas" || token == "__attribute__") {
      i = behind_bracket(tokens, i + 1, "(", ")");
    } else if (token == "[" && i + 1 < tokens.size() && tokens[i + 1] == "[") {
      i = behind_bracket(tokens, i, "[", "]");
    } else {
      kept.push_back(token);
      ++i;
    }
  }
  return kept;
}

std::string joined(Tokens::const_iterator begin, Tokens::const_iterator end) {
  std::string text;
  for (; begin != end; ++begin) {
    if (!text.empty() && is_name(*begin) && is_name(text.substr(text.size() - 1))) text += ' ';
    text += *begin;
  }
  return text;
}

// A parameter's type, without name and default value.
std::string parameter_type(Tokens::const_iterator begin, Tokens::const_iterator end) {
  end = std::find(begin, end, "=");
  const bool is_named = end - begin > 1 && is_name(end[-1]) && end[-2] != "::" && end[-2] != "const";
  return joined(begin, is_named ? end - 1 : end);
}

// "name(types)" of a function definition's head; "" for a member or anything that is not a function.
std::string function_signature(const Tokens& head) {
  if (contains(head, "static") || contains(head, "operator")) return "";
  const auto open = std::find(head.begin(), head.end(), "(");
  if (open == head.end() || open == head.begin() || !is_name(open[-1]) ||
      std::find(head.begin(), open, "=") != open)
    return "";
  if (open - head.begin() > 1 && (open[-2] == "::" || open[-2] == "~")) return "";
  std::string types;
  int depth = 0;
  auto begin = open + 1;
  for (auto at = open; at != head.end(); ++at) {
    if (*at == "(" || *at == "<" || *at == "{") ++depth;
    if (*at == ")" || *at == ">" || *at == "}") --depth;
    if ((*at == "," && depth == 1) || depth == 0) {
      types += (types.empty() ? "" : ", ") + parameter_type(begin, at);
      begin = at + 1;
    }
    if (depth == 0) break;
  }
  return std::string(open[-1]) + "(" + types + ")";
}

// The name of the type whose definition begins with `head`: "" if it is not a type, "(unnamed)" if it has no
// name.
std::string type_name(const Tokens& head) {
  const std::set<std::string_view> keys = {"struct", "class", "enum", "union"};
  const auto key =
      std::find_if(head.begin(), head.end(), [&](std::string_view token) { return keys.contains(token); });
  if (key == head.end()) return "";
  auto begin = key + 1;
  if (begin != head.end() && keys.contains(*begin)) ++begin;  // enum class
  const auto end =
      std::find_if(begin, head.end(), [](std::string_view t) { return t == ":" || t == "final"; });
  if (std::find(head.begin(), end, "(") != end || std::find(head.begin(), end, "=") != end) return "";
  return begin == end ? "(unnamed)" : joined(begin, end);
}

using Definitions = std::map<std::string, std::set<std::string>>;  // files by qualified name

class FileScanner {
 public:
  FileScanner(std::string file, Definitions* definitions)
      : file_(std::move(file)), definitions_(definitions) {}

  void scan(std::string_view text) {
    Tokens statement;
    int parentheses = 0;
    for (const std::string_view token : tokens_of(text)) {
      if (token == "(") ++parentheses;
      if (token == ")") --parentheses;
      if (parentheses > 0 || (token != "{" && token != "}" && token != ";")) {
        statement.push_back(token);
        continue;
      }
      if (token == "{") open_scope(without_decoration(statement));
      if (token == ";") end_statement(without_decoration(statement));
      if (token == "}") {
        ASSERT_FALSE(scopes_.empty()) << file_;
        scopes_.pop_back();
      }
      statement.clear();
    }
    EXPECT_TRUE(scopes_.empty()) << file_;
  }

 private:
  enum class Kind { kNamespace, kType, kOwn };  // kOwn: bodies, initializers and unnamed namespaces
  struct Scope {
    Kind kind;
    std::string name;
  };

  bool is_in(Kind kind) const {
    return std::any_of(scopes_.begin(), scopes_.end(),
                       [&](const Scope& scope) { return scope.kind == kind; });
  }

  void define(const std::string& name) {
    std::string qualified;
    for (const Scope& scope : scopes_) qualified += scope.name.empty() ? "" : scope.name + "::";
    (*definitions_)[qualified + name].insert(file_);
  }

  void open_scope(const Tokens& head) {
    if (is_in(Kind::kOwn)) return scopes_.push_back({Kind::kOwn, ""});
    if (contains(head, "namespace")) {
      const auto name = std::find(head.begin(), head.end(), "namespace") + 1;
      const std::string text = joined(name, head.end());
      return scopes_.push_back({text.empty() ? Kind::kOwn : Kind::kNamespace, text});
    }
    if (head.size() == 1 && head[0] == "extern") return scopes_.push_back({Kind::kNamespace, ""});
    if (const std::string name = type_name(head); !name.empty()) {
      if (name != "(unnamed)") define(name);
      return scopes_.push_back({Kind::kType, name});
    }
    const bool is_of_a_namespace = !scopes_.empty() && !is_in(Kind::kType);
    if (const std::string signature = function_signature(head); is_of_a_namespace && !signature.empty()) {
      define(signature);
    }
    define_inline_variable(head);
    scopes_.push_back({Kind::kOwn, ""});
  }

  void end_statement(const Tokens& statement) {
    if (is_in(Kind::kOwn)) return;
    const auto use = std::find(statement.begin(), statement.end(), "using");
    if (statement.end() - use > 2 && use[2] == "=") return define(std::string(use[1]));
    if (contains(statement, "typedef")) return define(std::string(statement.back()));
    define_inline_variable(statement);
  }

  // inline int x = 1;  inline constexpr std::array x = {1};  inline int x[] = {1};
  void define_inline_variable(const Tokens& head) {
    const auto equals = std::find(head.begin(), head.end(), "=");
    if (is_in(Kind::kType) || !contains(head, "inline") || equals == head.end()) return;
    if (std::find(head.begin(), equals, "(") != equals) return;
    define(std::string(std::find(head.begin(), equals, "[")[-1]));
  }

  std::string file_;
  Definitions* definitions_;
  std::vector<Scope> scopes_;
};

// "name: file, file" for everything defined in more than one file.
std::vector<std::string> defined_twice(const Definitions& definitions) {
  std::vector<std::string> lines;
  for (const auto& [name, files] : definitions) {
    if (files.size() < 2) continue;
    std::string line = name + ":";
    for (const std::string& file : files) line += " " + file;
    lines.push_back(line);
  }
  return lines;
}

TEST(OneDefinition, EveryNameOfTheTreeHasOneMeaning) {
  Definitions definitions;
  for (const auto& path : source_files()) {
    const std::string file = path.lexically_relative(source_folder());
    FileScanner(file, &definitions).scan(read_source(path));
  }
  EXPECT_GT(definitions.size(), 1000u) << "the test looked at the wrong place";
  EXPECT_THAT(defined_twice(definitions), testing::IsEmpty())
      << "rename one of each pair, or put it into an unnamed namespace";
}

TEST(OneDefinition, FindsTypesAliasesFunctionsAndVariablesOfTheSameName) {
  Definitions definitions;
  FileScanner("a.h", &definitions).scan(R"(
    namespace tessera {
    template <typename T> class alignas(64) Part final : public Base<T> { enum class Kind : int { kA }; };
    using Ids = std::vector<int>;
    inline constexpr int kSizes[] = {1, 2};
    inline const int kOther[] = {1};
    inline int half(int x, std::span<const int> y = {}) { return x / 2; }
    struct Declared;
    struct Declared make(int x);
    constexpr int kOwn = 1;
    template <> struct Traits<int> {};
    })");
  FileScanner("b.cc", &definitions).scan(R"(
    namespace tessera {
    namespace { struct Scratch {}; int half_of(int x) { return x; } }
    struct [[nodiscard]] Part { int x; };  // struct Comment {
    typedef int Ids;
    inline int kSizes = 3;
    int half(int number, std::span<const int> others) { const char* s = "}{"; return number; }
    int half(double x) { return R"x(})x"[0]; }
    struct Declared make(int x) { struct Local {}; }
    constexpr int kOwn = 2;
    template <> struct Traits<float> {};
    namespace inner { struct Scratch {}; }
    int Part::half(int x) { return x; }
    }
    int main() { return '}'; })");
  FileScanner("c.cc", &definitions).scan(R"(
    namespace tessera { namespace { struct Scratch {}; int half_of(int x) { return x; } }
    static int make(int x) { struct Local {}; } }
    int main() {})");
  EXPECT_THAT(defined_twice(definitions),
              testing::ElementsAre("tessera::Ids: a.h b.cc", "tessera::Part: a.h b.cc",
                                   "tessera::half(int, std::span<const int>): a.h b.cc",
                                   "tessera::kSizes: a.h b.cc"));
}

}  // namespace
}  // namespace tessera
