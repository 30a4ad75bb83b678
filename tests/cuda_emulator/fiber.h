// SPDX-License-Identifier: Apache-2.0
//
// Fiber: a function with a stack of its own that can be left in the middle and taken up again.
// AddressSanitizer is told of every change of stack.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "tests/cuda_emulator/context.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace lockstep::emulator {

class Fiber {
 public:
  // What the fiber will run, from the start. A function left in the middle is forgotten.
  void prepare(const std::function<void()>& function) {
    function_ = &function;
    const bool at_rest = done_ && started_;  // then it goes on in enter(), on the stack it has
    done_ = false;
    if (at_rest) return;
    started_ = true;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack_.get(), kStackBytes);  // frames that were never left
    fake_stack_ = nullptr;
#endif
    context_.prepare(stack_.get(), kStackBytes, &Fiber::enter);
  }
  bool done() const { return done_; }

  // Runs the fiber until it leaves or ends. Rethrows what its function threw.
  void resume() {
    switch_to_fiber();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  // From within the fiber: back to whoever resumed it.
  void leave() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack_, host_stack_, host_stack_bytes_);
    context_.switch_to(host_);
    __sanitizer_finish_switch_fiber(fake_stack_, &host_stack_, &host_stack_bytes_);
#else
    context_.switch_to(host_);
#endif
  }

 private:
  static constexpr std::size_t kStackBytes = 128 * 1024;

  void switch_to_fiber() {
    entering_ = this;
#if defined(__SANITIZE_ADDRESS__)
    void* host_fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&host_fake_stack, stack_.get(), kStackBytes);
    host_.switch_to(context_);
    __sanitizer_finish_switch_fiber(host_fake_stack, nullptr, nullptr);
#else
    host_.switch_to(context_);
#endif
  }

  static void enter() {
    Fiber* fiber = entering_;
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
      (*function_)();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  static inline Fiber* entering_ = nullptr;  // enter() has no argument

  std::unique_ptr<std::byte[]> stack_ = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  Context context_;
  Context host_;
  const std::function<void()>* function_ = nullptr;
  std::exception_ptr error_;
  bool started_ = false;
  bool done_ = true;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack_ = nullptr;
  const void* host_stack_ = nullptr;
  std::size_t host_stack_bytes_ = 0;
#endif
};

}  // namespace lockstep::emulator
