// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/context.h"

#if defined(__x86_64__)
// Saves and restores the callee-saved registers, in the order of their initial values in Context::prepare().
// A context starts in lockstep_enter_context, which gets the function and its argument in registers.
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

  .globl lockstep_enter_context
  .type lockstep_enter_context, @function
lockstep_enter_context:
  movq %r12, %rdi
  jmpq *%r13
  .size lockstep_enter_context, .-lockstep_enter_context
)");
#endif
