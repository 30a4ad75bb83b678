// SPDX-License-Identifier: Apache-2.0
//
// What ThreadSanitizer is told about the emulated device: the order that CUDA promises, and no other. The emulator's
// own locks would order what a GPU does not, so they are hidden from it; order that CUDA gives is announced. Without
// ThreadSanitizer all of this is nothing.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace lockstep::emulator {

// What this thread has done so far comes before what any thread does after it has called follow() with the same
// address.
inline void announce([[maybe_unused]] void* address) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(address);
#endif
}
inline void follow([[maybe_unused]] void* address) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(address);
#endif
}

// While it lives, ThreadSanitizer learns nothing from this thread's locks and reads and writes: for the emulator's
// own books. Nests.
class Unseen {
 public:
  Unseen() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  }
  ~Unseen() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
#endif
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

}  // namespace lockstep::emulator
