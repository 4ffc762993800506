
#include <fmt/format.h>

#include <set>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "jinja/filters/functions.h"
#include "jinja/parse/scope.h"

namespace tessera::jinja {
namespace {

// Collects those of `names` that code reads before it assigns them, inner macros and loops included.
class UndeclaredNames {
 public:
  UndeclaredNames(const Body& body, std::set<std::string> names) : names_(std::move(names)) { visit(body); }
  bool has(const std::string& name) const { return found_.count(name) > 0; }

 private:
  void visit(const ExprPtr& expr, bool is_target = false) {
    if (expr == nullptr) return;
    if (expr->kind == ExprKind::kName && names_.count(expr->name) > 0) {
      if (is_target) {
        names_.erase(expr->name);
      } else {
        found_.insert(expr->name);
      }
    }
    for (const ExprPtr& operand : expr->operands) visit(operand, is_target && expr->kind == ExprKind::kTuple);
    for (const KeywordExpr& keyword : expr->keywords) visit(keyword.value);
    visit(expr->star_arguments);
    visit(expr->star_keywords);
  }

  void visit(const Body& body) {
    for (const auto& statement : body) {
      for (const ExprPtr& target : statement->targets) visit(target, true);
      for (const ExprPtr& expr : statement->expressions) visit(expr);
      visit(statement->test);
      for (const Body& inner : statement->bodies) visit(inner);
      if (statement->macro == nullptr) continue;
      for (const ExprPtr& parameter : statement->macro->parameters) visit(parameter, true);
      for (const ExprPtr& value : statement->macro->defaults) visit(value);
      visit(statement->macro->body);
    }
  }

  std::set<std::string> names_, found_;
};

class Binder {
 public:
  explicit Binder(Program& program) : program_(program) {}

  void run() {
    FunctionScope function;
    Scope scope(program_, function, nullptr);
    scope.visit(program_.body);
    program_.start = scope.start();
    Frame frame{scope, function};
    bind(program_.body, frame);
    program_.num_slots = function.num_slots;
    program_.context_missing.resize(program_.context_names.size());
    for (size_t i = 0; i < program_.context_names.size(); ++i) {
      program_.context_missing[i].name = program_.context_names[i];
    }
  }

 private:
  struct Frame {
    Scope& scope;
    FunctionScope& function;
    // Directly inside an if or a conditional, where Jinja looks up filters and tests when it runs.
    bool conditional = false;
  };

  void bind(const Body& body, const Frame& frame) {
    for (const auto& statement : body) bind(*statement, frame);
  }

  void bind(Statement& statement, const Frame& frame) {
    switch (statement.kind) {
      case StatementKind::kOutput:
      case StatementKind::kSet:
        bind_all(statement.expressions, frame);
        return bind_all(statement.targets, frame);
      case StatementKind::kIf:
        return bind_if(statement, frame);
      case StatementKind::kFor:
        return bind_for(statement, frame);
      case StatementKind::kWith:
        bind_all(statement.expressions, frame);
        return bind_with(statement, frame);
      case StatementKind::kSetBlock:
      case StatementKind::kFilterBlock:
        return bind_block(statement, frame);
      case StatementKind::kGeneration:
        return bind_inner(statement, frame, 0);
      case StatementKind::kMacro:
        bind_macro(*statement.macro, frame);
        statement.macro_target = frame.scope.find(statement.macro->name);
        return;
      case StatementKind::kCallBlock:
        bind_macro(*statement.macro, frame);
        return bind_all(statement.expressions, frame);
      case StatementKind::kBreak:
      case StatementKind::kContinue:
        return;
    }
  }

  void bind_if(Statement& statement, Frame frame) {
    frame.conditional = true;
    bind_all(statement.expressions, frame);
    for (const Body& body : statement.bodies) bind(body, frame);
  }

  // Binds a body in a scope of its own.
  void bind_inner(Statement& statement, const Frame& frame, size_t index) {
    Scope scope(program_, frame.function, &frame.scope);
    scope.visit(statement.bodies[index]);
    statement.starts.push_back(scope.start());
    bind(statement.bodies[index], Frame{scope, frame.function});
  }

  void bind_with(Statement& statement, const Frame& frame) {
    Scope scope(program_, frame.function, &frame.scope);
    for (const ExprPtr& target : statement.targets) scope.visit_loop_target(*target);
    scope.visit(statement.bodies[0]);
    statement.starts.push_back(scope.start());
    const Frame inner{scope, frame.function};
    bind_all(statement.targets, inner);
    bind(statement.bodies[0], inner);
  }

  void bind_block(Statement& statement, const Frame& frame) {
    Scope scope(program_, frame.function, &frame.scope);
    const ExprPtr& filter = statement.expressions[0];
    if (filter != nullptr) scope.visit(*filter);
    scope.visit(statement.bodies[0]);
    statement.starts.push_back(scope.start());
    const Frame inner{scope, frame.function};
    if (filter != nullptr) bind(*filter, inner);
    bind(statement.bodies[0], inner);
    bind_all(statement.targets, frame);
  }

  void bind_for(Statement& statement, const Frame& frame) {
    bind_all(statement.expressions, frame);
    FunctionScope own;
    FunctionScope& function = statement.recursive ? own : frame.function;

    Scope scope(program_, function, &frame.scope);
    statement.uses_loop = statement.recursive || UndeclaredNames(statement.bodies[0], {"loop"}).has("loop");
    if (statement.uses_loop) scope.declare_parameter("loop");
    refuse_loop_target(*statement.targets[0]);
    scope.visit_loop_target(*statement.targets[0]);
    scope.visit(statement.bodies[0]);
    statement.starts.push_back(scope.start());
    const Frame inner{scope, function};
    bind_all(statement.targets, inner);
    if (statement.uses_loop) statement.loop = scope.find("loop");
    bind(statement.bodies[0], inner);

    Scope otherwise(program_, function, &frame.scope);
    otherwise.visit(statement.bodies[1]);
    statement.starts.push_back(otherwise.start());
    bind(statement.bodies[1], Frame{otherwise, function});

    if (statement.test != nullptr) {
      Scope test(program_, function, &frame.scope);
      test.visit_loop_target(*statement.test_target);
      test.visit(*statement.test);
      statement.starts.push_back(test.start());
      const Frame test_frame{test, function};
      bind(*statement.test_target, test_frame);
      bind(*statement.test, test_frame);
    }
    statement.num_slots = own.num_slots;
  }

  void refuse_loop_target(const Expr& target) const {
    if (target.kind == ExprKind::kName && target.name == "loop") {
      fail(ExitCode::kBadData, "{}: line {}: a loop's variable cannot be called 'loop'", program_.origin,
           target.line);
    }
    for (const ExprPtr& operand : target.operands) refuse_loop_target(*operand);
  }

  void bind_macro(MacroCode& macro, const Frame& frame) {
    FunctionScope function;
    Scope scope(program_, function, &frame.scope);
    for (const ExprPtr& parameter : macro.parameters) scope.declare_parameter(parameter->name);
    for (const ExprPtr& value : macro.defaults) scope.visit(*value);
    scope.visit(macro.body);

    const UndeclaredNames undeclared(macro.body, {"caller", "kwargs", "varargs"});
    const auto has_parameter = [&](const char* name) {
      for (const ExprPtr& parameter : macro.parameters) {
        if (parameter->name == name) return true;
      }
      return false;
    };
    macro.explicit_caller = has_parameter("caller");
    macro.takes_caller = undeclared.has("caller") && !macro.explicit_caller;
    macro.takes_keywords = undeclared.has("kwargs") && !has_parameter("kwargs");
    macro.takes_varargs = undeclared.has("varargs") && !has_parameter("varargs");
    if (macro.takes_caller) scope.declare_parameter("caller");
    if (macro.takes_keywords) scope.declare_parameter("kwargs");
    if (macro.takes_varargs) scope.declare_parameter("varargs");

    macro.start = scope.start();
    const Frame inner{scope, function};
    bind_all(macro.parameters, inner);
    bind_all(macro.defaults, inner);
    if (macro.takes_caller) macro.caller = scope.find("caller");
    if (macro.takes_keywords) macro.keywords = scope.find("kwargs");
    if (macro.takes_varargs) macro.varargs = scope.find("varargs");
    bind(macro.body, inner);
    macro.num_slots = function.num_slots;
  }

  void bind_all(const std::vector<ExprPtr>& expressions, const Frame& frame) {
    for (const ExprPtr& expr : expressions) {
      if (expr != nullptr) bind(*expr, frame);
    }
  }

  void bind(Expr& expr, Frame frame) {
    if (expr.kind == ExprKind::kConditional) {
      frame.conditional = true;
      expr.name = fmt::format(
          "the inline if-expression on line {} evaluated to false and no else section was defined",
          expr.line);
      expr.missing.hint = expr.name;
    }
    if (expr.kind == ExprKind::kName) {
      expr.variable = frame.scope.find(expr.name);
      expr.missing.name = expr.name;
    } else if (expr.kind == ExprKind::kFilter || expr.kind == ExprKind::kTest) {
      const bool is_filter = expr.kind == ExprKind::kFilter;
      expr.native = is_filter ? find_filter(expr.name) : find_test(expr.name);
      if (expr.native == nullptr && !frame.conditional) {
        fail(ExitCode::kBadData, "{}: line {}: no {} named '{}'{}", program_.origin, expr.line,
             is_filter ? "filter" : "test", printable(expr.name, 60),
             is_filter && is_unsupported_filter(expr.name) ? " is supported" : "");
      }
    } else if (expr.kind == ExprKind::kAttribute) {
      expr.string_method = find_string_method(expr.name);
      expr.dict_method = find_dict_method(expr.name);
      expr.list_method = find_list_method(expr.name);
    }
    expr.name_text = string(expr.name);
    bind_all(expr.operands, frame);
    for (const KeywordExpr& keyword : expr.keywords) bind(*keyword.value, frame);
    if (expr.star_arguments != nullptr) bind(*expr.star_arguments, frame);
    if (expr.star_keywords != nullptr) bind(*expr.star_keywords, frame);
  }

  Program& program_;
};

}  // namespace

void bind_names(Program& program) { Binder(program).run(); }

}  // namespace tessera::jinja
