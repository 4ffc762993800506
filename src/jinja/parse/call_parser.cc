// Calls, filters and tests.
#include <fmt/format.h>

#include <set>
#include <utility>

#include "jinja/parse/expression_parser.h"

namespace tessera::jinja {

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  ExprPtr call = make(ExprKind::kCall, current().line);
  call->operands.push_back(std::move(callee));
  parse_arguments(*call);
  return finish(std::move(call));
}

void ExpressionParser::parse_arguments(Expr& call) {
  const int line = current().line;
  expect_operator("(");
  const auto ensure = [&](bool condition) {
    if (!condition) fail_at(line, "expected positional arguments before those with names");
  };
  bool first = true;
  std::set<std::string> names;
  while (!at_operator(")")) {
    if (!first) expect_operator(",");
    if (!first && at_operator(")")) break;
    first = false;
    if (skip_operator("*")) {
      ensure(call.star_arguments == nullptr && call.star_keywords == nullptr);
      call.star_arguments = parse_expression();
    } else if (skip_operator("**")) {
      ensure(call.star_keywords == nullptr);
      call.star_keywords = parse_expression();
    } else if (current().kind == TokenKind::kName && after_current().kind == TokenKind::kOperator &&
               after_current().text == "=") {
      ensure(call.star_keywords == nullptr);
      KeywordExpr keyword;
      keyword.name = take().text;
      if (!names.insert(keyword.name).second)
        fail_at(line, fmt::format("the argument '{}' is given twice", keyword.name));
      take();
      keyword.value = parse_expression();
      call.keywords.push_back(std::move(keyword));
    } else {
      ensure(call.star_arguments == nullptr && call.star_keywords == nullptr && call.keywords.empty());
      call.operands.push_back(parse_expression());
    }
  }
  expect_operator(")");
}

ExprPtr ExpressionParser::parse_filters(ExprPtr value, bool inline_first) {
  while (inline_first || skip_operator("|")) {
    inline_first = false;
    ExprPtr filter = make(ExprKind::kFilter, current().line);
    filter->name = expect_any_name("the name of a filter");
    while (skip_operator(".")) filter->name += "." + expect_any_name("a name");
    filter->operands.push_back(std::move(value));
    if (at_operator("(")) parse_arguments(*filter);
    value = finish(std::move(filter));
  }
  return value;
}

ExprPtr ExpressionParser::parse_test(ExprPtr value) {
  const int line = take().line;
  const bool negated = skip_name("not");
  ExprPtr test = make(ExprKind::kTest, line);
  test->name = expect_any_name("the name of a test");
  while (skip_operator(".")) test->name += "." + expect_any_name("a name");
  test->operands.push_back(std::move(value));
  const TokenKind kind = current().kind;
  const bool is_value = kind == TokenKind::kName || kind == TokenKind::kString ||
                        kind == TokenKind::kInteger || kind == TokenKind::kFloat || at_operator("[") ||
                        at_operator("{");
  if (at_operator("(")) {
    parse_arguments(*test);
  } else if (is_value && !at_name("else") && !at_name("or") && !at_name("and")) {
    if (at_name("is")) fail_at(line, "expected the end of this test, found 'is': tests cannot be chained");
    test->operands.push_back(parse_postfix(parse_primary()));
  }
  test = finish(std::move(test));
  return negated ? make_operation(ExprKind::kNot, line, std::move(test)) : std::move(test);
}

}  // namespace tessera::jinja
