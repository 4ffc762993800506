// Expressions.
#include <algorithm>

#include "jinja/filters/functions.h"
#include "jinja/runtime/interpreter.h"
#include "jinja/values/operators.h"
#include "jinja/values/python_text.h"
#include "jinja/values/text_builder.h"

namespace tessera::jinja {

void Interpreter::write(const Datum& value) {
  if (value.is_string()) return r_.write(r_.text(value));
  if (value.is_undefined()) return;
  TextBuilder text(r_);
  append_str(r_, text, value);
  r_.write(text);
}

// Sums of strings are written piece by piece, without the whole in memory.
void Interpreter::write(const Expr& expr) {
  if (expr.kind == ExprKind::kConstant) return write(expr.constant);
  if (expr.kind == ExprKind::kAdd) return write_sum(expr);
  write(evaluate(expr));
}

void Interpreter::write_sum(const Expr& expr) {
  const Rendering::Nesting nesting(r_);
  const size_t size = expr.operands.size();
  Datum* values = r_.array<Datum>(static_cast<int64_t>(size));
  bool plain = true;
  for (size_t i = 0; i < size; ++i) {
    values[i] = evaluate(*expr.operands[i]);
    plain = plain && values[i].is_string() && !values[i].markup;
    // The sum so far fails before what follows is evaluated.
    if (!plain && i > 0) {
      Datum sum = values[0];
      for (size_t k = 1; k <= i; ++k) sum = add(r_, sum, values[k]);
      for (size_t k = i + 1; k < size; ++k) sum = add(r_, sum, evaluate(*expr.operands[k]));
      return write(sum);
    }
  }
  for (size_t i = 0; i < size; ++i) r_.write(r_.text(values[i]));
}

// Whatever has operands is one level deeper than what uses it.
Datum Interpreter::evaluate(const Expr& expr) {
  r_.step();
  if (expr.kind == ExprKind::kConstant) return expr.constant;
  if (expr.kind == ExprKind::kName) {
    const Datum value = load(expr.variable);
    return value.is_missing() ? undefined(&expr.missing) : value;
  }
  const Rendering::Nesting nesting(r_);
  switch (expr.kind) {
    case ExprKind::kAttribute:
      return evaluate_attribute(expr);
    case ExprKind::kAnd: {
      const Datum left = evaluate(*expr.operands[0]);
      return is_true(left) ? evaluate(*expr.operands[1]) : left;
    }
    case ExprKind::kOr: {
      const Datum left = evaluate(*expr.operands[0]);
      return is_true(left) ? left : evaluate(*expr.operands[1]);
    }
    case ExprKind::kConditional:
      if (is_true(evaluate(*expr.operands[0]))) return evaluate(*expr.operands[1]);
      return expr.operands[2] == nullptr ? undefined(&expr.missing) : evaluate(*expr.operands[2]);
    default:
      r_.line = expr.line;
      return evaluate_rest(expr);
  }
}

Datum Interpreter::evaluate_rest(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kItem:
      return evaluate_item(expr);
    case ExprKind::kCall:
      return evaluate_call(expr);
    case ExprKind::kFilter:
      return evaluate_filter(expr);
    case ExprKind::kTest:
      return evaluate_test(expr);
    case ExprKind::kNot:
      return boolean(!is_true(evaluate(*expr.operands[0])));
    case ExprKind::kNegate:
      return negate(r_, evaluate(*expr.operands[0]));
    case ExprKind::kPlus:
      return plus(r_, evaluate(*expr.operands[0]));
    case ExprKind::kAdd:
      return evaluate_sum(expr);
    case ExprKind::kConcat:
      return evaluate_concat(expr);
    case ExprKind::kCompare:
      return boolean(evaluate_comparison(expr));
    case ExprKind::kList:
    case ExprKind::kTuple:
      return evaluate_list(expr);
    case ExprKind::kDict:
      return evaluate_dict(expr);
    case ExprKind::kSlice:
      r_.fail("a slice among several subscripts is not supported");
    default: {
      const Datum left = evaluate(*expr.operands[0]);
      return arithmetic(r_, expr.arithmetic, left, evaluate(*expr.operands[1]));
    }
  }
}

Datum Interpreter::evaluate_attribute(const Expr& expr) {
  const Datum object = evaluate(*expr.operands[0]);
  if (object.is(Kind::kDict) && expr.dict_method == nullptr) {
    const Datum found = dict_find(r_, object, expr.name);
    if (!found.is_missing()) return found;
  }
  r_.line = expr.line;
  return get_attribute(r_, object, expr.name);
}

Datum Interpreter::evaluate_item(const Expr& expr) {
  const Datum object = evaluate(*expr.operands[0]);
  const Expr& index = *expr.operands[1];
  if (index.kind != ExprKind::kSlice) return get_item(r_, object, evaluate(index));
  Datum bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (index.operands[i] != nullptr) bounds[i] = evaluate(*index.operands[i]);
  }
  return get_slice(r_, object, bounds[0], bounds[1], bounds[2]);
}

Arguments Interpreter::evaluate_arguments(const Expr& expr, const Datum* caller) {
  if (expr.star_arguments != nullptr || expr.star_keywords != nullptr)
    return evaluate_star_arguments(expr, caller);
  Arguments args;
  args.size = static_cast<int64_t>(expr.operands.size()) - 1;
  if (args.size > 0) {
    Datum* items = r_.array<Datum>(args.size);
    for (int64_t i = 0; i < args.size; ++i) items[i] = evaluate(*expr.operands[static_cast<size_t>(i + 1)]);
    args.items = items;
  }
  args.num_keywords = static_cast<int64_t>(expr.keywords.size()) + (caller != nullptr ? 1 : 0);
  if (args.num_keywords == 0) return args;
  Keyword* keywords = r_.array<Keyword>(args.num_keywords);
  int64_t k = 0;
  for (const KeywordExpr& keyword : expr.keywords) keywords[k++] = {keyword.name, evaluate(*keyword.value)};
  if (caller != nullptr) keywords[k] = {"caller", *caller};
  args.keywords = keywords;
  return args;
}

Arguments Interpreter::evaluate_star_arguments(const Expr& expr, const Datum* caller) {
  ListBuilder items(r_);
  for (size_t i = 1; i < expr.operands.size(); ++i) items.push(evaluate(*expr.operands[i]));
  if (expr.star_arguments != nullptr) {
    const Datum more = to_list(r_, evaluate(*expr.star_arguments));
    for (int64_t i = 0; i < more.list->size; ++i) items.push(more.list->items[i]);
  }
  Datum more = dictionary(r_.make(Dict{}));
  const size_t num_fixed = expr.keywords.size() + (caller != nullptr ? 1 : 0);
  std::vector<Keyword> fixed;
  for (const KeywordExpr& keyword : expr.keywords) fixed.push_back({keyword.name, evaluate(*keyword.value)});
  if (caller != nullptr) fixed.push_back({"caller", *caller});
  if (expr.star_keywords != nullptr) more = evaluate(*expr.star_keywords);
  if (more.is_undefined()) r_.fail_undefined(more);
  if (!is_mapping(more)) r_.fail("argument after ** must be a mapping, not {}", type_name(more));
  const int64_t num_more = *size_of(more);
  Keyword* keywords = r_.array<Keyword>(static_cast<int64_t>(num_fixed) + num_more);
  std::copy(fixed.begin(), fixed.end(), keywords);
  for (int64_t i = 0; i < num_more; ++i) {
    const Entry entry = dict_entry(r_, more, i);
    r_.step(1 + std::ssize(fixed) / 16);
    if (!entry.key.is_string()) r_.fail("keywords must be strings");
    const std::string_view name = r_.text(entry.key);
    for (const Keyword& other : fixed) {
      if (other.name == name) r_.fail("got multiple values for keyword argument '{}'", name);
    }
    keywords[static_cast<int64_t>(num_fixed) + i] = {name, entry.value};
  }
  return {items.items(), items.size(), keywords, static_cast<int64_t>(num_fixed) + num_more};
}

Datum Interpreter::evaluate_call(const Expr& expr, const Datum* caller) {
  const Expr& callee = *expr.operands[0];
  if (callee.kind != ExprKind::kAttribute) {
    const Datum function = evaluate(callee);
    return call(function, evaluate_arguments(expr, caller));
  }
  // A method is called without a bound object in between.
  const Datum object = evaluate(*callee.operands[0]);
  const FunctionEntry* method = object.is_string()       ? callee.string_method
                                : object.is(Kind::kDict) ? callee.dict_method
                                : object.is(Kind::kList) ? callee.list_method
                                                         : nullptr;
  if (method != nullptr && !method->is(refused_method)) {
    const Arguments args = evaluate_arguments(expr, caller);
    r_.line = expr.line;
    return r_.call(*method, object, args);
  }
  r_.line = callee.line;
  const Datum function = get_attribute(r_, object, callee.name);
  return call(function, evaluate_arguments(expr, caller));
}

Datum Interpreter::evaluate_filter(const Expr& expr, const Datum* text) {
  const Rendering::Nesting nesting(r_);
  const ExprPtr& operand = expr.operands[0];
  const bool is_filter_of_block = text != nullptr && operand != nullptr && operand->kind == ExprKind::kFilter;
  const Datum value = operand == nullptr   ? *text
                      : is_filter_of_block ? evaluate_filter(*operand, text)
                                           : evaluate(*operand);
  const Arguments args = evaluate_arguments(expr);
  r_.line = expr.line;
  if (expr.native == nullptr) r_.fail("no filter named '{}'", expr.name);
  return r_.call(*expr.native, value, args);
}

Datum Interpreter::evaluate_test(const Expr& expr) {
  const Datum value = evaluate(*expr.operands[0]);
  const Arguments args = evaluate_arguments(expr);
  r_.line = expr.line;
  if (expr.native == nullptr) r_.fail("no test named '{}'", expr.name);
  return r_.call(*expr.native, value, args);
}

Datum Interpreter::evaluate_sum(const Expr& expr) {
  Datum sum = evaluate(*expr.operands[0]);
  for (size_t i = 1; i < expr.operands.size(); ++i) sum = add(r_, sum, evaluate(*expr.operands[i]));
  return sum;
}

Datum Interpreter::evaluate_concat(const Expr& expr) {
  const size_t size = expr.operands.size();
  Datum* parts = r_.array<Datum>(static_cast<int64_t>(size));
  int64_t bytes = 0;
  for (size_t i = 0; i < size; ++i) {
    parts[i] = evaluate(*expr.operands[i]);
  }
  for (size_t i = 0; i < size; ++i) {
    parts[i] = to_str(r_, parts[i]);
    bytes += parts[i].size;
  }
  char* out = r_.string_room(bytes);
  char* at = out;
  for (size_t i = 0; i < size; ++i) {
    const std::string_view part = r_.text(parts[i]);
    r_.copied(part, at);
    at = std::copy_n(part.data(), part.size(), at);
  }
  return string({out, static_cast<size_t>(bytes)});
}

bool Interpreter::evaluate_comparison(const Expr& expr) {
  Datum left = evaluate(*expr.operands[0]);
  for (size_t i = 0; i < expr.comparisons.size(); ++i) {
    const Datum right = evaluate(*expr.operands[i + 1]);
    if (!compare(r_, expr.comparisons[i], left, right)) return false;
    left = right;
  }
  return true;
}

Datum Interpreter::evaluate_list(const Expr& expr) {
  const auto size = static_cast<int64_t>(expr.operands.size());
  Datum* items = r_.array<Datum>(size);
  for (int64_t i = 0; i < size; ++i) items[i] = evaluate(*expr.operands[static_cast<size_t>(i)]);
  return sequence(r_.make(List{items, size}), expr.kind == ExprKind::kList ? Kind::kList : Kind::kTuple);
}

Datum Interpreter::evaluate_dict(const Expr& expr) {
  Entry* entries = r_.array<Entry>(static_cast<int64_t>(expr.operands.size() / 2));
  int64_t size = 0;
  for (size_t i = 0; i + 1 < expr.operands.size(); i += 2) {
    const Datum key = evaluate(*expr.operands[i]);
    dict_insert(r_, entries, size, key, evaluate(*expr.operands[i + 1]));
  }
  return dictionary(r_.make(Dict{entries, size}));
}

}  // namespace tessera::jinja
