// SPDX-License-Identifier: Apache-2.0
//
// Loops that are compiled for several instruction sets. The processor decides once, at run time, which
// version runs; LOCKSTEP_MAX_CPU_ISA=baseline|avx2|avx512 chooses a smaller one, as ONEDNN_MAX_CPU_ISA does
// for oneDNN's kernels.
#pragma once

#include <string_view>

// Marks the body that is given to for_this_processor(), and whatever it calls for each element: only what is
// inlined is compiled for each instruction set.
#define LOCKSTEP_PROCESSOR_BODY __attribute__((always_inline))

namespace lockstep {

enum class InstructionSet { baseline, avx2, avx512 };  // avx2: with FMA; avx512: its foundation, AVX-512F

// The largest that the processor has and LOCKSTEP_MAX_CPU_ISA allows; always the same. Throws ConfigError
// when the variable has another value.
InstructionSet instruction_set();
std::string_view name_of(InstructionSet set);  // as LOCKSTEP_MAX_CPU_ISA says it

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

// body(), compiled for instruction_set(). Sanitizers get one version: what they look for is in each of them,
// and each takes the compiler as long again.
template <typename Body>
auto for_this_processor(const Body& body) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  switch (instruction_set()) {
    case InstructionSet::avx512:
      return detail::run_avx512(body);
    case InstructionSet::avx2:
      return detail::run_avx2(body);
    case InstructionSet::baseline:
      break;
  }
#endif
  return body();
}

}  // namespace lockstep
