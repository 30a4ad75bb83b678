// SPDX-License-Identifier: Apache-2.0
//
// Layouts of the GPU: channels last, so that a warp reads adjacent channels of one pixel. Activations
// are [N, H, W, C], convolution weights [O, R, S, C], weights of a linear layer that reads images
// [O, H, W, C]: no tensor is rearranged between layers. If this is the same memory order as row-major, the
// layout is plain.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/tensor/layout.h"

namespace lockstep {

// A tensor of [outer, channels, pixels] elements; its memory is [outer, pixels, physical_channels].
struct ChannelsLast {
  std::int64_t outer = 0;
  std::int64_t channels = 0;
  std::int64_t pixels = 0;
  std::int64_t physical_channels = 0;  // at least `channels`; padding is zero

  std::int64_t physical_elements() const { return outer * pixels * physical_channels; }
  bool operator==(const ChannelsLast&) const = default;
};

struct CudaLayout final : detail::LayoutBackend {
  explicit CudaLayout(const ChannelsLast& memory) : arrangement(memory) {}

  MatrixView matrix_view(const Shape& shape) const override;
  bool equals(const detail::LayoutBackend& other) const override;
  std::string describe() const override;
  std::shared_ptr<const detail::LayoutBackend> as_type(DType dtype) const override;

  ChannelsLast arrangement;
};

// The arrangement must have as many elements as the shape.
Layout channels_last_layout(const Shape& shape, DType dtype, const ChannelsLast& arrangement);
// The arrangement of an activation [N, C] or [N, C, H, W]; empty if its channels are not last.
std::optional<ChannelsLast> channels_last(const Layout& activation);
// The arrangement of a GPU layout; null for a plain layout.
const ChannelsLast* arrangement_of(const Layout& layout);

}  // namespace lockstep
