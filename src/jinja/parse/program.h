// A parsed template: statements and expressions whose names are resolved to slots.
//
// Scopes are those of Jinja's compiler (idtracking.py). The template, each macro, each call block and each
// recursive loop is a function; a call of it has a frame with a slot for every name that it assigns. A name
// that is only read is a variable of the context.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "jinja/values/operators.h"

namespace tessera::jinja {

struct Variable {
  int16_t hops = -1;  // functions outward from the current one; -1: a variable of the context
  int16_t slot = 0;
};

enum class ExprKind : uint8_t {
  kConstant,
  kName,
  kNamespaceAttribute,  // only assigned to: operands[0] is the namespace
  kAttribute,           // operands[0].name
  kItem,                // operands[0][operands[1]]
  kSlice,               // only inside kItem: three operands, null if absent
  kCall,                // operands[0](operands[1...])
  kFilter,              // operands[0] | name(operands[1...]); null operands[0]: the text of the block
  kTest,
  kNot,
  kNegate,
  kPlus,
  kAdd,
  kArithmetic,
  kConcat,
  kAnd,
  kOr,
  kCompare,      // operands[0] comparisons[0] operands[1] ...
  kConditional,  // condition, value, and the else value (may be null)
  kList,
  kTuple,
  kDict,  // keys and values in turn
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct KeywordExpr {
  std::string name;
  ExprPtr value;
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 1;
  int height = 1;     // of the tree below
  Datum constant;     // strings point to `name`
  std::string name;   // of a variable, attribute, filter or test
  Datum name_text;    // `name` as a string
  Undefined missing;  // of a variable: its value if it has none
  Variable variable;
  std::vector<ExprPtr> operands;
  Arithmetic arithmetic = Arithmetic::kSubtract;
  std::vector<Comparison> comparisons;
  std::vector<KeywordExpr> keywords;
  ExprPtr star_arguments, star_keywords;  // f(*a, **b)
  const FunctionEntry* native = nullptr;  // of a filter or test; null: there is none of this name
  // For an attribute: the methods that have this name.
  const FunctionEntry *string_method = nullptr, *dict_method = nullptr, *list_method = nullptr;
};

// The initial value of a slot when its scope is entered.
struct SlotStart {
  enum class From : uint8_t { kMissing, kContext, kOuter } from = From::kMissing;
  int16_t slot = 0;
  Variable source;
};
using ScopeStart = std::vector<SlotStart>;

enum class StatementKind : uint8_t {
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kGeneration,
  kBreak,
  kContinue,
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

// A macro, or the body of a call block.
struct MacroCode {
  std::string name;
  std::vector<ExprPtr> parameters;  // names
  std::vector<ExprPtr> defaults;    // of the last parameters
  Body body;
  ScopeStart start;
  int num_slots = 0;
  bool takes_caller = false, takes_keywords = false, takes_varargs = false;
  bool explicit_caller = false;  // a parameter is called "caller"
  Variable caller, keywords, varargs;
};

struct Statement {
  StatementKind kind = StatementKind::kOutput;
  int line = 1;
  // kOutput: what is written; kIf: the conditions; kFor: what is looped over; kSet: the value; kWith: the
  // values; kCallBlock: the call; kSetBlock, kFilterBlock: the filter (of a set block it may be null).
  std::vector<ExprPtr> expressions;
  std::vector<ExprPtr> targets;  // kFor, kSet, kSetBlock: one
  ExprPtr test;                  // kFor
  // kIf: one for each condition, and one more for else; kFor: the loop's, and else's
  std::vector<Body> bodies;
  std::unique_ptr<MacroCode> macro;  // kMacro, kCallBlock
  Variable macro_target;
  bool recursive = false, uses_loop = false;  // kFor
  Variable loop;
  ExprPtr test_target;             // kFor: the target in the scope of the test
  std::vector<ScopeStart> starts;  // of each of `bodies`; kFor: and of the test
  int num_slots = 0;               // of a recursive loop's function
};

struct Program {
  std::string origin;
  Body body;
  ScopeStart start;
  int num_slots = 0;
  std::vector<std::string> context_names;  // by Variable::slot
  std::unordered_map<std::string, int16_t> context_slots;
  std::vector<Undefined> context_missing;
  bool has_generation = false;
};

// Parses a template into statements, whose names are not resolved yet. Throws Error(kBadData) "origin: line
// 3: expected ..., found ...".
std::unique_ptr<Program> parse_program(std::string_view source, const std::string& origin);
// Resolves names: variables to slots, filters and tests to their functions. Throws Error(kBadData) for a
// filter or test that does not exist.
void bind_names(Program& program);

}  // namespace tessera::jinja
