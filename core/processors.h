// SPDX-License-Identifier: Apache-2.0
//
// A function marked so is compiled for several instruction sets; the processor it runs on decides, when the
// program is loaded. Sanitizers do not survive code that runs before they have started: they get one version.
#pragma once

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define LOCKSTEP_FOR_EACH_PROCESSOR __attribute__((target_clones("default", "fma", "avx512f")))
#else
#define LOCKSTEP_FOR_EACH_PROCESSOR
#endif
