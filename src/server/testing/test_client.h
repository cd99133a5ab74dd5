// For tests: a socket that speaks HTTP/1.1 by hand, so that a test can send what no library would.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct TestResponse {
  int status = 0;                              // 0: the connection ended first
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  // Lower-case name; "" where there is none.
  std::string header(const std::string& name) const { return headers.count(name) > 0 ? headers.at(name) : ""; }
  bool complete = false;  // the whole body came
};

class TestClient {
 public:
  // `receive_buffer`: of the socket, bytes; 0: the system's.
  explicit TestClient(int port, int receive_buffer = 0);
  ~TestClient();
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  void send(std::string_view bytes);
  TestResponse read_response(bool head_only = false);
  // Reads until `text` has come; returns all that came since the last read, `text` included. Empty: the end
  // came first.
  std::string read_until(std::string_view text);
  // True once the server has closed its side.
  bool at_end();
  void close();       // FIN
  void reset();       // RST
  void half_close();  // FIN, still reading

  TestResponse get(const std::string& path);
  TestResponse post(const std::string& path, const std::string& body, const std::string& headers = "");

 private:
  bool fill();
  int fd_ = -1;
  std::string in_;
};

std::string post_text(const std::string& path, const std::string& body, const std::string& headers = "");
// Payloads of the `data:` lines of a server-sent event stream.
std::vector<std::string> sse_payloads(const std::string& body);

}  // namespace sluice
