// Waiting in the kernel for a word to change (Linux).
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace strata {

inline int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

// Returns once `word` no longer is `value`, sooner for no reason at times, or after `nanoseconds` (negative: never).
inline void wait_while(std::atomic<uint32_t>& word, uint32_t value, int64_t nanoseconds = -1) {
  timespec t{nanoseconds / 1'000'000'000LL, nanoseconds % 1'000'000'000LL};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nanoseconds < 0 ? nullptr : &t, nullptr, 0);
}

inline void wake_all(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace strata
