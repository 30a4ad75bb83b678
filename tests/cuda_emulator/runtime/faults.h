// SPDX-License-Identifier: Apache-2.0
//
// Faults beyond what every library asks for (runtime.h).
#pragma once

#include <cstddef>

namespace lockstep::emulator {

// As injected_fault(function), for one that is asked for so many bytes: "cudaMalloc@1000000=2" refuses all
// that are asked for a million or more.
int injected_fault(const char* function, std::size_t bytes);

// The status "hang" of the n-th operation that a device runs ("operation:5=hang"): it never ends. Another
// status is what the device's context answers from then on.
inline constexpr int kHang = -1;

}  // namespace lockstep::emulator
