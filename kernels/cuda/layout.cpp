// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/layout.h"

#include <fmt/format.h>

#include "core/error.h"

namespace lockstep {

MatrixView CudaLayout::matrix_view(const Shape&) const {
  const ChannelsLast& a = arrangement;
  return MatrixView({{a.outer, a.pixels * a.physical_channels}},
                    {{a.physical_channels, 1}, {a.pixels, a.physical_channels}});
}

bool CudaLayout::equals(const detail::LayoutBackend& other) const {
  const auto* cuda = dynamic_cast<const CudaLayout*>(&other);
  return cuda != nullptr && cuda->arrangement == arrangement;
}

std::string CudaLayout::describe() const {
  const ChannelsLast& a = arrangement;
  return fmt::format("channels last {}x{}x{} in {}", a.outer, a.pixels, a.channels, a.physical_channels);
}

std::shared_ptr<const detail::LayoutBackend> CudaLayout::as_type(DType) const {
  return std::make_shared<const CudaLayout>(arrangement);
}

Layout channels_last_layout(const Shape& shape, DType dtype, const ChannelsLast& a) {
  CHECK(a.outer * a.channels * a.pixels == shape.elements() && a.physical_channels >= a.channels,
        "an arrangement of {} x {} x {} channels in {} does not fit the shape {}", a.outer, a.pixels,
        a.channels, a.physical_channels, to_string(shape));
  if (a.physical_channels == a.channels && (a.channels == 1 || a.pixels == 1)) return Layout(shape, dtype);
  return Layout(shape, dtype, static_cast<std::size_t>(a.physical_elements()) * size_of(dtype),
                std::make_shared<const CudaLayout>(a));
}

const ChannelsLast* arrangement_of(const Layout& layout) {
  if (layout.is_plain()) return nullptr;
  const auto* cuda = dynamic_cast<const CudaLayout*>(layout.backend());
  CHECK(cuda != nullptr, "{} is not a layout of a GPU", layout.describe());
  return &cuda->arrangement;
}

std::optional<ChannelsLast> channels_last(const Layout& activation) {
  if (const ChannelsLast* arrangement = arrangement_of(activation)) return *arrangement;
  const Shape& shape = activation.shape();
  CHECK(shape.rank() == 2 || shape.rank() == 4,
        "the activation has the shape {}, expected [N, C] or [N, C, H, W]", to_string(shape));
  const ChannelsLast as_it_lies{.outer = shape[0],
                                .channels = shape[1],
                                .pixels = shape.rank() == 4 ? shape[2] * shape[3] : 1,
                                .physical_channels = shape[1]};
  if (as_it_lies.channels != 1 && as_it_lies.pixels != 1) return std::nullopt;
  return as_it_lies;
}

}  // namespace lockstep
