// The one thread team of the CPU backend. The calling (executor) thread is member 0; the others spin briefly
// between ops of a step and sleep between steps. Owner: the CPU backend. `run` is called by one thread at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace sluice::cpu {

class Team {
 public:
  // threads >= 1, this one included. Members run where the thread that makes them may: where else, the
  // machine's plan says (engine/machine_plan.h), and it gives them sets of CPUs rather than one each, since a
  // worker that is pinned must wait when the scheduler has put the caller on its core (it would have moved a
  // free one).
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

  // Runs f(task, member) for every task in [0, count) and returns when all are done. Tasks are taken in order
  // by whoever is free; a member that is asleep or whose core is busy with something else is not waited for, so
  // on a shared machine this is the quicker of the two. f must not throw, and must not call barrier(). No
  // allocation.
  template <typename F>
  void run_tasks(int count, const F& f) {
    run_tasks_erased([](const void* ctx, int task, int member) { (*static_cast<const F*>(ctx))(task, member); },
                     &f, count);
  }

 private:
  using Erased = void (*)(const void*, int, int);
  void run_erased(Erased f, const void* ctx);
  void run_tasks_erased(Erased f, const void* ctx, int count);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::cpu
