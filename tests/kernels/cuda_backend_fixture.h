// SPDX-License-Identifier: Apache-2.0
//
// Fixture for tests of the CUDA backend. They are skipped without a GPU.
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

// A device's backend, stream and tensor helpers.
struct Side {
  explicit Side(Device device) : backend(backend_for(device)), stream(device, StreamUse::compute) {}

  Backend& backend;
  Stream stream;
  Lab lab{stream, [this](const Layout& from, const Layout& to) { return backend.reorder(from, to); }};
};

// Tolerance of results whose operands have this type.
inline double tolerance_of(DType type) { return type == DType::f32 ? 1e-5 : 1e-2; }

inline constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

}  // namespace lockstep
