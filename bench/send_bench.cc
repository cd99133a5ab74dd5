// Ways to hand a turn's frames to the kernel: one frame for each of many connections, over TCP on this machine,
// read by another thread. Writes down the CPU time of the whole process for a frame, reading included: io_uring
// may leave work to threads of the kernel's, which the sending thread's own time would not show.
//
//     ./dev deps bench && ninja -C build/release send_bench && build/release/src/server/send_bench   # about
//     half a minute
//
// send:      one call of send() a connection, from one buffer (what the server does)
// sendmsg 3: the same from three: a chunk's head, its frames, its end
// zerocopy:  send() with MSG_ZEROCOPY; the notices are taken from the error queue once a turn
// uring:     one io_uring_enter() a turn with a send for each connection
// uring zc:  the same by IORING_OP_SEND_ZC from registered buffers
// plain 4:   four calls of send() a connection, each a quarter of the frame: a write for each token
#include <arpa/inet.h>
#include <liburing.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kRounds = 5;
constexpr long kFrames = 60000;  // of a round

void must(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::exit(1);
}

double cpu_us() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) * 1e6 + double(t.tv_nsec) / 1e3;
}

// Connections to a thread that reads all that comes.
class Clients {
 public:
  explicit Clients(int count) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    must(bind(listener, reinterpret_cast<sockaddr*>(&at), size) == 0 && listen(listener, count) == 0, "listen");
    getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size);
    poll_ = epoll_create1(0);
    for (int i = 0; i < count; ++i) {
      const int reader = socket(AF_INET, SOCK_STREAM, 0);
      must(connect(reader, reinterpret_cast<sockaddr*>(&at), size) == 0, "connect");
      fds.push_back(accept(listener, nullptr, nullptr));
      const int on = 1;
      setsockopt(fds.back(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      epoll_event event{};
      event.events = EPOLLIN, event.data.fd = reader;
      must(epoll_ctl(poll_, EPOLL_CTL_ADD, reader, &event) == 0, "epoll_ctl");
      readers_.push_back(reader);
    }
    close(listener);
    thread_ = std::thread([this] { read_all(); });
  }
  ~Clients() {
    over_ = true;
    thread_.join();
    for (const int fd : fds) close(fd);
    for (const int fd : readers_) close(fd);
    close(poll_);
  }
  void wait_for(size_t bytes) const {
    while (read_.load(std::memory_order_relaxed) < bytes) usleep(20);
  }
  std::vector<int> fds;

 private:
  void read_all() {
    std::vector<char> scratch(64 << 10);
    epoll_event events[256];
    while (!over_) {
      const int n = epoll_wait(poll_, events, 256, 10);
      for (int i = 0; i < n; ++i) {
        const ssize_t got = recv(events[i].data.fd, scratch.data(), scratch.size(), MSG_DONTWAIT);
        if (got > 0) read_.fetch_add(size_t(got), std::memory_order_relaxed);
      }
    }
  }
  int poll_ = -1;
  std::vector<int> readers_;
  std::atomic<size_t> read_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

struct Turn {
  const std::vector<int>& fds;
  const std::string& frame;
};

void send_whole(const Turn& turn) {
  for (const int fd : turn.fds) must(send(fd, turn.frame.data(), turn.frame.size(), MSG_NOSIGNAL) > 0, "send");
}

void send_quarters(const Turn& turn) {
  const size_t quarter = turn.frame.size() / 4;
  for (const int fd : turn.fds)
    for (size_t at = 0; at < 4; ++at) {
      const size_t bytes = at < 3 ? quarter : turn.frame.size() - 3 * quarter;
      must(send(fd, turn.frame.data() + at * quarter, bytes, MSG_NOSIGNAL) > 0, "send");
    }
}

void send_parts(const Turn& turn) {
  char* data = const_cast<char*>(turn.frame.data());
  iovec parts[3] = {{data, 5}, {data + 5, turn.frame.size() - 7}, {data + turn.frame.size() - 2, 2}};
  msghdr message{};
  message.msg_iov = parts, message.msg_iovlen = 3;
  for (const int fd : turn.fds) must(sendmsg(fd, &message, MSG_NOSIGNAL) > 0, "sendmsg");
}

void send_zerocopy(const Turn& turn) {
  for (const int fd : turn.fds)
    must(send(fd, turn.frame.data(), turn.frame.size(), MSG_NOSIGNAL | MSG_ZEROCOPY) > 0, "MSG_ZEROCOPY");
  for (const int fd : turn.fds) {
    char control[128];
    msghdr notice{};
    notice.msg_control = control, notice.msg_controllen = sizeof control;
    while (recvmsg(fd, &notice, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) notice.msg_controllen = sizeof control;
  }
}

void send_uring(io_uring& ring, const Turn& turn, bool registered) {
  for (const int fd : turn.fds) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring);
    io_uring_prep_send(sqe, fd, turn.frame.data(), turn.frame.size(), MSG_NOSIGNAL);
    if (registered) {
      sqe->opcode = 47;       // IORING_OP_SEND_ZC, which liburing 2.3 can name and Debian's headers may not
      sqe->ioprio = 1u << 2;  // IORING_RECVSEND_FIXED_BUF
      sqe->buf_index = 0;
    }
  }
  must(io_uring_submit_and_wait(&ring, unsigned(turn.fds.size())) >= 0, "io_uring_submit");
  size_t waiting = turn.fds.size();
  while (waiting > 0) {
    io_uring_cqe* cqe = nullptr;
    must(io_uring_wait_cqe(&ring, &cqe) == 0, "io_uring_wait_cqe");
    if (cqe->res < 0) std::fprintf(stderr, "io_uring: %s\n", std::strerror(-cqe->res)), std::exit(1);
    // A send without copying ends twice: sent, and its memory free again.
    if (!(cqe->flags & 2u)) --waiting;  // IORING_CQE_F_MORE
    io_uring_cqe_seen(&ring, cqe);
  }
}

// The median over rounds of CPU microseconds a frame.
double measure(int connections, size_t bytes, bool zerocopy, const std::function<void(const Turn&)>& way) {
  Clients clients(connections);
  const int on = 1;
  if (zerocopy)
    for (const int fd : clients.fds) setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
  const std::string frame(bytes, 'x');
  const Turn turn{clients.fds, frame};
  std::vector<double> costs;
  size_t sent = 0;
  for (int round = 0; round <= kRounds; ++round) {
    double cost = 0;
    const long turns = std::max(1L, kFrames / connections);
    for (long i = 0; i < turns; ++i) {
      const double from = cpu_us();
      way(turn);
      sent += bytes * size_t(connections);
      clients.wait_for(sent);
      cost += cpu_us() - from;
    }
    if (round > 0) costs.push_back(cost / double(turns * connections));
  }
  std::nth_element(costs.begin(), costs.begin() + kRounds / 2, costs.end());
  return costs[kRounds / 2];
}

double measure_uring(int connections, size_t bytes, bool registered) {
  io_uring ring{};
  if (io_uring_queue_init(unsigned(connections) * 2, &ring, 0) != 0)
    return NAN;  // forbidden in many containers
  bool known = false;
  const double cost = measure(connections, bytes, registered, [&](const Turn& turn) {
    if (registered && !known) {
      iovec buffer{const_cast<char*>(turn.frame.data()), turn.frame.size()};
      must(io_uring_register_buffers(&ring, &buffer, 1) == 0, "io_uring_register_buffers");
      known = true;
    }
    send_uring(ring, turn, registered);
  });
  io_uring_queue_exit(&ring);
  return cost;
}

}  // namespace

int main() {
  std::printf("CPU us a frame, sent and read, median of %d rounds of %ld frames\n", kRounds, kFrames);
  std::printf("%11s %6s %8s %10s %9s %8s %9s %8s\n", "connections", "bytes", "send", "sendmsg 3", "zerocopy",
              "uring", "uring zc", "plain 4");
  for (const int connections : {64, 512})
    for (const size_t bytes : {size_t{200}, size_t{1000}, size_t{8000}}) {
      std::printf("%11d %6zu %8.2f", connections, bytes, measure(connections, bytes, false, send_whole));
      std::printf(" %10.2f", measure(connections, bytes, false, send_parts));
      std::printf(" %9.2f", measure(connections, bytes, true, send_zerocopy));
      std::printf(" %8.2f", measure_uring(connections, bytes, false));
      std::printf(" %9.2f", measure_uring(connections, bytes, true));
      std::printf(" %8.2f\n", measure(connections, bytes, false, send_quarters));
      std::fflush(stdout);
    }
}
