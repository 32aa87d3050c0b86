// A small thread pool: one job at a time, split into tasks that threads take from a shared counter.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace flexinfer {

// `threads` in total: the caller of run() is one of them, so Pool(1) starts none.
//
// Workers spin for some tens of microseconds after a job (the next one of a sweep follows at once), then sleep;
// they never spin when there are more threads than CPUs. A worker that wakes too late simply finds the job closed:
// run() waits only for workers that have begun a task. So a slow wake-up, or a fork() (which leaves the child without
// workers), costs speed and nothing else; forking while another thread is inside run() is not supported.
class Pool {
 public:
  explicit Pool(int threads);  // throws std::system_error where the system gives fewer
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Calls f(task, thread) once for every task in [0, tasks), thread in [0, threads()), and returns when all are done.
  // f must not throw and must not call run(). Only one thread may be inside run() at a time (Context sees to it).
  template <class F>
  void run(int64_t tasks, F&& f) {
    if (tasks <= 1 || threads_ == 1) {
      for (int64_t task = 0; task < tasks; ++task) f(task, 0);
      return;
    }
    using Callable = std::remove_reference_t<F>;
    run_shared({[](const void* callable, int64_t task, int thread) {
                  (*static_cast<Callable*>(const_cast<void*>(callable)))(task, thread);
                },
                &f, tasks});
  }

 private:
  struct Job {
    void (*call)(const void* callable, int64_t task, int thread);
    const void* callable;
    int64_t tasks;
  };
  struct Shared;

  void run_shared(const Job& job);
  void stop();

  const int threads_;
  std::unique_ptr<Shared> shared_;
  std::vector<std::thread> workers_;
};

}  // namespace flexinfer
