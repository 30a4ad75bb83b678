// SPDX-License-Identifier: Apache-2.0
//
// Parses link speeds and times of the command line, as in "25GB/s,5us", "8x25GB/s", "1Gbit/s,50us", "19.5ms",
// and formats them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

struct LinkSpeed {
  double bytes_per_second = 0;            // in each direction, of all cards together
  std::optional<double> latency_seconds;  // of a message; nullopt: not given
  int rails = 1;                          // network cards; 8 in 8x25GB/s
};

// GB/s, MB/s, KB/s are bytes; Gb/s, Mb/s, Kb/s (and Gbit/s ..) are bits; prefixes are powers of 1000. A
// latency is in s, ms, us or ns. Throws UsageError, which names the flag `what`.
LinkSpeed parse_link_speed(std::string_view text, std::string_view what);

// "19.5ms" in seconds; nullopt for any other text.
std::optional<double> parse_time(std::string_view text);

// "25 GB/s", "5 us".
std::string speed_text(double bytes_per_second);
std::string time_text(double seconds);

}  // namespace lockstep
