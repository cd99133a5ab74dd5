#include "text/template_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <set>

#include "text/template_builtins.h"

namespace sluice {
namespace {

using jinja::context;
using jinja::statement;
using jinja::statement_ptr;
using jinja::statements;
using jinja::value;

constexpr size_t kMaxStackBytes = 1 << 20;
constexpr size_t kMaxLoopItems = 100'000;

thread_local TemplateBudget* g_budget = nullptr;

statement_ptr constant(value v, size_t pos);

// A statement in a body: the places where a rendering spends its time all pass through here.
struct StepNode : statement {
  statement_ptr inner;
  explicit StepNode(statement_ptr node) : inner(std::move(node)) { pos = inner->pos; }
  std::string type() const override { return inner->type(); }
  value execute_impl(context& ctx) const override {
    TemplateBudget& budget = template_budget();
    budget.step();
    const int64_t mark = budget.enter();
    value out = inner->execute(ctx);
    budget.leave(mark);
    charge_printed(out);
    return out;
  }
};

struct ConstantNode : jinja::expression {
  value held;
  explicit ConstantNode(value v) : held(std::move(v)) {}
  value execute_impl(context&) const override { return held; }
};

statement_ptr constant(value v, size_t pos) {
  auto node = std::make_unique<ConstantNode>(std::move(v));
  node->pos = pos;
  return node;
}

// A value about to be stored. Only storing can make containers deep or circular, so this is where that is
// refused.
struct StoredNode : jinja::expression {
  statement_ptr inner;
  const jinja::member_expression* target = nullptr;  // of "set target.member = …"
  StoredNode(statement_ptr node, const jinja::member_expression* into) : inner(std::move(node)), target(into) {
    pos = inner->pos;
  }
  std::string type() const override { return inner->type(); }
  value execute_impl(context& ctx) const override {
    value out = inner->execute(ctx);
    value object = target ? target->object->execute(ctx) : nullptr;
    const size_t bytes = walk_value(out, object.get());
    if (object) release_member(object);
    template_budget().keep(bytes);
    return out;
  }
  void release_member(const value& object) const {
    const auto* name = dynamic_cast<const jinja::identifier*>(target->property.get());
    if (!name || !jinja::is_val<jinja::value_object>(object)) return;
    value none = jinja::mk_val<jinja::value_undefined>();
    const value& old = object->at(name->val, none);
    if (!old->is_undefined()) template_budget().release(walk_value(old, nullptr));
  }
};

struct LoopNode : jinja::expression {
  statement_ptr inner;
  explicit LoopNode(statement_ptr node) : inner(std::move(node)) { pos = inner->pos; }
  std::string type() const override { return inner->type(); }
  value execute_impl(context& ctx) const override {
    value out = inner->execute(ctx);
    const size_t items = is_container(out) ? out->val_arr.size() + out->val_obj.size() : 0;
    if (items > kMaxLoopItems) throw TemplateLimit("loop over more than 100000 items");
    template_budget().charge(items * 256);
    return out;
  }
};

// A slice bound: the engine's loop over it overflows on huge steps.
struct BoundNode : jinja::expression {
  statement_ptr inner;
  explicit BoundNode(statement_ptr node) : inner(std::move(node)) { pos = inner->pos; }
  value execute_impl(context& ctx) const override {
    value out = inner->execute(ctx);
    if (out->is_none() || out->is_undefined()) throw std::runtime_error("slice bound must be an integer");
    const int64_t bound = out->as_int();
    if (bound < INT32_MIN || bound > INT32_MAX) throw std::runtime_error("slice bound out of range");
    return out;
  }
};

struct MacroOnlyNode : jinja::expression {
  statement_ptr inner;
  explicit MacroOnlyNode(statement_ptr node) : inner(std::move(node)) { pos = inner->pos; }
  value execute_impl(context& ctx) const override {
    value out = inner->execute(ctx);
    const auto* function = jinja::cast_val<jinja::value_func>(std::as_const(out));
    if (function && function->arg0) throw std::runtime_error("a call block needs a macro");
    return out;
  }
};

struct GuardedBinary : jinja::binary_expression {
  using binary_expression::binary_expression;
  value execute_impl(context& ctx) const override {
    template_budget().step();
    if (op.value == "and" || op.value == "or") return binary_expression::execute_impl(ctx);
    value l = left->execute(ctx), r = right->execute(ctx);
    check_operands(op.value, l, r);
    const jinja::binary_expression now(op, constant(std::move(l), pos), constant(std::move(r), pos));
    value out = now.execute_impl(ctx);
    charge_built(out);
    return out;
  }
};

struct GuardedCall : jinja::call_expression {
  using call_expression::call_expression;
  value execute_impl(context& ctx) const override {
    template_budget().step();
    jinja::func_args given(ctx);
    for (const statement_ptr& arg : args) given.push_back(arg->execute(ctx));
    value target = callee->execute(ctx);
    auto* function = jinja::cast_val<jinja::value_func>(target);
    if (!function) throw std::runtime_error("Callee is not a function: got " + target->type());
    value out;
    if (function->arg0) {
      given.push_front(function->arg0);
      out = call_builtin(function->name, function->val_func, given);
    } else {
      out = function->invoke(given);
    }
    charge_built(out);
    return out;
  }
};

// The engine's own way from a filter's name to its function, with the check in between.
value apply_filter(context& ctx, const statement_ptr& filter, value input) {
  const auto* call = dynamic_cast<const jinja::call_expression*>(filter.get());
  const auto* id = dynamic_cast<const jinja::identifier*>(call ? call->callee.get() : filter.get());
  if (!id) throw std::runtime_error("Filter callee must be an identifier");
  std::string name = id->val;
  if (name == "count") name = "length";
  if (name == "d") name = "default";
  if (name == "e") name = "escape";
  if (name == "trim") name = "strip";
  static const std::set<std::string> of_strings = {"capitalize", "lower", "replace",  "strip",
                                                   "title",      "upper", "wordcount"};
  if (!call && of_strings.count(name) && !input->is_undefined() && !jinja::is_val<jinja::value_string>(input)) {
    if (is_container(input)) walk_value(input, nullptr);
    input = jinja::mk_val<jinja::value_string>(input->as_string());
  }
  jinja::func_args args(ctx);
  args.push_back(input);
  if (call) {
    for (const statement_ptr& arg : call->args) args.push_back(arg->execute(ctx));
  }
  const jinja::func_handler* builtin = find_filter(input, name);
  if (!builtin) throw std::runtime_error("Unknown (built-in) filter '" + name + "' for type " + input->type());
  value out = call_builtin(name, *builtin, args);
  charge_built(out);
  return out;
}

struct GuardedFilter : jinja::filter_expression {
  using filter_expression::filter_expression;
  value execute_impl(context& ctx) const override {
    template_budget().step();
    return apply_filter(ctx, filter, operand->execute(ctx));
  }
};

struct GuardedFilterBlock : jinja::filter_statement {
  using filter_statement::filter_statement;
  value execute_impl(context& ctx) const override {
    auto parts = jinja::mk_val<jinja::value_array>();
    for (const statement_ptr& node : body) parts->push_back(node->execute(ctx));
    return apply_filter(ctx, filter, jinja::runtime::gather_string_parts(parts));
  }
};

struct GuardedTest : jinja::test_expression {
  using test_expression::test_expression;
  value execute_impl(context& ctx) const override {
    template_budget().step();
    jinja::func_args args(ctx);
    args.push_back(operand->execute(ctx));
    const auto* call = dynamic_cast<const jinja::call_expression*>(test.get());
    const auto* id = dynamic_cast<const jinja::identifier*>(call ? call->callee.get() : test.get());
    if (!id) throw std::runtime_error("Invalid test expression");
    if (call) {
      for (const statement_ptr& arg : call->args) args.push_back(arg->execute(ctx));
    }
    const auto found = jinja::global_builtins().find("test_is_" + id->val);
    if (found == jinja::global_builtins().end()) throw std::runtime_error("Unknown test '" + id->val + "'");
    value out = call_builtin(found->first, found->second, args);
    return negate ? jinja::mk_val<jinja::value_bool>(!out->as_bool()) : out;
  }
};

// ---- Rewriting. Recursion is bounded by check_template_tokens. ----

void guard(statement_ptr& node);

void guard_all(statements& nodes) {
  for (statement_ptr& node : nodes) {
    guard(node);
    node = std::make_unique<StepNode>(std::move(node));
  }
}

void guard_arguments(statements& args) {
  for (statement_ptr& arg : args) {
    if (auto* named = dynamic_cast<jinja::keyword_argument_expression*>(arg.get())) {
      guard(named->val);
    } else if (auto* spread = dynamic_cast<jinja::spread_expression*>(arg.get())) {
      guard(spread->argument);
    } else {
      guard(arg);
    }
  }
}

// Names of filters and tests stay what they are; only their arguments run.
void guard_name(statement_ptr& name) {
  if (auto* call = dynamic_cast<jinja::call_expression*>(name.get())) guard_arguments(call->args);
}

template <typename Node>
void replace(statement_ptr& node, std::unique_ptr<Node> by) {
  by->pos = node->pos;
  node = std::move(by);
}

void guard_for(jinja::for_statement& loop) {
  auto* select = dynamic_cast<jinja::select_expression*>(loop.iterable.get());
  statement_ptr& items = select ? select->lhs : loop.iterable;
  if (select) guard(select->test);
  guard(items);
  items = std::make_unique<LoopNode>(std::move(items));
  guard_all(loop.body);
  guard_all(loop.default_block);
}

void guard_set(jinja::set_statement& set) {
  auto* target = dynamic_cast<jinja::member_expression*>(set.assignee.get());
  if (target) guard(target->object);
  if (set.val) {
    guard(set.val);
    set.val = std::make_unique<StoredNode>(std::move(set.val), target);
  }
  guard_all(set.body);
}

void guard_member(jinja::member_expression& member) {
  guard(member.object);
  if (auto* slice = dynamic_cast<jinja::slice_expression*>(member.property.get())) {
    for (statement_ptr* bound : {&slice->start_expr, &slice->stop_expr, &slice->step_expr}) {
      if (!*bound) continue;
      guard(*bound);
      *bound = std::make_unique<BoundNode>(std::move(*bound));
    }
  } else if (member.computed) {
    guard(member.property);
  }
}

bool guard_statement(statement_ptr& node) {
  if (auto* s = dynamic_cast<jinja::if_statement*>(node.get())) {
    guard(s->test);
    guard_all(s->body);
    guard_all(s->alternate);
  } else if (auto* loop = dynamic_cast<jinja::for_statement*>(node.get())) {
    guard_for(*loop);
  } else if (auto* set = dynamic_cast<jinja::set_statement*>(node.get())) {
    guard_set(*set);
  } else if (auto* macro = dynamic_cast<jinja::macro_statement*>(node.get())) {
    guard_arguments(macro->args);
    guard_all(macro->body);
  } else if (auto* call = dynamic_cast<jinja::call_statement*>(node.get())) {
    guard_arguments(call->caller_args);
    if (auto* callee = dynamic_cast<jinja::call_expression*>(call->call.get())) {
      guard_arguments(callee->args);
      callee->callee = std::make_unique<MacroOnlyNode>(std::move(callee->callee));
    }
    guard_all(call->body);
  } else if (auto* filter = dynamic_cast<jinja::filter_statement*>(node.get())) {
    guard_name(filter->filter);
    guard_all(filter->body);
    replace(node, std::make_unique<GuardedFilterBlock>(std::move(filter->filter), std::move(filter->body)));
  } else {
    return false;
  }
  return true;
}

bool guard_operation(statement_ptr& node) {
  if (auto* e = dynamic_cast<jinja::binary_expression*>(node.get())) {
    guard(e->left);
    guard(e->right);
    replace(node, std::make_unique<GuardedBinary>(e->op, std::move(e->left), std::move(e->right)));
  } else if (auto* call = dynamic_cast<jinja::call_expression*>(node.get())) {
    guard(call->callee);
    guard_arguments(call->args);
    replace(node, std::make_unique<GuardedCall>(std::move(call->callee), std::move(call->args)));
  } else if (auto* filter = dynamic_cast<jinja::filter_expression*>(node.get())) {
    guard(filter->operand);
    guard_name(filter->filter);
    replace(node, std::make_unique<GuardedFilter>(std::move(filter->operand), std::move(filter->filter)));
  } else if (auto* test = dynamic_cast<jinja::test_expression*>(node.get())) {
    guard(test->operand);
    guard_name(test->test);
    replace(node, std::make_unique<GuardedTest>(std::move(test->operand), test->negate, std::move(test->test)));
  } else {
    return false;
  }
  return true;
}

void guard(statement_ptr& node) {
  if (!node || guard_statement(node) || guard_operation(node)) return;
  if (auto* member = dynamic_cast<jinja::member_expression*>(node.get())) {
    guard_member(*member);
  } else if (auto* unary = dynamic_cast<jinja::unary_expression*>(node.get())) {
    guard(unary->argument);
  } else if (auto* ternary = dynamic_cast<jinja::ternary_expression*>(node.get())) {
    guard(ternary->condition);
    guard(ternary->true_expr);
    guard(ternary->false_expr);
  } else if (auto* select = dynamic_cast<jinja::select_expression*>(node.get())) {
    guard(select->lhs);
    guard(select->test);
  } else if (auto* array = dynamic_cast<jinja::array_literal*>(node.get())) {
    for (statement_ptr& item : array->val) guard(item);
  } else if (auto* tuple = dynamic_cast<jinja::tuple_literal*>(node.get())) {
    for (statement_ptr& item : tuple->val) guard(item);
  } else if (auto* object = dynamic_cast<jinja::object_literal*>(node.get())) {
    for (auto& [key, item] : object->val) {
      guard(key);
      guard(item);
    }
  } else if (auto* named = dynamic_cast<jinja::keyword_argument_expression*>(node.get())) {
    guard(named->val);
  } else if (auto* spread = dynamic_cast<jinja::spread_expression*>(node.get())) {
    guard(spread->argument);
  }
}

}  // namespace

TemplateBudget& template_budget() {
  CHECK(g_budget != nullptr);
  return *g_budget;
}

TemplateBudget::TemplateBudget(int64_t memory_bytes, TimeNs deadline_ns)
    : memory_bytes_(memory_bytes),
      deadline_ns_(deadline_ns),
      stack_base_(static_cast<const char*>(__builtin_frame_address(0))) {}

void TemplateBudget::fail(ErrorCode code, const char* text) {
  if (exceeded_ == ErrorCode::kInternal) exceeded_ = code;
  throw TemplateLimit(text);
}

void TemplateBudget::step() {
  const char* here = static_cast<const char*>(__builtin_frame_address(0));
  if (std::abs(stack_base_ - here) > std::ptrdiff_t(kMaxStackBytes)) {
    fail(ErrorCode::kInvalidArgument, "recursion too deep");
  }
  if ((++steps_ & 63) == 0 && now_ns() > deadline_ns_) {
    fail(ErrorCode::kDeadlineExceeded, "rendering takes too long");
  }
}

void TemplateBudget::charge(size_t bytes) {
  if (bytes > size_t(memory_bytes_) || (built_bytes_ += int64_t(bytes)) > memory_bytes_ - kept_bytes_) {
    fail(ErrorCode::kInvalidArgument, "rendering needs too much memory");
  }
}

void TemplateBudget::leave(int64_t mark) {
  built_bytes_ = mark;
  charge(kValueBytes);
}

void TemplateBudget::keep(size_t bytes) {
  if (bytes > size_t(memory_bytes_) || (kept_bytes_ += int64_t(bytes)) > memory_bytes_ - built_bytes_) {
    fail(ErrorCode::kInvalidArgument, "rendering needs too much memory");
  }
}

void TemplateBudget::release(size_t bytes) { kept_bytes_ = std::max<int64_t>(0, kept_bytes_ - int64_t(bytes)); }

TemplateBudgetScope::TemplateBudgetScope(TemplateBudget& budget) {
  CHECK(g_budget == nullptr);
  g_budget = &budget;
}
TemplateBudgetScope::~TemplateBudgetScope() { g_budget = nullptr; }

void guard_program(jinja::program& program) { guard_all(program.body); }

void install_globals(jinja::context& ctx, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const jinja::func_handler& builtin = jinja::global_builtins().at(name);
    ctx.set_val(name, jinja::mk_val<jinja::value_func>(name, [name, &builtin](const jinja::func_args& args) {
                  return call_builtin(name, builtin, args);
                }));
  }
}

}  // namespace sluice
