// SPDX-License-Identifier: Apache-2.0
#include "launch/program/network/layer_table.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "core/system/wrapped_text.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

using Row = LayerProfile::Row;

constexpr const char* kWide = "  {:<30} {:<20} {:<22} {:>8} {:>6} {:>8} {:>7} {:>6}\n";
constexpr const char* kNarrow = "  {:<{}} {:<6} {:>8} {:>5} {:>7} {:>6} {:>6}\n";
constexpr int kNarrowWithoutLayer = 46;
constexpr int kNarrowestLayer = 12;

// Columns that both tables format alike.
struct Numbers {
  Numbers(const Row& row, double all_milliseconds)
      : milliseconds(fmt::format("{:.2f}", row.milliseconds)),
        share(fmt::format("{:.1f}", 100 * row.milliseconds / all_milliseconds)),
        gigaflops(row.gigaflops > 0 ? fmt::format("{:.0f}", row.gigaflops) : ""),
        gigabytes(fmt::format("{:.1f}", row.gigabytes_per_second)),
        share_of_peak(row.share_of_peak > 0 ? fmt::format("{:.0f}", 100 * row.share_of_peak) : "-") {}
  std::string milliseconds, share, gigaflops, gigabytes, share_of_peak;
};

std::string wide_table(std::span<const Row> rows, double all_milliseconds) {
  std::string text =
      fmt::format(kWide, "layer", "direction", "kernel", "ms", "%", "GFLOP/s", "GB/s", "peak %");
  for (const Row& row : rows) {
    const Numbers n(row, all_milliseconds);
    text += fmt::format(kWide, row.name, row.direction, row.kernel, n.milliseconds, n.share, n.gigaflops,
                        n.gigabytes, n.share_of_peak);
  }
  return text;
}

// Abbreviations that kernel libraries use.
std::string short_name(const std::string& direction) {
  static const std::map<std::string, std::string> names = {{"forward", "fwd"},
                                                           {"recomputation", "recomp"},
                                                           {"backward", "bwd"},
                                                           {"gradient of weights", "wgrad"},
                                                           {"gradient of input", "dgrad"}};
  const auto found = names.find(direction);
  return found == names.end() ? direction : found->second;
}

std::string narrow_table(std::span<const Row> rows, double all_milliseconds, int columns) {
  const int width = std::max(columns - kNarrowWithoutLayer, kNarrowestLayer);
  std::string text = "  fwd: forward; bwd: backward; wgrad, dgrad: gradient of weights, of input\n";
  text += fmt::format(kNarrow, "layer (kernel)", width, "", "ms", "%", "GFLOP/s", "GB/s", "peak %");
  for (const Row& row : rows) {
    const std::string kernel = row.kernel.empty() ? "" : fmt::format(" ({})", row.kernel);
    const bool beside = row.name.size() + kernel.size() <= static_cast<std::size_t>(width);
    const std::string name = wrapped(beside ? row.name + kernel : row.name,
                                     {.hanging = 2, .columns = static_cast<std::size_t>(width)});
    const std::size_t end = std::min(name.find('\n'), name.size());
    const Numbers n(row, all_milliseconds);
    text += fmt::format(kNarrow, name.substr(0, end), width, short_name(row.direction), n.milliseconds,
                        n.share, n.gigaflops, n.gigabytes, n.share_of_peak);
    if (end < name.size()) text += fmt::format("  {}\n", name.substr(end + 1));
    if (!beside && !kernel.empty()) text += fmt::format("   {}\n", kernel);
  }
  return text;
}

std::size_t longest_line(const std::string& text) {
  const auto length = [](std::string_view line) { return line.size(); };
  return std::ranges::max(split_text(text, '\n'), {}, length).size();
}

}  // namespace

double sum_of_milliseconds(std::span<const Row> rows) {
  double sum = 0;
  for (const Row& row : rows) sum += row.milliseconds;
  return sum;
}

std::string layer_table(std::span<const Row> rows, std::size_t shown, const Terminal& terminal) {
  const double all_milliseconds = sum_of_milliseconds(rows);
  const std::span<const Row> first = rows.first(std::min(shown, rows.size()));
  const std::string wide = wide_table(first, all_milliseconds);
  if (!terminal.present || longest_line(wide) <= static_cast<std::size_t>(terminal.columns)) return wide;
  return narrow_table(first, all_milliseconds, terminal.columns);
}

}  // namespace lockstep
