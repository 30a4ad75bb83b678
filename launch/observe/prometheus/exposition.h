// SPDX-License-Identifier: Apache-2.0
//
// The text format of Prometheus, version 0.0.4: families of samples, each a number with labels. Exposition
// writes it; parse_exposition() reads back what Exposition writes, from files that may come from elsewhere.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

enum class MetricType { gauge, counter };

struct MetricFamily {
  std::string_view name;  // "lockstep_busy_ratio": base units; a counter's ends in _total
  MetricType type;
  std::string_view help;
};

using MetricLabels = std::vector<std::pair<std::string_view, std::string>>;

class Exposition {
 public:
  // Begins a family: all samples up to the next call belong to it. A family without samples is omitted.
  void family(const MetricFamily& family) { family_ = &family; }
  // Values are escaped. Bytes that are not UTF-8 and control characters become C escapes.
  void sample(const MetricLabels& labels, double value);
  const std::string& text() const { return text_; }

 private:
  const MetricFamily* family_ = nullptr;  // null once its head is written
  std::string_view name_;
  std::string text_;
};

// The media type of the text, for HTTP.
inline constexpr std::string_view kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

struct ParsedSample {
  std::string name;
  std::map<std::string, std::string, std::less<>> labels;
  double value = 0;
};

// The samples in order. Skips comments and lines that are not samples.
std::vector<ParsedSample> parse_exposition(std::string_view text);

}  // namespace lockstep
