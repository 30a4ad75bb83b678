// SPDX-License-Identifier: Apache-2.0
//
// The speed of a link as a person gives it: "25GB/s,5us", "200Mb/s", "1Gbit/s,50us".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

struct LinkSpeed {
  double bytes_per_second = 0;            // each way
  std::optional<double> latency_seconds;  // of a message; nothing: not given
};

// GB/s, MB/s, KB/s are bytes, Gb/s, Mb/s, Kb/s (and Gbit/s ..) bits, in thousands; latencies are s, ms, us or
// ns. Throws UsageError, which names `what`, the flag.
LinkSpeed parse_link_speed(std::string_view text, std::string_view what);

// "25 GB/s", "5 us".
std::string speed_text(double bytes_per_second);
std::string time_text(double seconds);

}  // namespace lockstep
