#include "server/http_parser.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <string>

namespace sluice {

namespace http = boost::beast::http;

struct HttpParser::Impl {
  http::request_parser<http::string_body> parser;
  size_t max_body = 0, max_head = 0, head_bytes = 0;
  bool head_checked = false;
};

HttpParser::HttpParser(size_t max_header_bytes, size_t max_body_bytes) : impl_(new Impl) {
  impl_->max_body = max_body_bytes;
  impl_->max_head = max_header_bytes;
  // Beast's limit forgets the fields that earlier reads brought: a head sent in pieces would have none. Ours
  // counts.
  impl_->parser.header_limit(UINT32_MAX);
  impl_->parser.body_limit(max_body_bytes);
  impl_->parser.eager(false);
}

HttpParser::~HttpParser() = default;

bool HttpParser::head_done() const { return impl_->parser.is_header_done(); }
bool HttpParser::done() const { return error_status_ == 0 && impl_->parser.is_done(); }
size_t HttpParser::body_bytes() const { return impl_->parser.get().body().size(); }

void HttpParser::fail(int status, std::string message) {
  error_status_ = status;
  error_ = std::move(message);
}

namespace {

std::string too_large(size_t limit) {
  return "The request body is over the limit of " + std::to_string(limit) + " bytes.";
}

}  // namespace

// Beast limits a Content-Length itself, but lets other transfer codings and lists of equal lengths through.
void HttpParser::check_head() {
  const auto& message = impl_->parser.get();
  const auto lengths = message.equal_range(http::field::content_length);
  for (auto it = lengths.first; it != lengths.second; ++it) {
    const auto value = it->value();
    const bool digits = std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || std::distance(lengths.first, lengths.second) > 1) {
      return fail(400, "Content-Length must be one number.");
    }
  }
  // RFC 9112, section 3.2.
  const auto hosts = message.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && message.version() == 11)) return fail(400, "A request has one Host header.");
  const auto coding = message.find(http::field::transfer_encoding);
  if (coding != message.end() && !equal_ignoring_case(coding->value(), "chunked"))
    return fail(501, "Only the chunked transfer coding is known.");
  const auto content_coding = message.find(http::field::content_encoding);
  if (content_coding != message.end() && !equal_ignoring_case(content_coding->value(), "identity")) {
    return fail(415, "Compressed request bodies are not accepted.");
  }
  const auto length = impl_->parser.content_length();
  if (length && *length > impl_->max_body) fail(413, too_large(impl_->max_body));
}

size_t HttpParser::take(std::string_view bytes) {
  size_t taken = 0;
  while (error_status_ == 0 && !impl_->parser.is_done() && taken < bytes.size()) {
    const bool had_head = head_done();
    boost::system::error_code ec;
    const size_t n =
        impl_->parser.put(boost::asio::const_buffer(bytes.data() + taken, bytes.size() - taken), ec);
    taken += n;
    if (!had_head && (!ec || ec == http::error::need_more)) {
      impl_->head_bytes += n;
      const size_t seen = impl_->head_bytes + (head_done() ? 0 : bytes.size() - taken);
      if (seen > impl_->max_head) {
        fail(431, "The request head is over the limit of " + std::to_string(impl_->max_head) + " bytes.");
        break;
      }
    }
    if (ec == http::error::need_more) break;
    if (ec == http::error::body_limit) {
      fail(413, too_large(impl_->max_body));
    } else if (ec == http::error::bad_version) {
      fail(505, "Only HTTP/1.0 and HTTP/1.1 are spoken here.");
    } else if (ec) {
      fail(400, "The request is not valid HTTP/1.1 (" + ec.message() + ").");
    }
    if (error_status_ == 0 && head_done() && !impl_->head_checked) {
      impl_->head_checked = true;
      check_head();
    }
    if (!had_head && head_done()) break;
    if (n == 0 && !ec) break;
  }
  return taken;
}

bool HttpParser::expects_continue() const {
  const auto& message = impl_->parser.get();
  const auto expect = message.find(http::field::expect);
  return message.version() == 11 && expect != message.end() &&
         equal_ignoring_case(expect->value(), "100-continue");
}

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0) {
      out += char(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

HttpRequest HttpParser::release() {
  auto message = impl_->parser.release();
  HttpRequest out;
  out.method = std::string(message.method_string());
  out.version = int(message.version());
  out.keep_alive = message.keep_alive();
  std::string_view target = message.target();
  // Absolute form, as a proxy would be sent it.
  for (std::string_view scheme : {"http://", "https://"}) {
    if (target.starts_with(scheme)) {
      const size_t slash = target.find('/', scheme.size());
      target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
    }
  }
  const size_t hash = std::min(target.find('#'), target.size());
  target = target.substr(0, hash);
  const size_t question = target.find('?');
  if (question != std::string_view::npos) out.query = std::string(target.substr(question + 1));
  out.path = percent_decoded(target.substr(0, question));
  for (const auto& field : message)
    out.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  out.body = std::move(message.body());
  return out;
}

}  // namespace sluice
