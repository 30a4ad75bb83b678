// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/prometheus/exposition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "core/system/printable.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

std::string escaped_label(std::string_view value) {
  std::string text;
  for (const char c : printable(value)) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') text += '\\';
    text += c;
  }
  return text;
}

std::string metric_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::optional<double> number_of_metric(std::string_view text) {
  if (text == "+Inf") return std::numeric_limits<double>::infinity();
  return number_from<double>(text);  // accepts "NaN" and "-Inf"
}

// Removes a prefix of these characters from the text, and returns it.
std::string take_word(std::string_view& text) {
  const auto is_of_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == ':';
  };
  const auto end = std::ranges::find_if_not(text, is_of_name);
  std::string word(text.begin(), end);
  text.remove_prefix(word.size());
  return word;
}

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

// Removes a quoted value from the text. Empty if the text does not begin with one.
std::optional<std::string> take_value(std::string_view& text) {
  if (!take(text, '"')) return std::nullopt;
  std::string value;
  while (!text.empty()) {
    const char c = text.front();
    text.remove_prefix(1);
    if (c == '"') return value;
    if (c != '\\') {
      value += c;
      continue;
    }
    if (text.empty()) break;
    value += text.front() == 'n' ? '\n' : text.front();
    text.remove_prefix(1);
  }
  return std::nullopt;
}

std::optional<ParsedSample> sample_in(std::string_view line) {
  ParsedSample sample{.name = take_word(line)};
  if (sample.name.empty()) return std::nullopt;
  if (take(line, '{')) {
    while (!take(line, '}')) {
      const std::string name = take_word(line);
      if (name.empty() || !take(line, '=')) return std::nullopt;
      auto value = take_value(line);
      if (!value) return std::nullopt;
      sample.labels[name] = std::move(*value);
      if (!take(line, ',') && !line.starts_with('}')) return std::nullopt;
    }
  }
  const auto value = number_of_metric(trimmed(line));
  if (!value) return std::nullopt;
  sample.value = *value;
  return sample;
}

}  // namespace

void Exposition::sample(const MetricLabels& labels, double value) {
  if (family_ != nullptr) {
    name_ = family_->name;
    text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name_, family_->help,
                         family_->type == MetricType::counter ? "counter" : "gauge");
    family_ = nullptr;
  }
  text_ += name_;
  char separator = '{';
  for (const auto& [label, text] : labels) {
    text_ += fmt::format("{}{}=\"{}\"", separator, label, escaped_label(text));
    separator = ',';
  }
  text_ += fmt::format("{}{}\n", labels.empty() ? " " : "} ", metric_number(value));
}

std::vector<ParsedSample> parse_exposition(std::string_view text) {
  std::vector<ParsedSample> samples;
  for (const std::string_view line : split_text(text, '\n')) {
    if (line.starts_with('#')) continue;
    if (auto sample = sample_in(line)) samples.push_back(std::move(*sample));
  }
  return samples;
}

}  // namespace lockstep
