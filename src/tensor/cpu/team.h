// The one thread team of the CPU backend. The calling (executor) thread is member 0; the others spin briefly between
// ops of a step and sleep between steps. Owner: the CPU backend. `run` is called by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace sluice::cpu {

class Team {
 public:
  // threads >= 1, this one included. Members are not pinned: member 0 is the caller's thread, which is not ours to pin,
  // and a pinned worker must wait when the scheduler has put the caller on its core (it would have moved a free one).
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;

  int size() const;

  // Runs f(member, size) on every member and returns when all have finished. f must not throw. No allocation.
  template <typename F>
  void run(const F& f) {
    run_erased([](const void* ctx, int member, int size) { (*static_cast<const F*>(ctx))(member, size); }, &f);
  }

  // Inside `run`: all members meet here.
  void barrier();

 private:
  using Erased = void (*)(const void*, int, int);
  void run_erased(Erased f, const void* ctx);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::cpu
