// SPDX-License-Identifier: Apache-2.0
//
// Context: the execution state of a suspended function. On x86-64 a switch takes a dozen instructions. Other
// processors use ucontext, which makes a system call for the signal mask at every switch, so that reductions
// over many lanes take minutes.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
extern "C" {
void lockstep_switch_context(void** from, void* to);
void lockstep_enter_context();
}
#else
#include <ucontext.h>
#endif

namespace lockstep::emulator {

#if defined(__x86_64__)

class Context {
 public:
  // The next switch_to() this context calls entry(argument) on the stack. entry must not return.
  void prepare(std::byte* stack, std::size_t bytes, void (*entry)(void*), void* argument) {
    auto** top = reinterpret_cast<void**>(stack + bytes / 16 * 16);
    *--top = nullptr;  // the stack looks as if entry had been called
    *--top = reinterpret_cast<void*>(&lockstep_enter_context);
    void* const registers[] = {nullptr, nullptr, argument, reinterpret_cast<void*>(entry), nullptr, nullptr};
    for (void* value : registers) *--top = value;
    stack_pointer_ = top;
  }
  void switch_to(Context& other) { lockstep_switch_context(&stack_pointer_, other.stack_pointer_); }

 private:
  void* stack_pointer_ = nullptr;
};

#else

class Context {
 public:
  void prepare(std::byte* stack, std::size_t bytes, void (*entry)(void*), void* argument) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(this);
    entry_ = entry;
    argument_ = argument;
    makecontext(&context_, reinterpret_cast<void (*)()>(&Context::enter), 2,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
  }
  void switch_to(Context& other) { swapcontext(&context_, &other.context_); }

 private:
  // makecontext() passes integers.
  static void enter(unsigned high, unsigned low) {
    auto* context = reinterpret_cast<Context*>(std::uintptr_t{high} << 32 | low);
    context->entry_(context->argument_);
  }

  ucontext_t context_ = {};
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
};

#endif

}  // namespace lockstep::emulator
