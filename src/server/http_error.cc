#include "server/http_error.h"

#include "server/json_writer.h"

namespace sluice {

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kUnsupported:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kTooLarge:
      return 413;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kResourceExhausted:
      return 429;
    case ErrorCode::kDeadlineExceeded:
      return 504;
    case ErrorCode::kCorrupt:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

namespace {

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "server_overloaded";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

const char* default_code(int status) {
  switch (status) {
    case 401:
      return "invalid_api_key";
    case 408:
      return "request_timeout";
    case 413:
      return "request_too_large";
    case 429:
      return "queue_full";
    case 503:
      return "unavailable";
    case 504:
      return "deadline_exceeded";
    default:
      return nullptr;
  }
}

}  // namespace

std::string error_json(int status, std::string_view message, std::string_view param, std::string_view code) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("error").begin_object();
  w.key("message").string(message);
  w.key("type").string(error_type(status));
  w.key("param");
  if (param.empty())
    w.null();
  else
    w.string(param);
  w.key("code");
  if (!code.empty())
    w.string(code);
  else if (const char* fallback = default_code(status))
    w.string(fallback);
  else
    w.null();
  w.end_object().end_object();
  return out;
}

std::string error_json(const ApiError& e) {
  return error_json(http_status(e.error.code), e.error.message, e.error.field, e.code);
}

HttpResponse error_response(int status, std::string_view message, std::string_view param,
                            std::string_view code) {
  HttpResponse response;
  response.status = status;
  response.body = error_json(status, message, param, code);
  response.error = std::string(message);
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", "1");
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse error_response(const ApiError& e) {
  return error_response(http_status(e.error.code), e.error.message, e.error.field, e.code);
}

void set_retry_after(HttpResponse& response, int seconds) {
  std::erase_if(response.headers, [](const auto& header) { return header.first == "Retry-After"; });
  response.headers.emplace_back("Retry-After", std::to_string(seconds));
}

namespace {

const char* anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 504:
      return "timeout_error";
    case 529:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

void style_error(HttpResponse& response, ErrorStyle style, std::string_view request_id) {
  if (style == ErrorStyle::openai || response.error.empty()) return;
  // A 429 of the server's load is not this client's doing: "overloaded" in Anthropic's words.
  if (response.status == 503 || (response.status == 429 && !response.own_rate)) response.status = 529;
  response.body.clear();
  JsonWriter w(response.body);
  w.begin_object().key("type").string("error").key("error").begin_object();
  w.key("type").string(anthropic_type(response.status)).key("message").string(response.error).end_object();
  w.key("request_id").string(request_id).end_object();
}

ApiError api_error(Error error) {
  if (!error.field.empty() && !error.message.empty() && error.message.front() >= 'a' &&
      error.message.front() <= 'z') {
    error.message = "'" + error.field + "' " + error.message;
  }
  return {std::move(error), ""};
}

}  // namespace sluice
