// SPDX-License-Identifier: Apache-2.0
//
// What ThreadSanitizer is told about the emulated device: the order that CUDA promises, and no other. The
// emulator's own locks would order what a GPU does not, so they are hidden from it; order that CUDA gives is
// announced. Without ThreadSanitizer all of this is nothing.
//
// Sources of the emulator that ThreadSanitizer shall not look into are compiled with -fno-sanitize=thread,
// and with LOCKSTEP_THREAD_SANITIZER=1 where the program has it.
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
// For heaps of Java; what they do to the books holds for any memory.
void __tsan_java_alloc(unsigned long begin, unsigned long bytes);
void __tsan_java_free(unsigned long begin, unsigned long bytes);
}
#endif

namespace lockstep::emulator {

// What this thread has done so far comes before what any thread does after it has called follow() with the
// same address.
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

// Nobody has followed or announced here.
inline void forget_order([[maybe_unused]] void* address) {
#if defined(LOCKSTEP_THREAD_SANITIZER)
  __tsan_java_free(reinterpret_cast<unsigned long>(address), 8);
#endif
}
// Nobody has read or written these bytes: from now on they are other memory. Whole multiples of 8 bytes.
inline void forget_accesses([[maybe_unused]] void* begin, [[maybe_unused]] std::size_t bytes) {
#if defined(LOCKSTEP_THREAD_SANITIZER)
  constexpr std::size_t kPiece = 32 << 10;  // of larger ones the books are unmapped, which takes longer
  for (std::size_t done = 0; done < bytes; done += kPiece) {
    const auto piece = reinterpret_cast<unsigned long>(begin) + done;
    const std::size_t size = std::min(kPiece, bytes - done);
    __tsan_java_alloc(piece, size);
    __tsan_java_free(piece, size);
  }
#endif
}

// While it lives, ThreadSanitizer learns nothing from this thread's locks and reads and writes: for the
// emulator's own books. Nests.
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
