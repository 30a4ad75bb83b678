// SPDX-License-Identifier: Apache-2.0
//
// Tests of the CUDA backend on a GPU; without one they are skipped.
#pragma once

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/typed_tensor.h"

namespace lockstep {

inline constexpr Device kGpu{.kind = DeviceKind::cuda, .index = 0};

inline bool has_gpu() { return !cuda_status().devices.empty(); }

#define SKIP_WITHOUT_A_GPU() \
  if (!has_gpu()) GTEST_SKIP() << "no CUDA device: " << cuda_status().message

// A device's backend and where its tensors live.
struct Side {
  explicit Side(Device device) : backend(backend_for(device)), stream(device, StreamUse::compute) {}

  Backend& backend;
  Stream stream;
  Lab lab{stream, [this](const Layout& from, const Layout& to) { return backend.reorder(from, to); }};
};

// Of results on operands of the type.
inline double tolerance_of(DType type) { return type == DType::f32 ? 1e-5 : 1e-2; }

inline constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

}  // namespace lockstep
