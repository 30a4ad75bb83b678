// SPDX-License-Identifier: Apache-2.0
//
// Faults that only the runtime uses, in addition to those in runtime.h.
#pragma once

#include <cstddef>

namespace lockstep::emulator {

// Like injected_fault(function), for a request of this many bytes: "cudaMalloc@1000000=2" refuses all
// requests of a million bytes or more.
int injected_fault(const char* function, std::size_t bytes);

// The status "hang" of the n-th operation that a device runs ("operation:5=hang"): the operation never ends.
// With another status, the device's context returns that status from then on.
inline constexpr int kHang = -1;

}  // namespace lockstep::emulator
