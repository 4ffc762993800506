#include "jinja/parse/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace tessera::jinja {
namespace {

// Keeps the recursion of the parser, of the binder and of destructors small.
constexpr int kMaxNesting = 200;
constexpr int kMaxHeight = 400;

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> list) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

}  // namespace

class ExpressionParser::Nesting {
 public:
  explicit Nesting(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.nesting_ > kMaxNesting) {
      --parser_.nesting_;
      parser_.fail_at(parser_.current().line, fmt::format("more than {} nested expressions", kMaxNesting));
    }
  }
  ~Nesting() { --parser_.nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  ExpressionParser& parser_;
};

void ExpressionParser::fail_at(int line, const std::string& message) const {
  fail(ExitCode::kBadData, "{}: line {}: {}", origin_, line, printable(message, 400));
}

void ExpressionParser::fail_expected(std::string_view expected) const {
  fail_at(current().line, fmt::format("expected {}, found {}", expected, describe(current())));
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  take();
  return true;
}

bool ExpressionParser::skip_operator(std::string_view text) {
  if (!at_operator(text)) return false;
  take();
  return true;
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail_expected(fmt::format("'{}'", text));
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_expected(fmt::format("'{}'", name));
}

std::string ExpressionParser::expect_any_name(std::string_view what) {
  if (current().kind != TokenKind::kName) fail_expected(what);
  return take().text;
}

void ExpressionParser::expect_kind(TokenKind kind, std::string_view what) {
  if (current().kind != kind) fail_expected(what);
  take();
}

ExprPtr ExpressionParser::make(ExprKind kind, int line) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

ExprPtr ExpressionParser::finish(ExprPtr expr) const {
  int height = 0;
  const auto include = [&](const ExprPtr& child) {
    if (child != nullptr) height = std::max(height, child->height);
  };
  for (const ExprPtr& operand : expr->operands) include(operand);
  for (const KeywordExpr& keyword : expr->keywords) include(keyword.value);
  include(expr->star_arguments);
  include(expr->star_keywords);
  set_height(*expr, height + 1);
  return expr;
}

void ExpressionParser::set_height(Expr& expr, int height) const {
  expr.height = height;
  if (height > kMaxHeight)
    fail_at(expr.line, fmt::format("an expression of more than {} levels", kMaxHeight));
}

ExprPtr ExpressionParser::make_operation(ExprKind kind, int line, ExprPtr a, ExprPtr b) const {
  ExprPtr expr = make(kind, line);
  expr->operands.push_back(std::move(a));
  if (b != nullptr) expr->operands.push_back(std::move(b));
  return finish(std::move(expr));
}

ExprPtr ExpressionParser::make_arithmetic(Arithmetic operation, int line, ExprPtr a, ExprPtr b) const {
  ExprPtr expr = make_operation(ExprKind::kArithmetic, line, std::move(a), std::move(b));
  expr->arithmetic = operation;
  return expr;
}

ExprPtr ExpressionParser::make_constant(const Token& token) const {
  ExprPtr expr = make(ExprKind::kConstant, token.line);
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  if (token.kind == TokenKind::kInteger) {
    const bool has_base = token.text.size() > 2 && token.text[1] > '9';
    const int base = !has_base ? 10 : (token.text[1] | 32) == 'x' ? 16 : (token.text[1] | 32) == 'o' ? 8 : 2;
    int64_t value = 0;
    if (std::from_chars(begin + (has_base ? 2 : 0), end, value, base).ec != std::errc()) {
      fail_at(token.line, fmt::format("the integer {} does not fit in 64 bits", token.text));
    }
    expr->constant = integer(value);
  } else if (token.kind == TokenKind::kFloat) {
    expr->constant = number(std::strtod(begin, nullptr));
  } else {
    expr->name = token.text;
    expr->constant = string(expr->name);
  }
  return expr;
}

ExprPtr ExpressionParser::parse_expression(bool with_conditional) {
  const Nesting nesting(*this);
  if (!with_conditional) return parse_or();
  const int line = current().line;
  ExprPtr value = parse_or();
  while (skip_name("if")) {
    ExprPtr expr = make(ExprKind::kConditional, line);
    expr->operands.push_back(parse_or());
    expr->operands.push_back(std::move(value));
    expr->operands.push_back(skip_name("else") ? parse_expression() : nullptr);
    value = finish(std::move(expr));
  }
  return value;
}

ExprPtr ExpressionParser::parse_or() {
  const int line = current().line;
  ExprPtr left = parse_and();
  while (skip_name("or")) left = make_operation(ExprKind::kOr, line, std::move(left), parse_and());
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  const int line = current().line;
  ExprPtr left = parse_not();
  while (skip_name("and")) left = make_operation(ExprKind::kAnd, line, std::move(left), parse_not());
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  const int line = current().line;
  if (!skip_name("not")) return parse_comparison();
  const Nesting nesting(*this);
  return make_operation(ExprKind::kNot, line, parse_not());
}

bool ExpressionParser::take_comparison(Comparison& comparison) {
  static constexpr std::pair<std::string_view, Comparison> kOperators[] = {
      {"==", Comparison::kEqual},     {"!=", Comparison::kNotEqual},     {"<", Comparison::kLess},
      {"<=", Comparison::kLessEqual}, {">=", Comparison::kGreaterEqual}, {">", Comparison::kGreater}};
  for (const auto& [text, kind] : kOperators) {
    if (!skip_operator(text)) continue;
    comparison = kind;
    return true;
  }
  comparison = at_name("not") ? Comparison::kNotIn : Comparison::kIn;
  if (skip_name("in")) return true;
  if (!at_name("not") || after_current().kind != TokenKind::kName || after_current().text != "in")
    return false;
  take();
  take();
  return true;
}

ExprPtr ExpressionParser::parse_comparison() {
  const int line = current().line;
  ExprPtr first = parse_sum();
  Comparison comparison;
  if (!take_comparison(comparison)) return first;
  ExprPtr expr = make(ExprKind::kCompare, line);
  expr->operands.push_back(std::move(first));
  do {
    expr->comparisons.push_back(comparison);
    expr->operands.push_back(parse_sum());
  } while (take_comparison(comparison));
  return finish(std::move(expr));
}

ExprPtr ExpressionParser::parse_sum() {
  const int line = current().line;
  ExprPtr left = parse_concat();
  while (at_operator("+") || at_operator("-")) {
    const bool is_sum = take().text == "+";
    ExprPtr right = parse_concat();
    if (!is_sum) {
      left = make_arithmetic(Arithmetic::kSubtract, line, std::move(left), std::move(right));
    } else if (left->kind == ExprKind::kAdd) {
      // a + b + c is one node, which is flat however long it is.
      set_height(*left, std::max(left->height, right->height + 1));
      left->operands.push_back(std::move(right));
    } else {
      left = make_operation(ExprKind::kAdd, line, std::move(left), std::move(right));
    }
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  const int line = current().line;
  ExprPtr first = parse_product();
  if (!at_operator("~")) return first;
  ExprPtr expr = make(ExprKind::kConcat, line);
  expr->operands.push_back(std::move(first));
  while (skip_operator("~")) expr->operands.push_back(parse_product());
  return finish(std::move(expr));
}

ExprPtr ExpressionParser::parse_product() {
  static constexpr std::pair<std::string_view, Arithmetic> kOperators[] = {{"*", Arithmetic::kMultiply},
                                                                           {"/", Arithmetic::kDivide},
                                                                           {"//", Arithmetic::kFloorDivide},
                                                                           {"%", Arithmetic::kModulo}};
  const int line = current().line;
  ExprPtr left = parse_power();
  while (true) {
    const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                     [&](const auto& entry) { return at_operator(entry.first); });
    if (found == std::end(kOperators)) return left;
    take();
    left = make_arithmetic(found->second, line, std::move(left), parse_power());
  }
}

// Jinja's ** groups from the left, unlike Python's.
ExprPtr ExpressionParser::parse_power() {
  const int line = current().line;
  ExprPtr left = parse_unary();
  while (skip_operator("**"))
    left = make_arithmetic(Arithmetic::kPower, line, std::move(left), parse_unary());
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  const Nesting nesting(*this);
  const int line = current().line;
  ExprPtr value;
  if (skip_operator("-")) {
    value = make_operation(ExprKind::kNegate, line, parse_unary(false));
  } else if (skip_operator("+")) {
    value = make_operation(ExprKind::kPlus, line, parse_unary(false));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filters_and_tests(std::move(value)) : std::move(value);
}

ExprPtr ExpressionParser::parse_primary(bool with_namespace) {
  const Token token = current();
  if (token.kind == TokenKind::kName) {
    take();
    ExprPtr expr = make(ExprKind::kConstant, token.line);
    if (is_one_of(token.text, {"true", "True", "false", "False"})) {
      expr->constant = boolean(token.text == "true" || token.text == "True");
      return expr;
    }
    if (is_one_of(token.text, {"none", "None"})) {
      expr->constant = none();
      return expr;
    }
    expr->kind = ExprKind::kName;
    expr->name = token.text;
    if (!with_namespace || !skip_operator(".")) return expr;
    ExprPtr attribute = make_operation(ExprKind::kNamespaceAttribute, token.line, std::move(expr));
    attribute->name = expect_any_name("the name of an attribute");
    return attribute;
  }
  if (token.kind == TokenKind::kString) {
    Token whole = take();
    while (current().kind == TokenKind::kString) whole.text += take().text;
    return make_constant(whole);
  }
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) return make_constant(take());
  if (skip_operator("(")) {
    ExprPtr value = parse_tuple(true, "", /*in_parentheses=*/true);
    expect_operator(")");
    return value;
  }
  if (at_operator("[") || at_operator("{")) return parse_list_or_dict();
  fail_expected("an expression");
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  return current().kind == TokenKind::kExpressionEnd || current().kind == TokenKind::kTagEnd ||
         at_operator(")") || (!end_name.empty() && at_name(end_name));
}

ExprPtr ExpressionParser::parse_tuple(bool with_conditional, std::string_view end_name, bool in_parentheses,
                                      TupleKind kind) {
  const int line = current().line;
  ExprPtr tuple = make(ExprKind::kTuple, line);
  bool has_comma = false;
  while (!at_tuple_end(end_name)) {
    tuple->operands.push_back(kind == TupleKind::kExpressions
                                  ? parse_expression(with_conditional)
                                  : parse_primary(kind == TupleKind::kTargetsOrAttributes));
    if (!skip_operator(",")) break;
    has_comma = true;
  }
  if (!has_comma && !tuple->operands.empty()) return std::move(tuple->operands[0]);
  if (!has_comma && !in_parentheses) fail_expected("an expression");
  return finish(std::move(tuple));
}

void ExpressionParser::check_target(const Expr& target) const {
  if (target.kind == ExprKind::kTuple) {
    for (const ExprPtr& part : target.operands) check_target(*part);
  } else if (target.kind != ExprKind::kName && target.kind != ExprKind::kNamespaceAttribute) {
    fail_at(target.line, "expected a name to assign to, found another expression");
  }
}

ExprPtr ExpressionParser::parse_target(std::string_view end_name, bool with_namespace) {
  ExprPtr target = parse_tuple(true, end_name, false,
                               with_namespace ? TupleKind::kTargetsOrAttributes : TupleKind::kTargets);
  check_target(*target);
  return target;
}

ExprPtr ExpressionParser::parse_target_name() {
  const Token token = current();
  ExprPtr name = make(ExprKind::kName, token.line);
  name->name = expect_any_name("a name");
  if (is_one_of(name->name, {"true", "True", "false", "False", "none", "None"})) {
    fail_at(token.line, fmt::format("expected a name to assign to, found '{}'", name->name));
  }
  return name;
}

ExprPtr ExpressionParser::parse_list_or_dict() {
  const Token open = take();
  const bool is_dict = open.text == "{";
  const std::string_view close = is_dict ? "}" : "]";
  ExprPtr display = make(is_dict ? ExprKind::kDict : ExprKind::kList, open.line);
  while (!at_operator(close)) {
    if (!display->operands.empty()) expect_operator(",");
    if (at_operator(close)) break;
    display->operands.push_back(parse_expression());
    if (!is_dict) continue;
    expect_operator(":");
    display->operands.push_back(parse_expression());
  }
  expect_operator(close);
  return finish(std::move(display));
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr value) {
  while (true) {
    if (at_operator(".") || at_operator("[")) {
      value = parse_attribute_or_item(std::move(value));
    } else if (at_operator("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::parse_filters_and_tests(ExprPtr value) {
  while (true) {
    if (at_operator("|")) {
      value = parse_filters(std::move(value), false);
    } else if (at_name("is")) {
      value = parse_test(std::move(value));
    } else if (at_operator("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::parse_attribute_or_item(ExprPtr value) {
  const Token token = take();
  if (token.text == ".") {
    if (current().kind == TokenKind::kInteger) {
      return make_operation(ExprKind::kItem, token.line, std::move(value), make_constant(take()));
    }
    ExprPtr expr = make_operation(ExprKind::kAttribute, token.line, std::move(value));
    expr->name = expect_any_name("a name or number after '.'");
    return expr;
  }
  ExprPtr index = make(ExprKind::kTuple, token.line);
  while (!at_operator("]")) {
    if (!index->operands.empty()) expect_operator(",");
    index->operands.push_back(parse_index());
  }
  expect_operator("]");
  if (index->operands.size() == 1) index = std::move(index->operands[0]);
  return make_operation(ExprKind::kItem, token.line, std::move(value), finish(std::move(index)));
}

// a, a:b, a:b:c, with any of them absent.
ExprPtr ExpressionParser::parse_index() {
  const int line = current().line;
  ExprPtr first = at_operator(":") ? nullptr : parse_expression();
  if (!skip_operator(":")) return first;
  ExprPtr slice = make(ExprKind::kSlice, line);
  slice->operands.push_back(std::move(first));
  const auto at_end = [&] { return at_operator(":") || at_operator("]") || at_operator(","); };
  slice->operands.push_back(at_end() ? nullptr : parse_expression());
  const bool has_step = skip_operator(":");
  slice->operands.push_back(!has_step || at_end() ? nullptr : parse_expression());
  return finish(std::move(slice));
}

}  // namespace tessera::jinja
