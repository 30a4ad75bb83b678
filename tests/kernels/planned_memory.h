// SPDX-License-Identifier: Apache-2.0
//
// Memory that exposes wrong accesses of a kernel: it starts as NaNs, so reads before writes propagate NaNs,
// and it ends in a margin that must stay unchanged. Also the layouts that tests plan kernels with.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/tensor/buffer.h"
#include "kernels/backend.h"
#include "tests/kernels/affine_reference.h"

namespace lockstep {

inline Backend& cpu_backend() { return backend_for(Device{}); }

class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t bytes, DType type = DType::f32)
      : bytes_(bytes), type_(type), buffer_(bytes + kMargin, Device{}) {
    spoil();
  }
  explicit GuardedMemory(const Values& values, DType type = DType::f32)
      : GuardedMemory(values.size() * size_of(type), type) {
    if (!values.empty()) std::memcpy(buffer_.data(), to_elements(values, type).data(), bytes_);
  }

  void spoil() { std::memset(buffer_.data(), 0xff, buffer_.bytes()); }
  void* data() const { return buffer_.data(); }
  float* floats() const { return reinterpret_cast<float*>(buffer_.data()); }
  Values values() const { return from_elements(buffer_.data(), bytes_, type_); }
  bool margin_intact() const {
    const std::byte* margin = buffer_.data() + bytes_;
    return *margin == std::byte{0xff} && std::memcmp(margin, margin + 1, kMargin - 1) == 0;
  }

 private:
  static constexpr std::size_t kMargin = 4096;
  std::size_t bytes_;
  DType type_;
  Buffer buffer_;
};

// A guarded tensor in a planned layout.
class PlannedMemory : public GuardedMemory {
 public:
  explicit PlannedMemory(const Layout& layout)
      : GuardedMemory(layout.bytes(), layout.dtype()), layout_(layout) {}
  PlannedMemory(const Layout& layout, const Values& plain) : PlannedMemory(layout) {
    const Buffer memory = to_memory(plain, layout);
    std::memcpy(data(), memory.data(), memory.bytes());
  }

  Values plain() const {
    Buffer memory(layout_.bytes(), Device{});
    std::memcpy(memory.data(), data(), memory.bytes());
    return to_plain(memory, layout_);
  }
  // True if every physical element that is not zero (NaN included) belongs to the logical tensor.
  bool padding_is_zero() const { return equally_many_nonzero(values(), plain()); }

 private:
  Layout layout_;
};

// Planned with the first candidate of each direction, which supports all shapes.
inline std::unique_ptr<AffineKernel> planned_convolution(const ConvolutionShape& shape, const Layout& input) {
  KernelChoices choices;
  return backend_for(Device{}).convolution(shape, input, choices);
}
inline std::unique_ptr<AffineKernel> planned_linear(const LinearShape& shape, const Layout& input) {
  KernelChoices choices;
  return backend_for(Device{}).linear(shape, input, choices);
}

// The number of directions (of three) that the candidate computes.
inline int directions_by(const AffineKernel& kernel, const std::string& candidate) {
  int directions = 0;
  for (const AffineDirection direction :
       {AffineDirection::forward, AffineDirection::backward_data, AffineDirection::backward_weights})
    directions += kernel.choice(direction) == candidate;
  return directions;
}

// Planned with the named candidate in each direction that has it; null if no direction has it.
inline std::unique_ptr<AffineKernel> convolution_by(const std::string& candidate,
                                                    const ConvolutionShape& shape, const Layout& input) {
  KernelChoices choices(ChooseBy::name, candidate);
  auto kernel = backend_for(Device{}).convolution(shape, input, choices);
  return directions_by(*kernel, candidate) > 0 ? std::move(kernel) : nullptr;
}
inline std::unique_ptr<AffineKernel> linear_by(const std::string& candidate, const LinearShape& shape,
                                               const Layout& input) {
  KernelChoices choices(ChooseBy::name, candidate);
  auto kernel = backend_for(Device{}).linear(shape, input, choices);
  return directions_by(*kernel, candidate) > 0 ? std::move(kernel) : nullptr;
}

// The plain layout, and the layout in which a convolution writes its output: blocked where oneDNN has a
// blocked kernel.
inline std::vector<Layout> layouts_for(const Shape& image, DType type = DType::f32) {
  const Layout plain(image, type);
  const ConvolutionShape shape{.batch = image[0],
                               .in_channels = 16,
                               .in_height = image[2],
                               .in_width = image[3],
                               .out_channels = image[1]};
  const Layout input({image[0], 16, image[2], image[3]}, type);
  const Layout blocked = planned_convolution(shape, input)->output();
  return blocked == plain ? std::vector{plain} : std::vector{plain, blocked};
}

inline constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

// The derivative of loss at `at` along `direction`. The step is too small to cross a kink, except one at `at`
// itself.
template <typename Loss>
double slope(const Doubles& at, const Doubles& direction, Loss loss) {
  constexpr double kStep = 1e-6;
  Doubles above = at;
  Doubles below = at;
  for (std::size_t i = 0; i < at.size(); ++i) {
    above[i] += kStep * direction[i];
    below[i] -= kStep * direction[i];
  }
  return (loss(above) - loss(below)) / (2 * kStep);
}

// The partial derivative by element i.
template <typename Loss>
double slope_at(const Doubles& at, std::size_t i, Loss loss) {
  Doubles direction(at.size());
  direction[i] = 1;
  return slope(at, direction, loss);
}

}  // namespace lockstep
