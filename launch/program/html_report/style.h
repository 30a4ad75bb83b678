// SPDX-License-Identifier: Apache-2.0
//
// The style sheet of the page, for light and dark, wide and narrow screens.
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

inline constexpr std::size_t kCurveColors = 8;  // classes s0 to s7; phases have p0 to p7
extern const std::string_view kReportStyle;

}  // namespace lockstep
