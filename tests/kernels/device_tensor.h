// SPDX-License-Identifier: Apache-2.0
//
// A test tensor on a GPU in the layout and type that CUDA plans take, and the precisions in which every
// operation is tested.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <ostream>
#include <vector>

#include "core/stream.h"
#include "core/tensor/dtype.h"
#include "tests/kernels/affine_reference.h"

namespace lockstep {

using Sizes = std::array<std::int64_t, 4>;

inline std::int64_t elements_of(const Sizes& s) { return s[0] * s[1] * s[2] * s[3]; }

inline float load(const std::byte* from, DType type) {
  const auto as = [from]<typename T>(T value) {
    std::memcpy(&value, from, sizeof(T));
    return static_cast<float>(value);
  };
  return type == DType::f32 ? as(float{}) : type == DType::f16 ? as(Half{}) : as(BFloat16{});
}

inline void store(float value, DType type, std::byte* to) {
  const auto as = [to](auto rounded) { std::memcpy(to, &rounded, sizeof(rounded)); };
  type == DType::f32 ? as(value) : type == DType::f16 ? as(Half(value)) : as(BFloat16(value));
}

// Calls visit(index in NCHW, index in NHWC) for each element.
template <typename Visit>
void for_each_element(const Sizes& sizes, Visit visit) {
  const auto [n, c, h, w] = sizes;
  std::int64_t nchw = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < c; ++j) {
      for (std::int64_t k = 0; k < h * w; ++k) visit(nchw++, (i * h * w + k) * c + j);
    }
  }
}

// Stored as NHWC on the device, NCHW on the host. sizes are N, C, H, W.
class DeviceTensor {
 public:
  DeviceTensor(const Sizes& sizes, DType type, Stream& stream)
      : sizes_(sizes),
        type_(type),
        stream_(stream),
        bytes_(elements_of(sizes) * size_of(type)),
        memory_(bytes_.size(), stream.device()) {}

  // Rounds `values` to the values that the device holds.
  void write(Values& values) {
    for_each_element(sizes_, [&](std::int64_t here, std::int64_t there) {
      std::byte* to = bytes_.data() + there * size_of(type_);
      store(values[here], type_, to);
      values[here] = load(to, type_);
    });
    upload();
  }
  // Fills the memory with bytes that are NaN in every type.
  void poison() {
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0xff});
    upload();
  }
  Values read() {
    stream_.copy(bytes_.data(), memory_.data(), bytes_.size());
    stream_.synchronize();
    Values values(elements_of(sizes_));
    for_each_element(sizes_, [&](std::int64_t here, std::int64_t there) {
      values[here] = load(bytes_.data() + there * size_of(type_), type_);
    });
    return values;
  }
  void* data() { return memory_.data(); }

 private:
  void upload() {
    stream_.copy(memory_.data(), bytes_.data(), bytes_.size());
    stream_.synchronize();
  }

  Sizes sizes_;
  DType type_;
  Stream& stream_;
  std::vector<std::byte> bytes_;
  Buffer memory_;
};

struct Precision {
  const char* name;
  DType dtype;
  bool tf32;
  double tolerance;  // norm of the difference over the norm
};
inline void PrintTo(const Precision& precision, std::ostream* out) { *out << precision.name; }

inline constexpr Precision kPrecisions[] = {{"fp32", DType::f32, false, 1e-5},
                                            {"tf32", DType::f32, true, 1e-3},
                                            {"fp16", DType::f16, false, 1e-2},
                                            {"bf16", DType::bf16, false, 1e-2}};

}  // namespace lockstep
