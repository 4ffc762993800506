// The names of one scope, found as Jinja's idtracking.py finds them: a name that a scope only reads belongs
// to the scope outside; a name that it assigns is its own, and starts with what the name means outside.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "jinja/parse/program.h"

namespace tessera::jinja {

// A template, macro, call block or recursive loop while it is bound.
struct FunctionScope {
  int num_slots = 0;
};

class Scope {
 public:
  Scope(Program& program, FunctionScope& function, const Scope* outer)
      : program_(program), function_(function), outer_(outer) {}

  // Look through code that runs in this scope, before it is bound.
  void visit(const Body& body);
  void visit(const Expr& expr, bool is_target = false);
  void visit_loop_target(const Expr& target);
  void declare_parameter(const std::string& name);
  void store(const std::string& name);

  // Finds a variable once all code of the scope has been visited.
  Variable find(const std::string& name) const;
  ScopeStart start();  // gives the names of the scope their slots

 private:
  enum class Load { kParameter, kContext, kOuter, kMissing };
  struct Names {
    std::map<std::string, Load> loads;
    std::set<std::string> stores;
  };
  // The earlier state of a name, so that what a branch of an if has added can be taken back.
  struct Change {
    std::string name;
    bool is_store;
    std::optional<Load> before;
  };

  void load(const std::string& name);
  void visit(const Statement& statement);
  void visit_if(const Statement& statement);
  void set_load(const std::string& name, Load load);
  void add_store(const std::string& name);
  Names take_back(size_t num_changes);
  bool knows(const std::string& name) const;
  bool in_context(const std::string& name) const;
  int16_t context_slot(const std::string& name) const;

  Program& program_;
  FunctionScope& function_;
  const Scope* outer_;
  Names names_;
  std::vector<Change> changes_;
  std::map<std::string, int16_t> slots_;
};

}  // namespace tessera::jinja
