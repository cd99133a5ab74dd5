// The one place where an Error becomes an HTTP answer, in OpenAI's shape {"error":{message,type,param,code}},
// or in another API's own.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "server/http.h"

namespace sluice {

// `code` member where it says more than the type does: "context_length_exceeded", "model_not_found".
struct ApiError {
  Error error;
  std::string code{};
};

// Puts the field's name before a message that goes on after it ("must be …").
ApiError api_error(Error error);

int http_status(ErrorCode code);
// {"error":{…}}, also what a stream says after its head was sent.
std::string error_json(int status, std::string_view message, std::string_view param = {},
                       std::string_view code = {});
std::string error_json(const ApiError& error);
// 429 and 503 carry Retry-After.
HttpResponse error_response(int status, std::string_view message, std::string_view param = {},
                            std::string_view code = {});
HttpResponse error_response(const ApiError& error);
void set_retry_after(HttpResponse& response, int seconds);

// How an API words its errors.
enum class ErrorStyle : uint8_t {
  openai,
  anthropic,  // {"type":"error","error":{type,message},"request_id"}, and 529 where others say 503, or 429 for
              // load
};
// Rewords what error_response made; leaves any other answer alone.
void style_error(HttpResponse& response, ErrorStyle style, std::string_view request_id);

}  // namespace sluice
