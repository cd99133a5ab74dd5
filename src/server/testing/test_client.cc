#include "server/testing/test_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"

namespace sluice {

TestClient::TestClient(int port, int receive_buffer) {
  fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
  CHECK(fd_ >= 0);
  if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  // Only so that a broken server fails a test instead of hanging it.
  const timeval limit{60, 0};
  for (const int direction : {SO_RCVTIMEO, SO_SNDTIMEO})
    setsockopt(fd_, SOL_SOCKET, direction, &limit, sizeof limit);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(uint16_t(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
}

TestClient::~TestClient() { close(); }

void TestClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return;  // the server closed; what it said is still to be read
    bytes.remove_prefix(size_t(n));
  }
}

bool TestClient::fill() {
  char buffer[65536];
  const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
  if (n <= 0) return false;
  in_.append(buffer, size_t(n));
  return true;
}

std::string TestClient::read_until(std::string_view text) {
  for (;;) {
    const size_t at = in_.find(text);
    if (at != std::string::npos) {
      std::string out = in_.substr(0, at + text.size());
      in_.erase(0, out.size());
      return out;
    }
    if (!fill()) return {};
  }
}

TestResponse TestClient::read_response(bool head_only) {
  TestResponse response;
  const std::string head = read_until("\r\n\r\n");
  if (head.size() < 12) return response;
  response.status = std::stoi(head.substr(9, 3));
  for (size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
    const size_t end = head.find("\r\n", at);
    const size_t colon = head.find(':', at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return char(std::tolower(c)); });
    response.headers[name] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  response.complete = true;
  if (head_only || response.status == 204 || response.status == 100) return response;
  if (response.headers.count("content-length") > 0) {
    const size_t length = std::stoul(response.headers["content-length"]);
    while (in_.size() < length && fill()) {
    }
    response.body = in_.substr(0, length);
    response.complete = response.body.size() == length;
    in_.erase(0, response.body.size());
    return response;
  }
  if (response.headers.count("transfer-encoding") == 0) {
    while (fill()) {
    }
    response.body = std::move(in_);
    in_.clear();
    return response;
  }
  for (;;) {
    const std::string line = read_until("\r\n");
    if (line.empty()) break;
    const size_t length = std::stoul(line, nullptr, 16);
    while (in_.size() < length + 2 && fill()) {
    }
    if (in_.size() < length + 2) break;
    response.body += in_.substr(0, length);
    in_.erase(0, length + 2);
    if (length == 0) return response;
  }
  response.complete = false;
  return response;
}

bool TestClient::at_end() {
  while (fill()) {
  }
  return true;
}

void TestClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void TestClient::reset() {
  const linger now{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

void TestClient::half_close() { ::shutdown(fd_, SHUT_WR); }

std::string post_text(const std::string& path, const std::string& body, const std::string& headers) {
  return "POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TestResponse TestClient::get(const std::string& path) {
  send("GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n");
  return read_response();
}

TestResponse TestClient::post(const std::string& path, const std::string& body, const std::string& headers) {
  send(post_text(path, body, headers));
  return read_response();
}

std::vector<std::string> sse_payloads(const std::string& body) {
  std::vector<std::string> out;
  size_t at = 0;
  for (;;) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos) return out;
    std::string event = body.substr(at, end - at);
    if (event.starts_with("event: ")) event.erase(0, event.find('\n') + 1);
    CHECK(event.starts_with("data: "));
    out.push_back(event.substr(6));
    at = end + 2;
  }
}

}  // namespace sluice
