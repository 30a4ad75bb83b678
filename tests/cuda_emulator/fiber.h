// SPDX-License-Identifier: Apache-2.0
//
// Fiber: a function with its own stack that can be suspended and resumed. Every change of stack is announced
// to AddressSanitizer. For ThreadSanitizer a fiber is a thread, and a switch to it orders nothing.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "tests/cuda_emulator/context.h"
#include "tests/cuda_emulator/thread_sanitizer.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace lockstep::emulator {

class Fiber {
 public:
  // The stack must be used by this fiber only. ThreadSanitizer's reports contain the name.
  Fiber(const std::function<void()>& function, std::span<std::byte> stack,
        [[maybe_unused]] const std::string& name)
      : function_(function), stack_(stack) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack_.data(), stack_.size());  // of frames that have not returned
#endif
    context_.prepare(stack_.data(), stack_.size(), &Fiber::enter, this);
#if defined(LOCKSTEP_THREAD_SANITIZER)
    identity_ = __tsan_create_fiber(0);
    __tsan_set_fiber_name(identity_, name.c_str());
#endif
  }
  ~Fiber() {
#if defined(LOCKSTEP_THREAD_SANITIZER)
    __tsan_destroy_fiber(identity_);
#endif
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // True if the function has returned or was never called.
  bool done() const { return done_; }

  // Calls or resumes the function, until it calls leave() or returns. Rethrows its exception.
  void resume() {
    done_ = false;
    switch_to_fiber();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  // Called within the fiber: returns to the caller of resume().
  void leave() {
    become(host_identity_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack_, host_stack_, host_stack_bytes_);
    context_.switch_to(host_);
    __sanitizer_finish_switch_fiber(fake_stack_, &host_stack_, &host_stack_bytes_);
#else
    context_.switch_to(host_);
#endif
  }

  // announce() and follow() on behalf of the fiber, which must not be running.
  void announce_for(void* address) {
    const Disguise disguise(*this);
    announce(address);
  }
  void follow_for(void* address) {
    const Disguise disguise(*this);
    follow(address);
  }

 private:
  static void* current_identity() {
#if defined(LOCKSTEP_THREAD_SANITIZER)
    return __tsan_get_current_fiber();
#else
    return nullptr;
#endif
  }
  static void become([[maybe_unused]] void* identity) {
#if defined(LOCKSTEP_THREAD_SANITIZER)
    __tsan_switch_to_fiber(identity, __tsan_switch_to_fiber_no_sync);
#endif
  }
  struct Disguise {
    explicit Disguise(const Fiber& fiber) : own(current_identity()) { become(fiber.identity_); }
    ~Disguise() { become(own); }
    void* own;
  };

  void switch_to_fiber() {
    host_identity_ = current_identity();
    become(identity_);
#if defined(__SANITIZE_ADDRESS__)
    void* host_fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&host_fake_stack, stack_.data(), stack_.size());
    host_.switch_to(context_);
    __sanitizer_finish_switch_fiber(host_fake_stack, nullptr, nullptr);
#else
    host_.switch_to(context_);
#endif
  }

  static void enter(void* argument) {
    auto* fiber = static_cast<Fiber*>(argument);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &fiber->host_stack_, &fiber->host_stack_bytes_);
#endif
    while (true) {
      fiber->call();
      fiber->done_ = true;
      fiber->leave();
    }
  }

  void call() {
    try {
      function_();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  const std::function<void()>& function_;
  std::span<std::byte> stack_;
  Context context_;
  Context host_;
  std::exception_ptr error_;
  bool done_ = true;
  void* identity_ = nullptr;
  void* host_identity_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack_ = nullptr;
  const void* host_stack_ = nullptr;
  std::size_t host_stack_bytes_ = 0;
#endif
};

}  // namespace lockstep::emulator
