// POST /tokenize and /detokenize, in the form of llama.cpp's server.
#include "server/answer_json.h"
#include "server/api.h"
#include "text/utf8.h"

namespace sluice {

namespace {

struct TokenizeRequest {
  GenerationOptions options;
  std::optional<std::string> content;
  bool add_special = false;
  bool parse_special = true;
  bool with_pieces = false;
};

struct DetokenizeRequest {
  GenerationOptions options;
  std::optional<std::vector<int32_t>> tokens;
};

using Bounds = RequestBounds;

Status read_content(JsonView value, TokenizeRequest& r, const Bounds&) {
  std::string text;
  Status status = read_text(value, text);
  r.content = std::move(text);
  return status;
}

constexpr Member<TokenizeRequest> kTokenizeMembers[] = {
    {"content", read_content},
    {"add_special",
     [](JsonView v, TokenizeRequest& r, const Bounds&) { return read_boolean(v, r.add_special); }},
    {"parse_special",
     [](JsonView v, TokenizeRequest& r, const Bounds&) { return read_boolean(v, r.parse_special); }},
    {"with_pieces",
     [](JsonView v, TokenizeRequest& r, const Bounds&) { return read_boolean(v, r.with_pieces); }},
};

Status read_tokens(JsonView value, DetokenizeRequest& r, const Bounds& bounds) {
  r.tokens.emplace();
  return read_token_ids(value, bounds.vocab, SIZE_MAX, *r.tokens);
}

constexpr Member<DetokenizeRequest> kDetokenizeMembers[] = {{"tokens", read_tokens}};

// The piece as text, or as an array of bytes where it is no whole character.
void append_piece(JsonWriter& w, std::string_view piece) {
  if (is_valid_utf8(piece)) {
    w.string(piece);
    return;
  }
  w.begin_array();
  for (const char c : piece) w.integer(static_cast<unsigned char>(c));
  w.end_array();
}

template <typename Request>
Status parse_body(std::string_view body, std::span<const Member<Request>> members, const Bounds& bounds,
                  Request& out) {
  auto document = JsonDocument::parse(body);
  if (!document.ok()) return document.error();
  return read_members<Request>(document->root(), members, out, bounds);
}

}  // namespace

HttpResponse tokenize(std::string_view body, const ApiCall& call) {
  TokenizeRequest request;
  Status status = parse_body<TokenizeRequest>(body, kTokenizeMembers, bounds_of(call), request);
  if (!status.ok()) return error_response(api_error(status.error()));
  if (!request.content) return error_response(api_error(member_error("is required.", "content")));
  const Tokenizer& tokenizer = call.model.tokenizer();
  const std::vector<int32_t> ids =
      tokenizer.encode(*request.content, request.add_special, request.parse_special);
  HttpResponse response;
  JsonWriter w(response.body);
  w.begin_object().key("tokens");
  if (!request.with_pieces) {
    w.integers(ids);
  } else {
    w.begin_array();
    for (const int32_t id : ids) {
      w.begin_object().key("id").integer(id).key("piece");
      append_piece(w, tokenizer.piece(id, ControlText::kShow));
      w.end_object();
    }
    w.end_array();
  }
  w.end_object();
  return response;
}

HttpResponse detokenize(std::string_view body, const ApiCall& call) {
  DetokenizeRequest request;
  Status status = parse_body<DetokenizeRequest>(body, kDetokenizeMembers, bounds_of(call), request);
  if (!status.ok()) return error_response(api_error(status.error()));
  if (!request.tokens) return error_response(api_error(member_error("is required.", "tokens")));
  HttpResponse response;
  JsonWriter w(response.body);
  w.begin_object().key("content");
  w.string(replace_invalid_utf8(call.model.tokenizer().decode(*request.tokens, ControlText::kShow)))
      .end_object();
  return response;
}

}  // namespace sluice
