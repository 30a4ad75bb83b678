// SPDX-License-Identifier: Apache-2.0
#include "tests/models/slopes.h"

#include <algorithm>
#include <cmath>

#include "core/random.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

constexpr int kSlopeDirections = 4;

// The change of an element over the root mean square of the parameter's values. Larger steps cross more
// kinks of activations; smaller ones vanish in fp32 rounding.
constexpr double kSlopeStep = 3e-4;

// Resolution of a change of the loss, relative to the loss: far above fp32 rounding, far below the change by
// a step.
constexpr double kResolution = 1e-5;

// Assumed size of values that are all zero, such as initial biases.
constexpr double kSizeOfZeros = 0.1;

double root_mean_square(std::span<const float> values) {
  double square = 0;
  for (const float value : values) square += static_cast<double>(value) * value;
  return std::sqrt(square / static_cast<double>(values.size()));
}

std::span<float> values_of(const Parameter& parameter) {
  return {parameter.value, static_cast<std::size_t>(parameter.layout.physical_elements())};
}

double loss_of_sample(Loss loss, std::span<const float> row, std::int32_t label) {
  double exponentials = 0, of_outputs = 0;
  for (std::size_t k = 0; k < row.size(); ++k) {
    const auto x = static_cast<double>(row[k]);
    const bool hit = k == static_cast<std::size_t>(label);
    const double target = row.size() == 1 ? static_cast<double>(label) : hit ? 1 : 0;
    exponentials += std::exp(x);
    of_outputs += loss == Loss::binary_cross_entropy ? std::log1p(std::exp(x)) - target * x
                                                     : (x - target) * (x - target);
  }
  if (loss == Loss::cross_entropy)
    return std::log(exponentials) - static_cast<double>(row[static_cast<std::size_t>(label)]);
  return of_outputs / static_cast<double>(row.size());
}

// The weighted mean loss of the batch, in double precision from the logits on: rounding an fp32 sum would
// hide small steps.
double precise_loss(NetworkFixture& fixture) {
  fixture.forward();
  const Tensor logits = fixture.network().logits();
  const std::int64_t classes = logits.shape[1];
  const Network::Targets targets = fixture.network().targets(fixture.input());
  double sum = 0, weight = 0;
  for (std::int64_t sample = 0; sample < logits.shape[0]; ++sample) {
    const float* row = logits.as<float>().data() + sample * classes;
    const double its_weight = targets.weights[sample];
    const std::int32_t label = targets.labels[sample];
    sum += its_weight *
           loss_of_sample(fixture.network().loss_kind(), {row, static_cast<std::size_t>(classes)}, label);
    weight += its_weight;
  }
  return sum / weight;
}

// Random changes of each parameter in its own layout. Padding does not change.
class Change {
 public:
  Change(NetworkFixture& fixture, std::span<const Parameter> parameters)
      : fixture_(fixture), parameters_(parameters) {
    for (const Parameter& parameter : parameters) {
      const std::span<const float> values = values_of(parameter);
      steps_.emplace_back(values.size());
      before_.emplace_back(values.begin(), values.end());
    }
  }

  void draw(int number) {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const Parameter& parameter = parameters_[p];
      const double size = root_mean_square(before_[p]);
      const double deviation = kSlopeStep * (size > 0 ? size : kSizeOfZeros);
      const Random random(static_cast<std::uint64_t>(number), "change of " + parameter.name);
      std::vector<float> plain(static_cast<std::size_t>(parameter.layout.shape().elements()));
      std::uint32_t signs = 0;
      for (std::size_t i = 0; i < plain.size(); ++i, signs >>= 1) {
        if (i % 32 == 0) signs = random.bits(i / 32);
        plain[i] = static_cast<float>((signs & 1) != 0 ? deviation : -deviation);
      }
      const StateTensor tensor{.name = parameter.name, .layout = parameter.layout, .value = steps_[p].data()};
      write_plain(fixture_.network().backend(), fixture_.stream(), tensor, plain);
    }
  }

  // Sets each value to its original value plus `times` steps.
  void apply(float times) const {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const std::span<float> values = values_of(parameters_[p]);
      const std::span<const float> before = before_[p], steps = steps_[p];
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = before[i] + times * steps[i];
    }
  }

  // The change of the loss by one step, according to the gradients.
  double predicted() const {
    double sum = 0;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const auto* gradient = static_cast<const float*>(parameters_[p].gradient);
      const std::span<const float> steps = steps_[p];
      for (std::size_t i = 0; i < steps.size(); ++i)
        sum += static_cast<double>(gradient[i]) * static_cast<double>(steps[i]);
    }
    return sum;
  }

 private:
  NetworkFixture& fixture_;
  std::span<const Parameter> parameters_;
  std::vector<std::vector<float>> steps_;
  std::vector<std::vector<float>> before_;
};

}  // namespace

double slope_error(NetworkFixture& fixture, std::span<const Parameter> parameters) {
  double error = 0;
  double size = 0;
  double loss = 0;
  Change change(fixture, parameters);
  for (int number = 0; number < kSlopeDirections; ++number) {
    change.draw(number);
    const double predicted = change.predicted();
    change.apply(1);
    const double above = precise_loss(fixture);
    change.apply(-1);
    const double below = precise_loss(fixture);
    change.apply(0);
    const double slope = (above - below) / 2;
    error += std::pow(slope - predicted, 2);
    size += std::max(std::pow(slope, 2), std::pow(predicted, 2));
    loss += std::pow(above, 2);
  }
  return std::sqrt(error / std::max(size, std::pow(kResolution, 2) * loss));
}

}  // namespace lockstep
