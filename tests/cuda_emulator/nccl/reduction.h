// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of the emulated NCCL's reductions: always in rank order, one element at a time, so that the
// bits depend on nothing else. fp16 and bf16 are rounded after each addition, like in a ring of ranks, and
// overflow like there.
#pragma once

#include <cstddef>
#include <span>

#include <nccl.h>

namespace lockstep::emulator {

// to[i] = from[0][i] op from[1][i] op ...; `to` may be one of them. Integers wrap; the maximum of a number
// and NaN is the number; an average multiplies floating-point numbers by 1/ranks first, and divides the sum
// of integers.
void reduce(ncclDataType_t type, ncclRedOp_t op, std::span<const std::byte* const> from, std::byte* to,
            std::size_t count);

}  // namespace lockstep::emulator
