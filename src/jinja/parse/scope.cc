#include "jinja/parse/scope.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/error.h"

namespace tessera::jinja {
namespace {

int16_t checked_slot(const Program& program, size_t count) {
  if (count >= static_cast<size_t>(std::numeric_limits<int16_t>::max())) {
    fail(ExitCode::kBadData, "{}: the template has too many variables", program.origin);
  }
  return static_cast<int16_t>(count);
}

}  // namespace

bool Scope::knows(const std::string& name) const {
  return names_.loads.count(name) > 0 || (outer_ != nullptr && outer_->knows(name));
}

void Scope::set_load(const std::string& name, Load load) {
  const auto [at, is_new] = names_.loads.try_emplace(name, load);
  changes_.push_back({name, false, is_new ? std::nullopt : std::optional(at->second)});
  at->second = load;
}

void Scope::add_store(const std::string& name) {
  if (names_.stores.insert(name).second) changes_.push_back({name, true, std::nullopt});
}

// Takes the changes after the first `num_changes` back, and returns what they added.
Scope::Names Scope::take_back(size_t num_changes) {
  Names added;
  for (; changes_.size() > num_changes; changes_.pop_back()) {
    const Change& change = changes_.back();
    if (change.is_store) {
      added.stores.insert(change.name);
      names_.stores.erase(change.name);
    } else if (change.before) {
      names_.loads[change.name] = *change.before;
    } else {
      const auto at = names_.loads.find(change.name);
      added.loads.insert(*at);
      names_.loads.erase(at);
    }
  }
  return added;
}

void Scope::load(const std::string& name) {
  if (!knows(name)) set_load(name, Load::kContext);
}

void Scope::store(const std::string& name) {
  add_store(name);
  if (names_.loads.count(name) > 0) return;
  set_load(name, outer_ != nullptr && outer_->knows(name) ? Load::kOuter : Load::kMissing);
}

void Scope::declare_parameter(const std::string& name) {
  add_store(name);
  set_load(name, Load::kParameter);
}

void Scope::visit(const Expr& expr, bool is_target) {
  if (expr.kind == ExprKind::kName) return is_target ? store(expr.name) : load(expr.name);
  // The namespace whose attribute is assigned to is read.
  const bool assigns = is_target && expr.kind == ExprKind::kTuple;
  for (const ExprPtr& operand : expr.operands) {
    if (operand != nullptr) visit(*operand, assigns);
  }
  for (const KeywordExpr& keyword : expr.keywords) visit(*keyword.value);
  if (expr.star_arguments != nullptr) visit(*expr.star_arguments);
  if (expr.star_keywords != nullptr) visit(*expr.star_keywords);
}

void Scope::visit_loop_target(const Expr& target) {
  if (target.kind == ExprKind::kName) return declare_parameter(target.name);
  for (const ExprPtr& operand : target.operands) visit_loop_target(*operand);
}

void Scope::visit(const Body& body) {
  for (const auto& statement : body) visit(*statement);
}

// Bodies of inner scopes are visited when those are bound.
void Scope::visit(const Statement& statement) {
  if (statement.kind == StatementKind::kIf) return visit_if(statement);
  for (const ExprPtr& expr : statement.expressions) {
    if (expr != nullptr && statement.kind != StatementKind::kSetBlock) visit(*expr);
  }
  const bool assigns_here = statement.kind == StatementKind::kSet ||
                            statement.kind == StatementKind::kSetBlock ||
                            statement.kind == StatementKind::kMacro;
  if (assigns_here) visit(*statement.targets[0], /*is_target=*/true);
}

// Each branch sees what was known before; a name assigned in any of them is this scope's own, and without
// that branch it has its outer value.
void Scope::visit_if(const Statement& statement) {
  std::vector<Names> branches;
  for (size_t i = 0; i < statement.bodies.size(); ++i) {
    if (i < statement.expressions.size()) {
      // Jinja visits the condition of an elif in its branch, which makes no difference to what it reads.
      visit(*statement.expressions[i]);
    }
    const size_t num_changes = changes_.size();
    visit(statement.bodies[i]);
    branches.push_back(take_back(num_changes));
  }
  for (const Names& branch : branches) {
    for (const auto& [name, load] : branch.loads) {
      if (names_.loads.count(name) == 0) set_load(name, load);
    }
    for (const std::string& name : branch.stores) {
      add_store(name);
      set_load(name, outer_ != nullptr && outer_->knows(name) ? Load::kOuter : Load::kContext);
    }
  }
}

bool Scope::in_context(const std::string& name) const {
  const auto load = names_.loads.find(name);
  return load->second == Load::kContext && names_.stores.count(name) == 0;
}

int16_t Scope::context_slot(const std::string& name) const {
  auto& names = program_.context_names;
  const auto [at, is_new] = program_.context_slots.try_emplace(name, checked_slot(program_, names.size()));
  if (is_new) names.push_back(name);
  return at->second;
}

Variable Scope::find(const std::string& name) const {
  int16_t hops = 0;
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer_) {
    if (scope->names_.loads.count(name) > 0) {
      if (scope->in_context(name)) return {-1, context_slot(name)};
      return {hops, scope->slots_.at(name)};
    }
    if (scope->outer_ != nullptr && &scope->outer_->function_ != &scope->function_) ++hops;
  }
  return {-1, context_slot(name)};
}

ScopeStart Scope::start() {
  ScopeStart start;
  for (const auto& [name, load] : names_.loads) {
    if (in_context(name)) continue;
    SlotStart slot;
    slot.slot = checked_slot(program_, static_cast<size_t>(function_.num_slots++));
    slots_[name] = slot.slot;
    if (load == Load::kParameter) continue;
    if (load == Load::kContext) {
      slot.from = SlotStart::From::kContext;
      slot.source = {-1, context_slot(name)};
    } else if (load == Load::kOuter) {
      slot.from = SlotStart::From::kOuter;
      slot.source = outer_->find(name);
      if (slot.source.hops >= 0 && &outer_->function_ != &function_) ++slot.source.hops;
    }
    start.push_back(slot);
  }
  return start;
}

}  // namespace tessera::jinja
