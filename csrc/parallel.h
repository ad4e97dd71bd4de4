// Threads: TBB's where oneDNN was built with TBB, so that both share one pool; else our own loops run on the caller.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#if JCC_TBB
#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

namespace jcc {

// How many threads a kernel started from this thread may use.
inline int NumThreads() {
#if JCC_TBB
  return tbb::this_task_arena::max_concurrency();
#else
  return 1;
#endif
}

// Calls body(begin, end) for pieces of [0, count), each of about `grain` or more.
template <typename Body>
void ParallelFor(int64_t count, int64_t grain, const Body& body) {
#if JCC_TBB
  if (count > grain && NumThreads() > 1) {
    tbb::parallel_for(tbb::blocked_range<int64_t>(0, count, std::max<int64_t>(grain, 1)),
                      [&](const tbb::blocked_range<int64_t>& r) { body(r.begin(), r.end()); });
    return;
  }
#endif
  (void)grain;
  if (count > 0) body(int64_t{0}, count);
}

// The most threads that a kernel may use; 0: those that the affinity mask allowed when TBB started.
inline std::atomic<int> thread_limit{0};

// Runs body() within the limit, or with the caller's thread alone: for problems too small to share.
template <typename Body>
void WithThreads(bool serial, const Body& body) {
#if JCC_TBB
  const int limit = thread_limit;
  // An arena for each calling thread: one of n slots would admit n callers at a time.
  thread_local tbb::task_arena alone(1), limited(limit > 0 ? limit : tbb::task_arena::automatic);
  if (serial) {
    alone.execute(body);
  } else if (limit > 0) {
    limited.execute(body);
  } else {
    body();
  }
#else
  (void)serial;
  body();
#endif
}

}  // namespace jcc
