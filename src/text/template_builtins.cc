#include "text/template_builtins.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <set>

namespace sluice {
namespace {

using jinja::func_args;
using jinja::value;
using Values = std::vector<value>;

constexpr int kMaxValueDepth = 100;
constexpr size_t kMaxStringBytes = size_t(64) << 20;
constexpr size_t kMaxSearchWork = size_t(1) << 33;  // haystack times needle: the worst case of a naive search
constexpr int64_t kMaxRange = 100'000;
constexpr int64_t kMaxIndent = 64;
constexpr size_t kPartBytes = 128;  // the engine keeps a string as a list of parts; a growing list exists twice

bool is_string(const value& v) { return jinja::is_val<jinja::value_string>(v); }
bool is_integer(const value& v) { return jinja::is_val<jinja::value_int>(v); }
bool is_number(const value& v) { return is_integer(v) || jinja::is_val<jinja::value_float>(v); }

const value& unnamed(const value& arg) {
  const auto* named = jinja::cast_val<jinja::value_kwarg>(arg);
  return named ? named->val : arg;
}

// The argument of that name or position (the engine's own rule); undefined where there is none.
value argument(const func_args& args, const char* name, size_t at) { return args.get_kwarg_or_pos(name, at); }

size_t string_bytes(const value& v) { return v->val_str.length() + v->val_str.parts.size() * kPartBytes; }

size_t walk(const value& v, const jinja::value_t* target, int depth) {
  if (v.get() == target && target) throw TemplateLimit("a container cannot hold itself");
  if (depth > kMaxValueDepth) throw TemplateLimit("containers nested too deeply");
  template_budget().charge(16);
  size_t bytes = kValueBytes;
  if (v->val_func) {
    // A function keeps alive what it is bound to, so inside a container it could close a circle.
    if (target) throw std::runtime_error("functions cannot be stored in containers");
    const auto* function = jinja::cast_val<jinja::value_func>(v);
    if (function && function->arg0) bytes += walk(function->arg0, target, depth + 1);
  }
  if (!v->val_str.parts.empty()) bytes += string_bytes(v);
  for (const value& item : v->val_arr) bytes += walk(item, target, depth + 1);
  for (const auto& [key, item] : v->val_obj) {
    bytes += walk(key, target, depth + 1);
    bytes += walk(item, target, depth + 1);
  }
  return bytes;
}

void check_length(size_t bytes) {
  if (bytes > kMaxStringBytes) throw TemplateLimit("string too long");
  template_budget().charge(bytes);
}

void check_search(size_t haystack, size_t needle) {
  if (needle > 0 && haystack > kMaxSearchWork / needle) throw TemplateLimit("search too long");
}

void check_range(const Values& args) {
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < args.size() && i < 3; ++i) {
    if (!is_integer(args[i])) return;  // the engine says what is wrong
    bounds[i] = args[i]->as_int();
    if (std::abs(bounds[i]) > (int64_t(1) << 40)) throw TemplateLimit("range() bound too large");
  }
  const int64_t start = args.size() > 1 ? bounds[0] : 0, stop = args.size() > 1 ? bounds[1] : bounds[0];
  if (bounds[2] == 0) return;
  const int64_t count = (stop - start) / bounds[2];
  if (count > kMaxRange) throw TemplateLimit("range() over more than 100000 items");
  template_budget().charge(size_t(std::max<int64_t>(count, 0)) * 512);
}

// std::sort needs an order; the engine compares a number with a string as strings, which is none.
void check_sortable(const Values& keys) {
  bool strings = false, numbers = false;
  for (const value& key : keys) {
    if (is_string(key)) {
      strings = true;
    } else if (is_number(key) && !(jinja::is_val<jinja::value_float>(key) && std::isnan(key->as_float()))) {
      numbers = true;
    } else {
      throw std::runtime_error("cannot sort values of type " + key->type());
    }
  }
  if (strings && numbers) throw std::runtime_error("cannot sort numbers and strings together");
  template_budget().charge(keys.size() * 256);
}

value attribute_of(const value& item, const value& name) {
  value none = jinja::mk_val<jinja::value_undefined>();
  if (name->is_undefined()) return item;
  if (jinja::is_val<jinja::value_object>(item)) return item->at(name, none);
  return none;
}

void check_sort(const func_args& args) {
  const value self = args.get_pos(0);
  const value attribute = argument(args, "attribute", 3);
  Values keys;
  for (const value& item : self->val_arr) keys.push_back(attribute_of(item, attribute));
  check_sortable(keys);
}

void check_dictsort(const func_args& args) {
  const value by = argument(args, "by", 2);
  const bool by_value = is_string(by) && by->as_string().str() == "value";
  Values keys;
  for (const auto& [key, item] : args.get_pos(0)->val_obj) keys.push_back(by_value ? item : key);
  check_sortable(keys);
}

void check_indent(const func_args& args) {
  const value self = args.get_pos(0), width = argument(args, "width", 1);
  if (!is_string(self)) return;
  const std::string text = self->as_string().str();
  const size_t lines = size_t(std::count(text.begin(), text.end(), '\n')) + 1;
  size_t each = 4;
  if (is_integer(width)) {
    if (width->as_int() < 0 || width->as_int() > 4096) throw TemplateLimit("indent() width out of range");
    each = size_t(width->as_int());
  } else if (is_string(width)) {
    each = width->as_string().length();
  }
  if (each > 0 && lines > kMaxStringBytes / each) throw TemplateLimit("string too long");
  check_length(text.size() + lines * each);
}

void check_tojson(const func_args& args) {
  const value indent = argument(args, "indent", 2);
  if (is_integer(indent) && indent->as_int() > kMaxIndent) throw TemplateLimit("tojson() indent out of range");
  const value separators = argument(args, "separators", 3);
  for (const value& separator : separators->val_arr) {
    if (is_string(separator) && separator->as_string().length() > 64)
      throw TemplateLimit("tojson() separator too long");
  }
  walk_value(args.get_pos(0), nullptr);
}

void check_join(const func_args& args) {
  const value self = args.get_pos(0), glue = argument(args, "d", 1);
  const size_t each = is_string(glue) ? glue->as_string().length() : 0;
  size_t bytes = 0;
  for (const value& item : self->val_arr) bytes += each + (is_string(item) ? item->as_string().length() : 32);
  check_length(bytes);
}

// Linear; the engine's own moves the rest of the text at every hit, which a megabyte of hits makes minutes.
value linear_replace(const func_args& args) {
  const jinja::string self = args.get_pos(0)->as_string();
  const std::string text = self.str(), from = args.get_pos(1)->as_string().str(),
                    to = args.get_pos(2)->as_string().str();
  const value count = argument(args, "count", 3);
  int64_t left = is_integer(count) ? count->as_int() : -1;
  check_search(text.size(), from.size());
  std::string out;
  size_t at = 0;
  while (at <= text.size() && left != 0) {
    const size_t hit = from.empty() ? at : text.find(from, at);
    if (hit == text.npos) break;
    out.append(text, at, hit - at);
    out += to;
    if (from.empty() && hit < text.size()) out += text[hit];
    at = hit + std::max<size_t>(from.size(), 1);
    if (out.size() > kMaxStringBytes) throw TemplateLimit("string too long");
    --left;
  }
  if (at < text.size()) out.append(text, at);
  auto result = jinja::mk_val<jinja::value_string>(out);
  result->val_str.mark_input_based_on(self);
  return result;
}

value linear_split(const func_args& args) {
  const jinja::string self = args.get_pos(0)->as_string();
  const std::string text = self.str();
  const value separator = argument(args, "sep", 1), limit = argument(args, "maxsplit", 2);
  const std::string by = is_string(separator) ? separator->as_string().str() : " ";
  if (by.empty()) throw std::runtime_error("empty separator");
  check_search(text.size(), by.size());
  int64_t left = is_integer(limit) ? limit->as_int() : -1;
  auto out = jinja::mk_val<jinja::value_array>();
  size_t at = 0;
  for (size_t hit; left != 0 && (hit = text.find(by, at)) != text.npos; at = hit + by.size(), --left) {
    template_budget().charge(256);
    out->push_back(jinja::mk_val<jinja::value_string>(text.substr(at, hit - at)));
  }
  auto last = jinja::mk_val<jinja::value_string>(text.substr(at));
  last->val_str.mark_input_based_on(self);
  out->push_back(std::move(last));
  return out;
}

// The engine's uses std::localtime, whose result all threads share.
value now_as_text(const func_args& args) {
  args.ensure_vals<jinja::value_string>();
  const std::string format = args.get_pos(0)->as_string().str();
  std::tm local{};
  localtime_r(&args.ctx.current_time, &local);
  char text[256];
  const size_t size = std::strftime(text, sizeof text, format.c_str(), &local);
  if (size == 0 && !format.empty()) throw std::runtime_error("strftime_now: failed to format time");
  return jinja::mk_val<jinja::value_string>(std::string(text, size));
}

void check_divisible(const Values& args) {
  if (args.size() < 2 || !is_integer(args[0]) || !is_integer(args[1])) return;
  if (args[1]->as_int() == 0 || args[1]->as_int() == -1) throw std::runtime_error("divisibleby: bad divisor");
}

void check_select(const func_args& args) {
  for (const value& arg : args.get_args()) {
    if (is_string(arg) && arg->as_string().str() == "divisibleby")
      throw std::runtime_error("select by divisibleby is not supported");
  }
}

void check_slice(const Values& args) {
  for (size_t i = 1; i < args.size(); ++i) {
    if (is_integer(args[i]) && std::abs(args[i]->as_int()) > INT32_MAX)
      throw std::runtime_error("slice bound out of range");
  }
}

enum class Reach { kConstant, kLinear, kDeep };

// How far into its containers a built-in looks.
Reach reach_of(const std::string& name) {
  static const std::set<std::string> constant = {"length",
                                                 "first",
                                                 "last",
                                                 "default",
                                                 "get",
                                                 "pop",
                                                 "raise_exception",
                                                 "test_is_boolean",
                                                 "test_is_callable",
                                                 "test_is_odd",
                                                 "test_is_even",
                                                 "test_is_false",
                                                 "test_is_true",
                                                 "test_is_string",
                                                 "test_is_integer",
                                                 "test_is_float",
                                                 "test_is_number",
                                                 "test_is_iterable",
                                                 "test_is_sequence",
                                                 "test_is_mapping",
                                                 "test_is_none",
                                                 "test_is_defined",
                                                 "test_is_undefined",
                                                 "test_is_sameas"};
  static const std::set<std::string> linear = {"list", "items", "keys",   "values",     "reverse", "slice",
                                               "map",  "join",  "select", "selectattr", "reject",  "rejectattr",
                                               "sort", "min",   "max",    "dictsort"};
  return constant.count(name) ? Reach::kConstant : linear.count(name) ? Reach::kLinear : Reach::kDeep;
}

void check_arguments(const std::string& name, const func_args& args) {
  const Values& all = args.get_args();
  const Reach reach = reach_of(name);
  const bool append = name == "append";
  if (append && all.size() > 1 && jinja::is_val<jinja::value_kwarg>(all[1])) {
    throw std::runtime_error("append() takes no named argument");
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const value& v = unnamed(all[i]);
    if (append && i == 1) template_budget().keep(walk_value(v, all[0].get()));
    if (append || reach == Reach::kConstant || !is_container(v)) continue;
    const bool compared = i > 0 && (name.starts_with("select") || name.starts_with("reject"));
    if (reach == Reach::kLinear && !compared) {
      template_budget().charge((v->val_arr.size() + v->val_obj.size()) * 32);
    } else {
      walk_value(v, nullptr);
    }
  }
}

}  // namespace

bool is_container(const value& v) {
  return jinja::is_val<jinja::value_array>(v) || jinja::is_val<jinja::value_object>(v);
}

size_t walk_value(const value& v, const jinja::value_t* target) { return walk(v, target, 0); }

void charge_built(const value& v) {
  template_budget().charge(is_string(v) ? string_bytes(v) : v->val_arr.size() * 16 + v->val_obj.size() * 96);
}

void charge_printed(const value& v) {
  if (is_string(v)) {
    template_budget().charge(string_bytes(v));
  } else if (is_container(v)) {
    walk_value(v, nullptr);
  }
}

void check_operands(const std::string& op, const value& l, const value& r) {
  const bool both = is_container(l) && is_container(r);
  if (op == "==" || op == "!=") {
    if (both) walk_value(l, nullptr), walk_value(r, nullptr);
  } else if (op == "in" || op == "not in") {
    if (is_container(l)) walk_value(l, nullptr);
    if (!r->val_arr.empty()) walk_value(r, nullptr);
    if (is_string(l) && is_string(r)) check_search(r->val_str.length(), l->val_str.length());
  } else if (op == "*") {
    const value& text = is_string(l) ? l : r;
    const value& times = is_string(l) ? r : l;
    if (!is_string(text) || !is_integer(times) || times->as_int() <= 0) return;
    const size_t bytes = text->val_str.length() + text->val_str.parts.size() * kPartBytes;
    if (size_t(times->as_int()) > kMaxStringBytes / std::max<size_t>(bytes, 1))
      throw TemplateLimit("string too long");
    check_length(bytes * size_t(times->as_int()));
  } else if (both) {
    template_budget().charge((l->val_arr.size() + r->val_arr.size()) * 32);
  } else {
    if (is_container(l)) walk_value(l, nullptr);
    if (is_container(r)) walk_value(r, nullptr);
  }
}

const jinja::func_handler* find_filter(const value& input, const std::string& name) {
  const jinja::func_builtins& builtins = input->get_builtins();
  const auto found = builtins.find(name);
  return found == builtins.end() ? nullptr : &found->second;
}

value call_builtin(const std::string& name, const jinja::func_handler& builtin, const func_args& given) {
  func_args args(given);
  args.func_name = name;
  check_arguments(name, args);
  const Values& all = args.get_args();
  const bool on_string = !all.empty() && is_string(all[0]);
  if (name == "strftime_now") return now_as_text(args);
  if (name == "replace" && on_string && all.size() >= 3 && is_string(all[1]) && is_string(all[2]))
    return linear_replace(args);
  if (name == "split" && on_string) return linear_split(args);
  if (name == "range") check_range(all);
  if (name == "slice") check_slice(all);
  if (name == "divisibleby" || name == "test_is_divisibleby") check_divisible(all);
  if (!all.empty() && is_container(all[0])) {
    if (name == "sort" || name == "min" || name == "max") check_sort(args);
    if (name == "dictsort") check_dictsort(args);
    if (name == "join") check_join(args);
    if (name.starts_with("select") || name.starts_with("reject")) check_select(args);
  }
  if (name == "indent" && on_string) check_indent(args);
  const bool as_json = name == "tojson" || name == "string" || name == "safe";
  if (as_json && !all.empty() && !on_string) check_tojson(args);
  return builtin(args);
}

}  // namespace sluice
