// Runs a template's statements and evaluates its expressions.
#pragma once

#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "jinja/parse/program.h"
#include "jinja/values/rendering.h"

namespace tessera::jinja {

// The variables of one call of a function.
struct Frame {
  Frame* outer;  // of the function around it
  Datum* slots;
};

class Interpreter;

// A loop that runs, and what is left to loop over.
struct ActiveLoop final : Loop {
  explicit ActiveLoop(Interpreter& of) : interpreter(of) {}
  Datum attribute(std::string_view name) override;

  Interpreter& interpreter;
  const Statement* statement = nullptr;
  Frame* frame = nullptr;  // of the loop's body
  Frame* outer = nullptr;  // where the loop stands
  Datum items;             // a list
  int64_t next = 0;        // the item that is looked at next
  int64_t index0 = -1;
  int64_t depth0 = 0;
  bool filtered = false;  // the loop's test was applied to all items
  Datum before, current, after;
  Datum last_changed;
};

class Interpreter {
 public:
  Interpreter(Rendering& r, const Program& program, const Value::Object& context);

  // Writes to the rendering's output.
  void run();
  std::vector<std::pair<int64_t, int64_t>> generation() && { return std::move(generation_); }
  std::vector<TracedItem> traced_items() && { return std::move(traced_items_); }

  Datum loop_attribute(ActiveLoop& loop, std::string_view name);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  Flow run(const Body& body);
  Flow run(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_for(const Statement& statement);
  Flow run_generation(const Statement& statement);
  Flow run_captured(const Statement& statement, Datum& text);
  void run_with(const Statement& statement);
  void call_block(const Statement& statement);
  void loop_over(const Statement& statement, const Datum& iterable, Frame* outer, int64_t depth0, Flow& flow);
  Flow run_item(const Statement& statement, const Datum& item);
  Datum next_item(ActiveLoop& loop);
  bool passes(ActiveLoop& loop, const Datum& item);
  void enter(const ScopeStart& start);
  void assign(const Expr& target, const Datum& value);
  Frame* make_frame(Frame* outer, int num_slots);
  Datum make_macro(const MacroCode& code);

  void write(const Expr& expr);
  void write_sum(const Expr& expr);
  void write(const Datum& value);

  Datum& slot(Variable variable) {
    Frame* frame = frame_;
    for (int hops = variable.hops; hops > 0; --hops) frame = frame->outer;
    return frame->slots[variable.slot];
  }
  Datum load(Variable variable) {
    return variable.hops < 0 ? context_[static_cast<size_t>(variable.slot)] : slot(variable);
  }

  Datum evaluate(const Expr& expr);
  Datum evaluate_rest(const Expr& expr);
  Datum evaluate_item(const Expr& expr);
  Datum evaluate_attribute(const Expr& expr);
  Datum evaluate_call(const Expr& expr, const Datum* caller = nullptr);
  Datum evaluate_filter(const Expr& expr, const Datum* text = nullptr);
  Datum evaluate_test(const Expr& expr);
  Datum evaluate_sum(const Expr& expr);
  Datum evaluate_concat(const Expr& expr);
  Datum evaluate_list(const Expr& expr);
  Datum evaluate_dict(const Expr& expr);
  bool evaluate_comparison(const Expr& expr);
  Arguments evaluate_arguments(const Expr& expr, const Datum* caller = nullptr);
  Arguments evaluate_star_arguments(const Expr& expr, const Datum* caller);

  Datum call(const Datum& callee, const Arguments& args);
  Datum call_macro(const Macro& macro, const Arguments& args);
  void bind_parameters(const Macro& macro, const Arguments& args);
  Datum call_loop(const ActiveLoop& loop, const Arguments& args);

  Rendering& r_;
  const Program& program_;
  std::vector<Datum> context_;
  Frame* frame_ = nullptr;
  int captures_ = 0;  // macros, blocks and recursive loops whose output is being captured
  int generations_ = 0;
  std::vector<std::pair<int64_t, int64_t>> generation_;
  std::unordered_map<const Value::Object*, int64_t> item_index_;  // of the items that are traced
  std::vector<TracedItem> traced_items_;
  bool is_in_item_ = false;
};

}  // namespace tessera::jinja
