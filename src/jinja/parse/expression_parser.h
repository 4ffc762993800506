// The grammar of expressions, and the token stream that the grammar of statements shares with it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/parse/lexer.h"
#include "jinja/parse/program.h"

namespace tessera::jinja {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, const std::string& origin)
      : origin_(origin), tokens_(std::move(tokens)) {}

 protected:
  enum class TupleKind { kExpressions, kTargets, kTargetsOrAttributes };

  const Token& current() const { return tokens_[pos_]; }
  const Token& after_current() const { return tokens_[pos_ + 1 < tokens_.size() ? pos_ + 1 : pos_]; }
  Token take() { return tokens_[pos_ + 1 < tokens_.size() ? pos_++ : pos_]; }
  bool at_name(std::string_view name) const {
    return current().kind == TokenKind::kName && current().text == name;
  }
  bool at_operator(std::string_view text) const {
    return current().kind == TokenKind::kOperator && current().text == text;
  }
  size_t position() const { return pos_; }
  void move_to(size_t position) { pos_ = position; }
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view name);
  std::string expect_any_name(std::string_view what);
  void expect_kind(TokenKind kind, std::string_view what);
  [[noreturn]] void fail_expected(std::string_view expected) const;
  [[noreturn]] void fail_at(int line, const std::string& message) const;

  ExprPtr make(ExprKind kind, int line) const;
  ExprPtr make_constant(const Token& token) const;
  // Computes the height from the children and limits it.
  ExprPtr finish(ExprPtr expr) const;
  void set_height(Expr& expr, int height) const;
  ExprPtr make_operation(ExprKind kind, int line, ExprPtr a, ExprPtr b = nullptr) const;
  ExprPtr make_arithmetic(Arithmetic operation, int line, ExprPtr a, ExprPtr b) const;

  ExprPtr parse_expression(bool with_conditional = true);
  // Expressions with commas between them; one without a comma is no tuple. Ends before `end_name`.
  ExprPtr parse_tuple(bool with_conditional, std::string_view end_name = "", bool in_parentheses = false,
                      TupleKind kind = TupleKind::kExpressions);
  // Parses an assignment target: names, tuples of them, and attributes of namespaces.
  ExprPtr parse_target(std::string_view end_name, bool with_namespace);
  ExprPtr parse_target_name();
  // Filters after `value`, which may be null; with a filter's name first if `inline_first`.
  ExprPtr parse_filters(ExprPtr value, bool inline_first);

  const std::string& origin_;

 private:
  class Nesting;

  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_comparison();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters = true);
  ExprPtr parse_primary(bool with_namespace = false);
  ExprPtr parse_postfix(ExprPtr value);
  ExprPtr parse_filters_and_tests(ExprPtr value);
  ExprPtr parse_attribute_or_item(ExprPtr value);
  ExprPtr parse_index();
  ExprPtr parse_call(ExprPtr callee);
  void parse_arguments(Expr& call);
  ExprPtr parse_test(ExprPtr value);
  ExprPtr parse_list_or_dict();
  bool at_tuple_end(std::string_view end_name) const;
  bool take_comparison(Comparison& comparison);
  void check_target(const Expr& target) const;

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int nesting_ = 0;
};

}  // namespace tessera::jinja
