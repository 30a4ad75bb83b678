// SPDX-License-Identifier: Apache-2.0
//
// Loops compiled for several instruction sets. The version to run is chosen once, at run time;
// LOCKSTEP_MAX_CPU_ISA=baseline|avx2|avx512 limits the choice, as ONEDNN_MAX_CPU_ISA does for oneDNN's
// kernels.
#pragma once

#include <string_view>

// Marks the body passed to for_this_processor() and the functions it calls for each element: only inlined
// code is compiled for each instruction set.
#define LOCKSTEP_PROCESSOR_BODY __attribute__((always_inline))

namespace lockstep {

enum class InstructionSet { baseline, avx2, avx512 };  // avx2: with FMA; avx512: its foundation, AVX-512F

// The largest set that the processor has and LOCKSTEP_MAX_CPU_ISA allows; constant for the process. Throws
// ConfigError if the variable has an unknown value; an empty one counts as not set.
InstructionSet instruction_set();
std::string_view name_of(InstructionSet set);  // as in LOCKSTEP_MAX_CPU_ISA
// The number of floats in a vector register: 4, 8 or 16.
constexpr int register_floats(InstructionSet set) { return 4 << static_cast<int>(set); }

namespace detail {

#if defined(__x86_64__)
template <typename Body>
__attribute__((target("avx512f"), noinline)) auto run_avx512(const Body& body) {
  return body();
}
template <typename Body>
__attribute__((target("avx2,fma"), noinline)) auto run_avx2(const Body& body) {
  return body();
}
#endif

}  // namespace detail

// Runs body(), compiled for this set, which the processor must have.
template <InstructionSet set, typename Body>
auto run_compiled_for([[maybe_unused]] const Body& body) {
#if defined(__x86_64__)
  if constexpr (set == InstructionSet::avx512) return detail::run_avx512(body);
  if constexpr (set == InstructionSet::avx2) return detail::run_avx2(body);
#endif
  return body();
}

// Runs body(), compiled for instruction_set(). Sanitizer builds use one version: the code is the same in
// each, and each doubles the compile time.
template <typename Body>
auto for_this_processor(const Body& body) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  switch (instruction_set()) {
    case InstructionSet::avx512:
      return run_compiled_for<InstructionSet::avx512>(body);
    case InstructionSet::avx2:
      return run_compiled_for<InstructionSet::avx2>(body);
    case InstructionSet::baseline:
      break;
  }
#endif
  return body();
}

}  // namespace lockstep
