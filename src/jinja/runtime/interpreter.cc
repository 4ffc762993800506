// Statements, and calls of macros. Expressions are in evaluate.cc.
#include "jinja/runtime/interpreter.h"

#include <algorithm>

#include "jinja/filters/functions.h"
#include "jinja/values/operators.h"
#include "jinja/values/python_text.h"

namespace tessera::jinja {
namespace {

Datum loop_cycle(Rendering& r, const Datum& self, const Arguments& args) {
  if (args.size == 0) r.fail("no items for cycling given");
  return args.items[static_cast<const ActiveLoop&>(*self.loop).index0 % args.size];
}

Datum loop_changed(Rendering& r, const Datum& self, const Arguments& args) {
  const Datum values = sequence(r.make(List{args.items, args.size}), Kind::kTuple);
  Datum& last = static_cast<ActiveLoop&>(*self.loop).last_changed;
  if (!last.is_missing() && equal(r, last, values)) return boolean(false);
  last = values;
  return boolean(true);
}

constexpr FunctionEntry kLoopMethods[] = {{"cycle", loop_cycle, "*"}, {"changed", loop_changed, "*"}};

}  // namespace

Interpreter::Interpreter(Rendering& r, const Program& program, const Value::Object& context)
    : r_(r), program_(program) {
  if (const Value::List* items = r.options.traced_items) {
    for (const Value& item : *items) item_index_.emplace(item.object(), std::ssize(item_index_));
  }
  context_.reserve(program.context_names.size());
  for (size_t i = 0; i < program.context_names.size(); ++i) {
    const std::string& name = program.context_names[i];
    r.step(1 + std::ssize(context) / 16);
    const auto field =
        std::find_if(context.begin(), context.end(), [&](const auto& f) { return f.name == name; });
    Datum value;
    if (field != context.end()) {
      value = r.import(field->value);
    } else if (const FunctionEntry* function = find_global(name)) {
      value.kind = Kind::kFunction;
      value.function = function;
    } else {
      value = undefined(&program.context_missing[i]);
    }
    context_.push_back(value);
  }
}

void Interpreter::run() {
  frame_ = make_frame(nullptr, program_.num_slots);
  enter(program_.start);
  run(program_.body);
}

Frame* Interpreter::make_frame(Frame* outer, int num_slots) {
  return r_.make(Frame{outer, r_.array<Datum>(num_slots)});
}

void Interpreter::enter(const ScopeStart& start) {
  r_.step(std::ssize(start) / 16);
  for (const SlotStart& begin : start) {
    Datum value;
    if (begin.from != SlotStart::From::kMissing) value = load(begin.source);
    frame_->slots[begin.slot] = value;
  }
}

Interpreter::Flow Interpreter::run(const Body& body) {
  const Rendering::Nesting nesting(r_);
  for (const auto& statement : body) {
    const Flow flow = run(*statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const Statement& statement) {
  r_.line = statement.line;
  r_.step();
  switch (statement.kind) {
    case StatementKind::kOutput:
      for (const ExprPtr& expr : statement.expressions) write(*expr);
      return Flow::kNext;
    case StatementKind::kIf:
      return run_if(statement);
    case StatementKind::kFor:
      return run_for(statement);
    case StatementKind::kSet:
      assign(*statement.targets[0], evaluate(*statement.expressions[0]));
      return Flow::kNext;
    case StatementKind::kSetBlock: {
      Datum text;
      const Flow flow = run_captured(statement, text);
      if (flow == Flow::kNext) assign(*statement.targets[0], text);
      return flow;
    }
    case StatementKind::kFilterBlock: {
      Datum text;
      const Flow flow = run_captured(statement, text);
      if (flow == Flow::kNext) write(text);
      return flow;
    }
    case StatementKind::kMacro:
      slot(statement.macro_target) = make_macro(*statement.macro);
      return Flow::kNext;
    case StatementKind::kCallBlock:
      call_block(statement);
      return Flow::kNext;
    case StatementKind::kWith:
      run_with(statement);
      return run(statement.bodies[0]);
    case StatementKind::kGeneration:
      return run_generation(statement);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement) {
  size_t branch = 0;
  while (branch < statement.expressions.size() && !is_true(evaluate(*statement.expressions[branch])))
    ++branch;
  return branch < statement.bodies.size() ? run(statement.bodies[branch]) : Flow::kNext;
}

Interpreter::Flow Interpreter::run_generation(const Statement& statement) {
  const bool tracks = r_.options.track_generation && generations_ == 0;
  if (tracks && captures_ > 0) {
    r_.fail(
        "a generation block in a macro, a block assignment or a filter block: where its text goes is not "
        "known");
  }
  const auto begin = static_cast<int64_t>(r_.output.size());
  ++generations_;
  enter(statement.starts[0]);
  run(statement.bodies[0]);
  --generations_;
  if (tracks) generation_.emplace_back(begin, static_cast<int64_t>(r_.output.size()));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_captured(const Statement& statement, Datum& text) {
  const size_t begin = r_.output.size();
  ++captures_;
  enter(statement.starts[0]);
  const Flow flow = run(statement.bodies[0]);
  --captures_;
  text = r_.take_output(begin);
  const ExprPtr& filter = statement.expressions[0];
  if (flow == Flow::kNext && filter != nullptr) text = evaluate_filter(*filter, &text);
  return flow;
}

void Interpreter::run_with(const Statement& statement) {
  enter(statement.starts[0]);
  for (size_t i = 0; i < statement.targets.size(); ++i) {
    assign(*statement.targets[i], evaluate(*statement.expressions[i]));
  }
}

void Interpreter::call_block(const Statement& statement) {
  const Datum caller = make_macro(*statement.macro);
  write(evaluate_call(*statement.expressions[0], &caller));
}

void Interpreter::assign(const Expr& target, const Datum& value) {
  if (target.kind == ExprKind::kName) {
    slot(target.variable) = value;
    return;
  }
  if (target.kind == ExprKind::kTuple) {
    const Datum items = to_list(r_, value);
    const auto expected = static_cast<int64_t>(target.operands.size());
    if (items.list->size != expected) {
      r_.fail("{} values to unpack: expected {}, found {}",
              items.list->size < expected ? "not enough" : "too many", expected, items.list->size);
    }
    for (int64_t i = 0; i < expected; ++i)
      assign(*target.operands[static_cast<size_t>(i)], items.list->items[i]);
    return;
  }
  const Datum object = evaluate(*target.operands[0]);
  if (!object.is(Kind::kNamespace)) r_.fail("cannot assign attribute on non-namespace object");
  Namespace& names = *object.name_space;
  if (names.size == names.capacity) {
    Entry* entries = r_.array<Entry>(2 * names.capacity + 4);
    std::copy(names.entries, names.entries + names.size, entries);
    names.entries = entries;
    names.capacity = 2 * names.capacity + 4;
  }
  dict_insert(r_, names.entries, names.size, target.name_text, value);
}

Interpreter::Flow Interpreter::run_for(const Statement& statement) {
  const Datum iterable = evaluate(*statement.expressions[0]);
  Flow flow = Flow::kNext;
  if (!statement.recursive) {
    loop_over(statement, iterable, frame_, 0, flow);
    return flow;
  }
  ActiveLoop loop(*this);
  loop.statement = &statement;
  loop.outer = frame_;
  loop.depth0 = -1;
  write(call_loop(loop, Arguments{&iterable, 1, nullptr, 0}));
  return flow;
}

// `flow` becomes the break or continue that the else branch asks of the enclosing loop.
void Interpreter::loop_over(const Statement& statement, const Datum& iterable, Frame* outer, int64_t depth0,
                            Flow& flow) {
  ActiveLoop* loop = r_.make(ActiveLoop(*this));
  loop->statement = &statement;
  loop->frame = frame_;
  loop->outer = outer;
  loop->depth0 = depth0;
  loop->filtered = statement.test == nullptr;
  loop->items = iterable.is_sequence() ? iterable : to_list(r_, iterable);
  Datum variable;
  variable.kind = Kind::kLoop;
  variable.loop = loop;

  bool completed = false;  // an iteration came to its end
  for (Datum item = next_item(*loop); !item.is_missing(); item = next_item(*loop)) {
    r_.step();
    ++loop->index0;
    loop->before = loop->current;
    loop->current = item;
    enter(statement.starts[0]);
    assign(*statement.targets[0], item);
    if (statement.uses_loop) slot(statement.loop) = variable;
    const Flow ended = run_item(statement, item);
    if (ended == Flow::kBreak) break;
    completed = completed || ended == Flow::kNext;
  }
  // In Jinja, else also runs if every iteration ended with break or continue.
  if (completed || statement.bodies[1].empty()) return;
  enter(statement.starts[1]);
  flow = run(statement.bodies[1]);
}

// Runs the body of a loop, and traces what it writes for this item.
Interpreter::Flow Interpreter::run_item(const Statement& statement, const Datum& item) {
  const auto traced = !is_in_item_ && captures_ == 0 && item.is(Kind::kDict) && item.foreign
                          ? item_index_.find(item.foreign_dict)
                          : item_index_.end();
  if (traced == item_index_.end()) return run(statement.bodies[0]);
  const auto begin = static_cast<int64_t>(r_.output.size());
  is_in_item_ = true;
  const Flow flow = run(statement.bodies[0]);
  is_in_item_ = false;
  const auto end = static_cast<int64_t>(r_.output.size());
  if (begin < end) traced_items_.push_back({begin, end, traced->second});
  return flow;
}

// Missing at the end.
Datum Interpreter::next_item(ActiveLoop& loop) {
  if (!loop.after.is_missing()) return std::exchange(loop.after, Datum());
  const int64_t size = *size_of(loop.items);
  while (loop.next < size) {
    const Datum item = list_item(r_, loop.items, loop.next++);
    if (loop.filtered || passes(loop, item)) return item;
  }
  return {};
}

bool Interpreter::passes(ActiveLoop& loop, const Datum& item) {
  const Statement& statement = *loop.statement;
  Frame* const frame = std::exchange(frame_, loop.frame);
  enter(statement.starts[2]);
  assign(*statement.test_target, item);
  const bool passed = is_true(evaluate(*statement.test));
  frame_ = frame;
  return passed;
}

Datum Interpreter::loop_attribute(ActiveLoop& loop, std::string_view name) {
  const auto peek = [&] {
    if (loop.after.is_missing()) loop.after = next_item(loop);
    return loop.after;
  };
  const auto size = [&] {
    if (!loop.filtered) {
      // In Jinja, asking for the length applies the test to all remaining items.
      ListBuilder rest(r_);
      for (int64_t i = 0; i < loop.index0 + 1; ++i) rest.push(none());
      const Datum after = std::exchange(loop.after, Datum());
      if (!after.is_missing()) rest.push(after);
      for (Datum item = next_item(loop); !item.is_missing(); item = next_item(loop)) rest.push(item);
      loop.items = rest.finish();
      loop.next = loop.index0 + 1;
      loop.filtered = true;
    }
    return *size_of(loop.items);
  };
  if (name == "index") return integer(loop.index0 + 1);
  if (name == "index0") return integer(loop.index0);
  if (name == "first") return boolean(loop.index0 == 0);
  if (name == "last") return boolean(peek().is_missing());
  if (name == "length") return integer(size());
  if (name == "revindex") return integer(size() - loop.index0);
  if (name == "revindex0") return integer(size() - loop.index0 - 1);
  if (name == "depth") return integer(loop.depth0 + 1);
  if (name == "depth0") return integer(loop.depth0);
  if (name == "previtem")
    return loop.index0 == 0 ? r_.make_undefined("there is no previous item") : loop.before;
  if (name == "nextitem")
    return peek().is_missing() ? r_.make_undefined("there is no next item") : loop.after;
  return bound_method(r_, datum(Kind::kLoop, &Datum::loop, &loop), find_function(kLoopMethods, name));
}

Datum Interpreter::make_macro(const MacroCode& code) {
  return datum(Kind::kMacro, &Datum::macro, r_.make(Macro{code.name, &code, frame_}));
}

Datum Interpreter::call(const Datum& callee, const Arguments& args) {
  r_.step();
  switch (callee.kind) {
    case Kind::kFunction:
      return r_.call(*callee.function, {}, args);
    case Kind::kMethod:
      return r_.call(*callee.method->entry, callee.method->self, args);
    case Kind::kMacro:
      return call_macro(*callee.macro, args);
    case Kind::kLoop: {
      const auto& loop = static_cast<const ActiveLoop&>(*callee.loop);
      if (loop.statement->recursive) return call_loop(loop, args);
      r_.fail("the loop must have the 'recursive' marker to be called recursively");
    }
    case Kind::kJoiner:
      bind_arguments(r_, args, "joiner", {}, 0, nullptr);
      return std::exchange(callee.joiner->used, true) ? callee.joiner->separator : string({});
    case Kind::kUndefined:
      r_.fail_undefined(callee);
    default:
      r_.fail("'{}' object is not callable", type_name(callee));
  }
}

Datum Interpreter::call_loop(const ActiveLoop& loop, const Arguments& args) {
  constexpr std::string_view kNames[] = {"iterable"};
  Datum iterable;
  bind_arguments(r_, args, "loop", kNames, 1, &iterable);
  const Rendering::Nesting nesting(r_);
  const size_t begin = r_.output.size();
  Frame* const frame = std::exchange(frame_, make_frame(loop.outer, loop.statement->num_slots));
  ++captures_;
  Flow flow = Flow::kNext;
  loop_over(*loop.statement, iterable, loop.outer, loop.depth0 + 1, flow);
  --captures_;
  frame_ = frame;
  return r_.take_output(begin);
}

Datum Interpreter::call_macro(const Macro& macro, const Arguments& args) {
  const Rendering::Nesting nesting(r_);
  const int line = r_.line;
  Frame* const frame = std::exchange(frame_, make_frame(macro.frame, macro.code->num_slots));
  const size_t begin = r_.output.size();
  ++captures_;
  enter(macro.code->start);
  bind_parameters(macro, args);
  run(macro.code->body);
  --captures_;
  frame_ = frame;
  r_.line = line;
  return r_.take_output(begin);
}

void Interpreter::bind_parameters(const Macro& macro, const Arguments& args) {
  const MacroCode& code = *macro.code;
  const auto num_parameters = static_cast<int64_t>(code.parameters.size());
  std::vector<bool> used(static_cast<size_t>(args.num_keywords), false);
  const auto take_keyword = [&](std::string_view name) {
    r_.step(1 + args.num_keywords / 16);
    for (int64_t k = 0; k < args.num_keywords; ++k) {
      if (args.keywords[k].name != name || used[static_cast<size_t>(k)]) continue;
      used[static_cast<size_t>(k)] = true;
      return args.keywords[k].value;
    }
    return Datum();
  };
  for (int64_t i = 0; i < num_parameters; ++i) {
    const Expr& parameter = *code.parameters[static_cast<size_t>(i)];
    slot(parameter.variable) = i < args.size ? args.items[i] : take_keyword(parameter.name);
  }
  if (code.takes_caller) {
    const Datum caller = take_keyword("caller");
    slot(code.caller) =
        caller.is_missing() || caller.is(Kind::kNone) ? r_.make_undefined("No caller defined") : caller;
  }
  Entry* rest = r_.array<Entry>(args.num_keywords);
  int64_t num_rest = 0;
  for (int64_t k = 0; k < args.num_keywords; ++k) {
    if (!used[static_cast<size_t>(k)])
      rest[num_rest++] = {string(args.keywords[k].name), args.keywords[k].value};
  }
  if (code.takes_keywords) {
    slot(code.keywords) = dictionary(r_.make(Dict{rest, num_rest}));
  } else if (num_rest > 0) {
    r_.fail("macro '{}' takes no keyword argument '{}'", code.name, r_.text(rest[0].key));
  }
  if (code.takes_varargs) {
    const int64_t extra = std::max<int64_t>(0, args.size - num_parameters);
    slot(code.varargs) = sequence(r_.make(List{args.items + (args.size - extra), extra}), Kind::kTuple);
  } else if (args.size > num_parameters) {
    r_.fail("macro '{}' takes not more than {}, found {}", code.name,
            num_parameters == 1 ? "1 argument" : fmt::format("{} arguments", num_parameters), args.size);
  }
  const auto num_required = num_parameters - static_cast<int64_t>(code.defaults.size());
  for (int64_t i = 0; i < num_parameters; ++i) {
    const Expr& parameter = *code.parameters[static_cast<size_t>(i)];
    if (!slot(parameter.variable).is_missing()) continue;
    const Datum value =
        i < num_required ? r_.make_undefined(fmt::format("parameter '{}' was not provided", parameter.name))
                         : evaluate(*code.defaults[static_cast<size_t>(i - num_required)]);
    slot(parameter.variable) = value;
  }
}

Datum ActiveLoop::attribute(std::string_view name) { return interpreter.loop_attribute(*this, name); }

}  // namespace tessera::jinja
