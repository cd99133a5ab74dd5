// `sluice trace`: hands over to sluice-trace (tools/trace), a program of its own beside this one, since it
// needs libbpf and libelf, which the server is to know nothing of.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "cli/commands.h"

namespace sluice::cli {

int trace(const std::vector<std::string>& arguments) {
  char self[4096];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self);
  std::string path(self, n > 0 ? size_t(n) : 0);
  path = path.substr(0, path.rfind('/') + 1) + "sluice-trace";
  std::vector<char*> argv = {path.data()};
  std::vector<std::string> words = arguments;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(path.c_str(), argv.data());
  if (errno != ENOENT) return failure(path + ": " + std::strerror(errno));
  return failure(
      path +
      " is missing: the build makes it where libbpf 1, libelf and clang are (Debian: libbpf-dev, clang). "
      "tools/bpf/waterfall.bt shows much of the same with bpftrace");
}

}  // namespace sluice::cli
