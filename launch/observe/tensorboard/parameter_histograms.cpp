// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/tensorboard/parameter_histograms.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "launch/train/parameter_reader.h"

namespace lockstep {
namespace {

// The number of buckets in TensorBoard's own summaries.
constexpr std::size_t kBuckets = 30;

void add(Histogram histogram, std::vector<Histogram>& histograms) {
  if (histogram.values > 0) histograms.push_back(std::move(histogram));
}

}  // namespace

Histogram histogram_of(std::string tag, std::span<const float> values, double scale) {
  Histogram histogram{.tag = std::move(tag)};
  for (const float scaled : values) {
    if (!std::isfinite(scaled)) continue;
    const double value = scaled / scale;
    if (histogram.values++ == 0) histogram.min = histogram.max = value;
    histogram.min = std::min(histogram.min, value);
    histogram.max = std::max(histogram.max, value);
    histogram.sum += value;
    histogram.sum_of_squares += value * value;
  }
  const double width = (histogram.max - histogram.min) / kBuckets;
  const std::size_t buckets = width > 0 ? kBuckets : 1;
  histogram.counts.resize(buckets);
  for (std::size_t i = 1; i < buckets; ++i)
    histogram.limits.push_back(histogram.min + static_cast<double>(i) * width);
  histogram.limits.push_back(histogram.max);
  for (const float scaled : values) {
    if (!std::isfinite(scaled)) continue;
    const double place = width > 0 ? (scaled / scale - histogram.min) / width : 0;
    histogram.counts[std::min(static_cast<std::size_t>(place), buckets - 1)] += 1;
  }
  return histogram;
}

std::vector<Histogram> weight_histograms(Network& network, Stream& stream) {
  ParameterReader reader(network, stream);
  std::vector<Histogram> histograms;
  for (const Parameter& each : network.parameters())
    add(histogram_of("weights/" + each.name, reader.read(each)), histograms);
  return histograms;
}

std::vector<Histogram> gradient_histograms(Network& network, Stream& stream, double loss_scale) {
  ParameterReader reader(network, stream);
  std::vector<Histogram> histograms;
  for (const Parameter& each : network.parameters())
    add(histogram_of("gradients/" + each.name, reader.read_gradient(each), loss_scale), histograms);
  return histograms;
}

}  // namespace lockstep
