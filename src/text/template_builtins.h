// What the engine's filters, methods, tests and operators may be given. Part of template_guard.h; everything
// throws what the engine's own error handling expects.
#pragma once

#include <string>

#include "jinja/runtime.h"
#include "text/template_guard.h"

namespace sluice {

// The budget of this thread; there must be one.
TemplateBudget& template_budget();

inline constexpr size_t kValueBytes = 320;  // a value of the engine

bool is_container(const jinja::value& v);
// Follows everything that v holds, and returns about how many bytes that is. Throws TemplateLimit where it is
// deeper than any operation of the engine can take, more than the budget allows, or leads to target, which v is
// about to be put into.
size_t walk_value(const jinja::value& v, const jinja::value_t* target);

void charge_built(const jinja::value& v);    // the result of an operation
void charge_printed(const jinja::value& v);  // a value that becomes text of the output
void check_operands(const std::string& op, const jinja::value& left, const jinja::value& right);

// nullptr: the type of input has no such filter.
const jinja::func_handler* find_filter(const jinja::value& input, const std::string& name);
// Runs a built-in function of the engine, or our own where that one is not safe. args[0] is what it is bound
// to.
jinja::value call_builtin(const std::string& name, const jinja::func_handler& builtin,
                          const jinja::func_args& args);

}  // namespace sluice
