// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/context.h"

#if defined(__x86_64__)
// The registers a function must preserve, in the order in which Context::prepare() lays out their first
// values.
asm(R"(
  .text
  .globl lockstep_switch_context
  .type lockstep_switch_context, @function
lockstep_switch_context:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size lockstep_switch_context, .-lockstep_switch_context
)");
#endif
