// What a template is asked before the engine's parser sees it: that parser recurses without limit, and the tree
// it builds is walked, run and freed by recursion too.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "text/template_guard.h"

namespace sluice {
namespace {

constexpr size_t kMaxBlockDepth = 100;       // blocks within blocks, each elif counting as one
constexpr size_t kMaxExpressionDepth = 400;  // operators, calls and brackets on the way to a leaf

// Depth of the syntax tree that the tokens of one tag can build: brackets nest, and within one pair of brackets
// operators chain until a comma.
class ExpressionDepth {
 public:
  bool add(const jinja::token& token) {  // false: too deep
    using T = jinja::token;
    switch (token.t) {
      case T::open_statement:
      case T::open_expression:
        levels_.assign(1, 0);
        total_ = 0;
        break;
      case T::open_paren:
      case T::open_square_bracket:
      case T::open_curly_bracket:
        count();
        levels_.push_back(0);
        break;
      case T::close_paren:
      case T::close_square_bracket:
      case T::close_curly_bracket:
        if (levels_.size() > 1) drop();
        break;
      case T::comma:
        total_ -= levels_.back();
        levels_.back() = 0;
        break;
      case T::dot:
      case T::pipe:
      case T::additive_binary_operator:
      case T::multiplicative_binary_operator:
      case T::comparison_binary_operator:
      case T::unary_operator:
        count();
        break;
      case T::identifier:
        if (token.value == "if" || token.value == "not" || token.value == "and" || token.value == "or" ||
            token.value == "in" || token.value == "is" || token.value == "else") {
          count();
        }
        break;
      default:
        break;
    }
    return total_ <= kMaxExpressionDepth;
  }

 private:
  void count() {
    ++levels_.back();
    ++total_;
  }
  void drop() {
    total_ -= levels_.back();
    levels_.pop_back();
  }
  std::vector<size_t> levels_{0};
  size_t total_ = 0;
};

bool opens_set_block(const std::vector<jinja::token>& tokens, size_t at) {
  for (; at < tokens.size() && tokens[at].t != jinja::token::close_statement; ++at) {
    if (tokens[at].t == jinja::token::equals) return false;
  }
  return true;
}

}  // namespace

std::string template_position(const std::string& source, size_t at) {
  const std::string_view before = std::string_view(source).substr(0, std::min(at, source.size()));
  const size_t line = 1 + size_t(std::count(before.begin(), before.end(), '\n'));
  const size_t start = before.rfind('\n');
  return fmt::format("line {}, column {}", line, before.size() - (start == before.npos ? 0 : start + 1) + 1);
}

Status check_template_tokens(const jinja::lexer_result& lexed, const std::string& source) {
  static const std::set<std::string> others = {"break", "continue", "generation", "endgeneration", "else"};
  struct Block {
    std::string name;
    size_t pos;
    size_t depth;  // 1, and one more for each elif
  };
  std::vector<Block> open;
  size_t depth = 0;
  auto error = [&source](const std::string& text, size_t pos) {
    return Status(Error{ErrorCode::kInvalidArgument,
                        fmt::format("chat template: {} ({})", text, template_position(source, pos)),
                        "chat_template"});
  };
  const std::vector<jinja::token>& tokens = lexed.tokens;
  ExpressionDepth expression;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!expression.add(tokens[i])) return error("expression nested too deeply", tokens[i].pos);
    if (tokens[i].t != jinja::token::open_statement) continue;
    const size_t pos = tokens[i].pos;
    if (i + 1 == tokens.size() || tokens[i + 1].t != jinja::token::identifier)
      return error("unknown statement", pos);
    const std::string& name = tokens[i + 1].value;
    if (name == "if" || name == "for" || name == "macro" || name == "call" || name == "filter" ||
        name == "set") {
      if (name == "set" && !opens_set_block(tokens, i + 2)) continue;
      open.push_back({name, pos, 1});
      ++depth;
    } else if (name == "elif") {
      if (open.empty() || open.back().name != "if") return error("elif without if", pos);
      ++open.back().depth;
      ++depth;
    } else if (name.starts_with("end") && name != "endgeneration") {
      if (open.empty() || name != "end" + open.back().name) {
        return error(
            open.empty() ? name + " closes nothing" : name + " where end" + open.back().name + " is due", pos);
      }
      depth -= open.back().depth;
      open.pop_back();
    } else if (!others.count(name)) {
      return error("unknown statement '" + name.substr(0, 40) + "'", pos);
    }
    if (depth > kMaxBlockDepth) return error("blocks nested too deeply", pos);
  }
  if (!open.empty()) return error("'" + open.back().name + "' is never closed", open.back().pos);
  return {};
}

std::vector<std::string> used_globals(const jinja::lexer_result& tokens) {
  std::set<std::string> names;
  bool after_pipe = false;  // filters are found by type, not as variables
  for (const jinja::token& token : tokens.tokens) {
    if (token.t == jinja::token::identifier && !after_pipe && jinja::global_builtins().count(token.value)) {
      names.insert(token.value);
    }
    after_pipe = token.t == jinja::token::pipe;
  }
  return {names.begin(), names.end()};
}

}  // namespace sluice
