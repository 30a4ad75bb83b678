// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/kernel_table.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <string_view>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "core/system/printable.h"
#include "core/system/wrapped_text.h"
#include "core/text/text.h"
#include "kernels/affine.h"

namespace lockstep {
namespace {

constexpr std::size_t kTableColumns = 100;
constexpr std::size_t kLongestName = 30;  // of a kernel; the other columns take 70 characters
constexpr const char* kRow = "  {:<16}  {:<{}}  {:>12}  {:>6}  {:<16}  {}\n";
constexpr const char* kNotKnown = "-";

// The direction in a key, after a blank; empty if there is none.
std::string direction_in(const std::string& key) {
  for (const AffineDirection direction :
       {AffineDirection::forward, AffineDirection::backward_data, AffineDirection::backward_weights}) {
    std::string word = fmt::format(" {}", name_of(direction));
    if (key.find(word) != std::string::npos) return word;
  }
  return {};
}

// A key without the direction, strides and default values, and for convolutions without the second mention of
// the shape. "convolution forward, 8x16x6x6 fp32 [8, 16, 6, 6] blocked 8:576 16:576 6:96 6:16 16b to 32,
// kernel 3 stride 1 padding 1 dilation 1 groups 1" becomes "convolution, 8x16x6x6 fp32 blocked 16b to 32,
// kernel 3 stride 1 padding 1".
std::string shape_in(std::string key, const std::string& direction) {
  if (!direction.empty()) key.erase(key.find(direction), direction.size());
  const bool repeats_shape = key.starts_with("convolution");
  const std::vector<std::string_view> words = split_text(key, ' ');
  std::string shape;
  bool in_brackets = false, in_strides = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if ((word == "dilation" || word == "groups") && i + 1 < words.size() && words[i + 1] == "1") {
      ++i;
      continue;
    }
    if (word == "to") in_strides = false;
    if (repeats_shape && word.starts_with('[')) in_brackets = true;
    const bool is_stride = in_strides && !word.empty() && word.back() >= '0' && word.back() <= '9';
    if (!in_brackets && !is_stride) shape += fmt::format("{}{}", shape.empty() ? "" : " ", word);
    if (word.ends_with(']')) in_brackets = false;
    if (word == "blocked") in_strides = true;
  }
  return shape;
}

// GPU libraries have long names.
std::string shortened(const std::string& name) {
  return name.size() <= kLongestName ? name : name.substr(0, kLongestName - 2) + "..";
}

std::string gain_of(const KernelChoice& choice) {
  if (choice.first_microseconds <= 0) return kNotKnown;
  if (choice.first_microseconds == choice.microseconds) return "first";
  return fmt::format("{:.2f}x", choice.first_microseconds / choice.microseconds);
}

std::string row_of(const std::string& direction, const KernelChoice& choice, std::size_t width) {
  const std::string when =
      choice.chosen_at == 0
          ? kNotKnown
          : fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(static_cast<std::time_t>(choice.chosen_at)));
  return fmt::format(kRow, trimmed(direction), shortened(choice.candidate), width,
                     fmt::format("{:.1f} us", choice.microseconds), gain_of(choice), when,
                     !choice.settled() ? "doubtful"
                     : choice.busy()   ? "busy"
                                       : "settled");
}

std::string table_of(const KeptKernels& kept) {
  std::size_t width = 6, untimed = 0;
  for (const auto& [key, choice] : kept.choices)
    width = std::max(width, std::min(choice.candidate.size(), kLongestName));
  std::map<std::string, std::string> rows;  // by shape
  for (const auto& [key, choice] : kept.choices) {
    if (choice.microseconds <= 0) {
      ++untimed;
      continue;
    }
    const std::string direction = direction_in(key);
    std::string& of_shape = rows[shape_in(key, direction)];
    const std::string row = row_of(direction, choice, width);
    of_shape = direction == " forward" ? row + of_shape : of_shape + row;
  }
  std::string text =
      wrapped(kept.identity, {.hanging = 4, .columns = kTableColumns}) + '\n' + kept.file.string();
  if (untimed > 0) text += fmt::format("\n{} with a single candidate, not timed", counted(untimed, "kernel"));
  text += '\n';
  if (!rows.empty())
    text += '\n' + fmt::format(kRow, "direction", "kernel", width, "time", "faster", "chosen", "state");
  for (const auto& [shape, lines] : rows)
    text += wrapped(shape, {.hanging = 4, .columns = kTableColumns}) + '\n' + lines;
  return text + '\n';
}

}  // namespace

std::string kernel_table(std::span<const KeptKernels> files) {
  std::string text;
  for (const KeptKernels& kept : files) text += table_of(kept);
  text +=
      "faster: time of the first candidate (the kernel without timing) divided by this time; first: it won\n"
      "doubtful: other processes used the processors; the next start that needs it times it again\n"
      "busy: they did so at 5 starts, so the choice stays; -: not known";
  return printable(text);
}

}  // namespace lockstep
