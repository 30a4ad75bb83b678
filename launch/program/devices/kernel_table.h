// SPDX-License-Identifier: Apache-2.0
//
// The table of `lockstep info --kernels`: which kernel was chosen for each shape and direction, its time, how
// much faster it is than the first candidate, when it was chosen, and whether the machine was busy.
#pragma once

#include <span>
#include <string>

#include "launch/program/devices/kernel_cache.h"

namespace lockstep {

// Lines have at most 100 characters, except that a long path stays whole. The text has no final line break.
std::string kernel_table(std::span<const KeptKernels> files);

}  // namespace lockstep
