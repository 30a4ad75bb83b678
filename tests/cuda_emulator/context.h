// SPDX-License-Identifier: Apache-2.0
//
// Context: where a suspended function goes on. On x86-64 switching is a dozen instructions; ucontext, used
// elsewhere, asks the kernel for the signal mask every time, and reductions of many lanes take minutes.
#pragma once

#include <cstddef>

#if defined(__x86_64__)
extern "C" void lockstep_switch_context(void** from, void* to);
#else
#include <ucontext.h>
#endif

namespace lockstep::emulator {

#if defined(__x86_64__)

class Context {
 public:
  // The next switch_to() this calls entry() on the stack; it must not return.
  void prepare(std::byte* stack, std::size_t bytes, void (*entry)()) {
    auto** top = reinterpret_cast<void**>(stack + bytes / 16 * 16);
    *--top = nullptr;  // entry finds the stack as if it had been called
    *--top = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    stack_pointer_ = top;
  }
  void switch_to(Context& other) { lockstep_switch_context(&stack_pointer_, other.stack_pointer_); }

 private:
  void* stack_pointer_ = nullptr;
};

#else

class Context {
 public:
  void prepare(std::byte* stack, std::size_t bytes, void (*entry)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
  }
  void switch_to(Context& other) { swapcontext(&context_, &other.context_); }

 private:
  ucontext_t context_ = {};
};

#endif

}  // namespace lockstep::emulator
