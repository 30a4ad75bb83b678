// SPDX-License-Identifier: Apache-2.0
#include "launch/parameter_histograms.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/buffer.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

// As many as TensorBoard's own summaries have.
constexpr std::size_t kBuckets = 30;

StateTensor tensor_of(const Parameter& parameter, float* values) {
  return {.name = parameter.name,
          .layout = parameter.layout,
          .value = values,
          .elements = parameter.layout.physical_elements()};
}

// Reads one tensor of a device after the other.
class TensorReader {
 public:
  TensorReader(Network& network, Stream& stream) : network_(network), stream_(stream) {}

  std::span<const float> read(const StateTensor& tensor) {
    grow_staging(staging_, tensor, network_.device());
    plain_.resize(static_cast<std::size_t>(tensor.layout.shape().elements()));
    read_plain(network_.backend(), stream_, tensor, plain_, staging_);
    stream_.synchronize();
    return plain_;
  }

  std::span<const float> read_gradient(const Parameter& parameter) {
    if (parameter.gradient_type == DType::f32)
      return read(tensor_of(parameter, static_cast<float*>(parameter.gradient)));
    const std::int64_t count = parameter.layout.physical_elements();
    const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
    if (wide_.bytes() < bytes) wide_ = Buffer(bytes, network_.device());
    network_.backend().cast(stream_, {.count = count,
                                      .from_type = parameter.gradient_type,
                                      .to_type = DType::f32,
                                      .from = parameter.gradient,
                                      .to = wide_.data()});
    return read(tensor_of(parameter, reinterpret_cast<float*>(wide_.data())));
  }

 private:
  Network& network_;
  Stream& stream_;
  Buffer staging_;
  Buffer wide_;  // half gradients in fp32
  std::vector<float> plain_;
};

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
  TensorReader reader(network, stream);
  std::vector<Histogram> histograms;
  for (const Parameter& each : network.parameters())
    add(histogram_of("weights/" + each.name, reader.read(tensor_of(each, each.value))), histograms);
  return histograms;
}

std::vector<Histogram> gradient_histograms(Network& network, Stream& stream, double loss_scale) {
  TensorReader reader(network, stream);
  std::vector<Histogram> histograms;
  for (const Parameter& each : network.parameters())
    add(histogram_of("gradients/" + each.name, reader.read_gradient(each), loss_scale), histograms);
  return histograms;
}

}  // namespace lockstep
