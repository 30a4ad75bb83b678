// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/link_speed.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kSpeeds[] = {{"GB/s", 1e9},       {"MB/s", 1e6},       {"KB/s", 1e3},
                            {"Gb/s", 1e9 / 8},   {"Mb/s", 1e6 / 8},   {"Kb/s", 1e3 / 8},
                            {"Gbit/s", 1e9 / 8}, {"Mbit/s", 1e6 / 8}, {"Kbit/s", 1e3 / 8}};
constexpr Unit kTimes[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};

constexpr int kMostRails = 1024;

// Parses a number with one of the units; nullopt for other text.
template <std::size_t N>
std::optional<double> measure(std::string_view text, const Unit (&units)[N]) {
  text = trimmed(text);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number)) return std::nullopt;
  const std::string_view unit = trimmed(text.substr(static_cast<std::size_t>(end - text.data())));
  for (const Unit& known : units)
    if (known.name == unit) return number * known.factor;
  return std::nullopt;
}

// Parses "25GB/s" or "8x25GB/s"; nullopt for other text and for a speed or a number of cards out of range.
std::optional<LinkSpeed> parse_rails(std::string_view text) {
  LinkSpeed link;
  if (const std::size_t times = text.find('x'); times != std::string_view::npos) {
    const std::optional<int> rails = number_from<int>(trimmed(text.substr(0, times)));
    if (!rails || *rails < 1 || *rails > kMostRails) return std::nullopt;
    link.rails = *rails;
    text.remove_prefix(times + 1);
  }
  const std::optional<double> speed = measure(text, kSpeeds);
  if (!speed || *speed <= 0) return std::nullopt;
  link.bytes_per_second = link.rails * *speed;
  return link;
}

}  // namespace

LinkSpeed parse_link_speed(std::string_view text, std::string_view what) {
  const std::size_t comma = text.find(',');
  const std::optional<LinkSpeed> speed = parse_rails(text.substr(0, comma));
  if (!speed) {
    throw UsageError(fmt::format(
        "{} \"{}\": expected a speed above 0 in GB/s, MB/s, KB/s (bytes) or Gb/s, Mb/s, Kb/s (bits), "
        "optionally after a number of network cards (1 to {}), as in 8x25GB/s, and before a latency, as in "
        "25GB/s,5us",
        what, text, kMostRails));
  }
  LinkSpeed link = *speed;
  if (comma == std::string_view::npos) return link;
  link.latency_seconds = measure(text.substr(comma + 1), kTimes);
  if (!link.latency_seconds || *link.latency_seconds < 0) {
    throw UsageError(fmt::format(
        "{} \"{}\": the latency after the comma must be at least 0, in s, ms, us or ns, as in 25GB/s,5us",
        what, text));
  }
  return link;
}

std::optional<double> parse_time(std::string_view text) { return measure(text, kTimes); }

std::string speed_text(double bytes_per_second) {
  if (bytes_per_second >= 1e9) return fmt::format("{:.4g} GB/s", bytes_per_second * 1e-9);
  return fmt::format("{:.4g} MB/s", bytes_per_second * 1e-6);
}

std::string time_text(double seconds) {
  if (seconds >= 999.5e-6) return fmt::format("{:.4g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

}  // namespace lockstep
