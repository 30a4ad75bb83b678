// SPDX-License-Identifier: Apache-2.0
//
// Parses link speeds of the command line, as in "25GB/s,5us", "200Mb/s", "1Gbit/s,50us", and formats them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

struct LinkSpeed {
  double bytes_per_second = 0;            // in each direction
  std::optional<double> latency_seconds;  // of a message; nullopt: not given
};

// GB/s, MB/s, KB/s are bytes; Gb/s, Mb/s, Kb/s (and Gbit/s ..) are bits; prefixes are powers of 1000. A
// latency is in s, ms, us or ns. Throws UsageError, which names the flag `what`.
LinkSpeed parse_link_speed(std::string_view text, std::string_view what);

// "25 GB/s", "5 us".
std::string speed_text(double bytes_per_second);
std::string time_text(double seconds);

}  // namespace lockstep
