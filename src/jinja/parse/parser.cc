
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "jinja/parse/expression_parser.h"

namespace tessera::jinja {
namespace {

using StatementPtr = std::unique_ptr<Statement>;

constexpr int kMaxNestedTags = 100;

class Parser : private ExpressionParser {
 public:
  Parser(std::string_view source, const std::string& origin)
      : ExpressionParser(tokenize(source, origin), origin) {}

  std::unique_ptr<Program> run() {
    auto program = std::make_unique<Program>();
    program->origin = origin_;
    program->body = parse_body({});
    program->has_generation = has_generation_;
    return program;
  }

 private:
  // Statements until a tag with one of the names, which is left current; all of the template if there are
  // none.
  Body parse_body(std::initializer_list<std::string_view> end_names) {
    Body body;
    StatementPtr output;
    const auto write = [&](ExprPtr value) {
      if (output == nullptr) output = make_statement(StatementKind::kOutput);
      output->expressions.push_back(std::move(value));
    };
    const auto flush = [&] {
      if (output != nullptr) body.push_back(std::move(output));
    };
    while (current().kind != TokenKind::kEnd) {
      if (current().kind == TokenKind::kText) {
        write(make_constant(take()));
      } else if (current().kind == TokenKind::kExpressionBegin) {
        take();
        write(parse_tuple(true));
        expect_kind(TokenKind::kExpressionEnd, "'}}'");
      } else {
        flush();
        take();
        const bool at_end =
            std::any_of(end_names.begin(), end_names.end(), [&](auto name) { return at_name(name); });
        if (at_end) return body;
        body.push_back(parse_statement(end_names));
        expect_kind(TokenKind::kTagEnd, "'%}'");
      }
    }
    flush();
    if (end_names.size() > 0) fail_expected(tag_list(end_names));
    return body;
  }

  static std::string tag_list(std::initializer_list<std::string_view> names) {
    std::string list;
    for (const std::string_view name : names)
      list += fmt::format("{}'{{% {} %}}'", list.empty() ? "" : " or ", name);
    return list;
  }

  // The body of a tag, from its closing %} on.
  Body parse_tag_body(std::initializer_list<std::string_view> end_names) {
    skip_operator(":");
    expect_kind(TokenKind::kTagEnd, "'%}'");
    if (++nested_tags_ > kMaxNestedTags)
      fail_at(current().line, fmt::format("more than {} nested tags", kMaxNestedTags));
    Body body = parse_body(end_names);
    --nested_tags_;
    return body;
  }

  StatementPtr make_statement(StatementKind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = current().line;
    return statement;
  }

  StatementPtr parse_statement(std::initializer_list<std::string_view> end_names) {
    if (current().kind != TokenKind::kName) fail_expected("the name of a tag");
    const std::string name = current().text;
    if (name == "for") return parse_for();
    if (name == "if") return parse_if();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "call") return parse_call_block();
    if (name == "filter") return parse_filter_block();
    if (name == "with") return parse_with();
    if (name == "print") return parse_print();
    if (name == "generation") return parse_generation();
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_at(current().line, fmt::format("'{}' outside of a loop", name));
      auto statement = make_statement(name == "break" ? StatementKind::kBreak : StatementKind::kContinue);
      take();
      return statement;
    }
    for (const char* refused : {"block", "extends", "include", "import", "from", "autoescape"}) {
      if (name == refused) {
        fail_at(current().line,
                fmt::format("'{{% {} %}}' is not supported: a chat template is one file", name));
      }
    }
    if (end_names.size() == 0) fail_expected("the name of a tag");
    fail_expected(fmt::format("the name of a tag, {}", tag_list(end_names)));
  }

  StatementPtr parse_for() {
    auto statement = make_statement(StatementKind::kFor);
    take();
    const size_t target_begin = position();
    statement->targets.push_back(parse_target("in", false));
    const size_t target_end = position();
    expect_name("in");
    statement->expressions.push_back(parse_tuple(false, "recursive"));
    if (skip_name("if")) {
      statement->test = parse_expression();
      const size_t here = position();
      move_to(target_begin);
      statement->test_target = parse_target("in", false);
      if (position() != target_end) fail_expected("'in'");
      move_to(here);
    }
    statement->recursive = skip_name("recursive");
    ++loops_;
    statement->bodies.push_back(parse_tag_body({"endfor", "else"}));
    --loops_;
    statement->bodies.push_back(skip_name("else") ? parse_tag_body({"endfor"}) : Body());
    expect_name("endfor");
    return statement;
  }

  StatementPtr parse_if() {
    auto statement = make_statement(StatementKind::kIf);
    do {
      take();
      statement->expressions.push_back(parse_tuple(false));
      statement->bodies.push_back(parse_tag_body({"elif", "else", "endif"}));
    } while (at_name("elif"));
    if (skip_name("else")) statement->bodies.push_back(parse_tag_body({"endif"}));
    expect_name("endif");
    return statement;
  }

  StatementPtr parse_set() {
    auto statement = make_statement(StatementKind::kSet);
    take();
    statement->targets.push_back(parse_target("", true));
    if (skip_operator("=")) {
      statement->expressions.push_back(parse_tuple(true));
      return statement;
    }
    statement->kind = StatementKind::kSetBlock;
    statement->expressions.push_back(parse_filters(nullptr, false));
    statement->bodies.push_back(parse_tag_body({"endset"}));
    take();
    return statement;
  }

  StatementPtr parse_with() {
    auto statement = make_statement(StatementKind::kWith);
    take();
    while (current().kind != TokenKind::kTagEnd) {
      if (!statement->targets.empty()) expect_operator(",");
      statement->targets.push_back(parse_target("", false));
      expect_operator("=");
      statement->expressions.push_back(parse_expression());
    }
    statement->bodies.push_back(parse_tag_body({"endwith"}));
    take();
    return statement;
  }

  StatementPtr parse_print() {
    auto statement = make_statement(StatementKind::kOutput);
    take();
    while (current().kind != TokenKind::kTagEnd) {
      if (!statement->expressions.empty()) expect_operator(",");
      statement->expressions.push_back(parse_expression());
    }
    return statement;
  }

  void parse_signature(MacroCode& macro) {
    expect_operator("(");
    std::set<std::string> names;
    while (!at_operator(")")) {
      if (!macro.parameters.empty()) expect_operator(",");
      const int line = current().line;
      macro.parameters.push_back(parse_target_name());
      const std::string& name = macro.parameters.back()->name;
      if (!names.insert(name).second) fail_at(line, fmt::format("two parameters are called '{}'", name));
      if (skip_operator("=")) {
        macro.defaults.push_back(parse_expression());
      } else if (!macro.defaults.empty()) {
        fail_at(line, fmt::format("the parameter '{}' without a default follows one with a default", name));
      }
    }
    expect_operator(")");
  }

  // A function's body: break and continue do not reach loops around it.
  Body parse_function_body(std::string_view end_name) {
    const int loops = std::exchange(loops_, 0);
    Body body = parse_tag_body({end_name});
    take();
    loops_ = loops;
    return body;
  }

  StatementPtr parse_macro() {
    auto statement = make_statement(StatementKind::kMacro);
    take();
    statement->targets.push_back(parse_target_name());
    statement->macro = std::make_unique<MacroCode>();
    statement->macro->name = statement->targets[0]->name;
    parse_signature(*statement->macro);
    statement->macro->body = parse_function_body("endmacro");
    return statement;
  }

  StatementPtr parse_call_block() {
    auto statement = make_statement(StatementKind::kCallBlock);
    take();
    statement->macro = std::make_unique<MacroCode>();
    if (at_operator("(")) parse_signature(*statement->macro);
    ExprPtr call = parse_expression();
    if (call->kind != ExprKind::kCall) fail_at(call->line, "expected the call of a macro");
    statement->expressions.push_back(std::move(call));
    statement->macro->body = parse_function_body("endcall");
    return statement;
  }

  StatementPtr parse_filter_block() {
    auto statement = make_statement(StatementKind::kFilterBlock);
    take();
    statement->expressions.push_back(parse_filters(nullptr, true));
    statement->bodies.push_back(parse_tag_body({"endfilter"}));
    take();
    return statement;
  }

  StatementPtr parse_generation() {
    auto statement = make_statement(StatementKind::kGeneration);
    take();
    statement->bodies.push_back(parse_function_body("endgeneration"));
    has_generation_ = true;
    return statement;
  }

  int loops_ = 0;
  int nested_tags_ = 0;
  bool has_generation_ = false;
};

}  // namespace

std::unique_ptr<Program> parse_program(std::string_view source, const std::string& origin) {
  return Parser(source, origin).run();
}

}  // namespace tessera::jinja
