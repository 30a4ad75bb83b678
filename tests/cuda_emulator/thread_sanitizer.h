// SPDX-License-Identifier: Apache-2.0
//
// Announces to ThreadSanitizer exactly the order that CUDA guarantees. The emulator's own locks would order
// work that a GPU does not order, so they are hidden. Without ThreadSanitizer all functions do nothing.
//
// Sources of the emulator that must not be instrumented are compiled with -fno-sanitize=thread, and with
// LOCKSTEP_THREAD_SANITIZER=1 in a build with ThreadSanitizer.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__) && !defined(LOCKSTEP_THREAD_SANITIZER)
#define LOCKSTEP_THREAD_SANITIZER 1
#endif

#if defined(LOCKSTEP_THREAD_SANITIZER)
#include <algorithm>

#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
// Functions for the heap of Java. Their effect on ThreadSanitizer's records holds for any memory.
void __tsan_java_alloc(unsigned long begin, unsigned long bytes);
void __tsan_java_free(unsigned long begin, unsigned long bytes);
}
#endif

namespace lockstep::emulator {

// Orders the earlier accesses of this thread before later accesses of every thread that calls follow() with
// the same address.
inline void announce([[maybe_unused]] void* address) {
#if defined(LOCKSTEP_THREAD_SANITIZER)
  __tsan_release(address);
#endif
}
inline void follow([[maybe_unused]] void* address) {
#if defined(LOCKSTEP_THREAD_SANITIZER)
  __tsan_acquire(address);
#endif
}

// Discards all earlier calls of announce() for this address.
inline void forget_order([[maybe_unused]] void* address) {
#if defined(LOCKSTEP_THREAD_SANITIZER)
  __tsan_java_free(reinterpret_cast<unsigned long>(address), 8);
#endif
}
// Discards all earlier accesses of these bytes, as if they were new memory. Addresses and sizes are multiples
// of 8.
inline void forget_accesses([[maybe_unused]] void* begin, [[maybe_unused]] std::size_t bytes) {
#if defined(LOCKSTEP_THREAD_SANITIZER)
  constexpr std::size_t kPiece = 32 << 10;  // for larger pieces the records are unmapped, which takes longer
  for (std::size_t done = 0; done < bytes; done += kPiece) {
    const auto piece = reinterpret_cast<unsigned long>(begin) + done;
    const std::size_t size = std::min(kPiece, bytes - done);
    __tsan_java_alloc(piece, size);
    __tsan_java_free(piece, size);
  }
#endif
}

// While an object lives, ThreadSanitizer ignores the locks, reads and writes of this thread. For the
// emulator's own data. Objects can be nested.
class Unseen {
 public:
  Unseen() {
#if defined(LOCKSTEP_THREAD_SANITIZER)
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  }
  ~Unseen() {
#if defined(LOCKSTEP_THREAD_SANITIZER)
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
#endif
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

}  // namespace lockstep::emulator
