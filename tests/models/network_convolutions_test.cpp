// SPDX-License-Identifier: Apache-2.0
//
// Each convolution of the shipped networks, in each direction and with each candidate kernel, against the
// reference in double precision. Channels, kernels and strides are the networks'; the images are small.
#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "models/networks/networks.h"
#include "tests/kernels/affine_reference.h"
#include "tests/kernels/planned_memory.h"
#include "tests/models/convolutions_of.h"

namespace lockstep {
namespace {

struct Images {
  const char* network;
  Stem stem;
  std::int64_t size;
  std::int64_t channels;

  bool operator==(const Images&) const = default;
};

// resnet34 has resnet18's convolutions, only more of them.
constexpr Images kNetworks[] = {
    {"cnn", Stem::automatic, 28, 1},      {"resnet20", Stem::cifar, 28, 1},
    {"resnet18", Stem::cifar, 32, 3},     {"resnet18", Stem::imagenet, 64, 3},
    {"resnet50", Stem::imagenet, 64, 3},  {"vgg11_bn", Stem::automatic, 32, 3},
    {"mobilenet_v2", Stem::cifar, 32, 3}, {"mobilenet_v2", Stem::imagenet, 64, 3}};

std::string key_of(const ConvolutionShape& s) {
  return fmt::format("{} to {} channels of {}x{}, kernel {} stride {} groups {}{}", s.in_channels,
                     s.out_channels, s.in_height, s.in_width, s.kernel, s.stride, s.groups,
                     s.bias ? " bias" : "");
}

std::map<std::string, ConvolutionShape> distinct_convolutions_of(const Images& images) {
  Graph graph(
      {.batch = 4, .height = images.size, .width = images.size, .channels = images.channels, .classes = 10});
  build_network(graph, {.name = images.network, .stem = images.stem});
  std::map<std::string, ConvolutionShape> shapes;
  for (const ConvolutionShape& shape : convolutions_of(graph)) shapes.emplace(key_of(shape), shape);
  return shapes;
}

// The convolutions of these images' network that no earlier network has.
std::map<std::string, ConvolutionShape> new_convolutions_of(const Images& images) {
  auto shapes = distinct_convolutions_of(images);
  for (const Images& earlier : kNetworks) {
    if (earlier == images) break;
    for (const auto& [key, shape] : distinct_convolutions_of(earlier)) shapes.erase(key);
  }
  return shapes;
}

// Norm of the difference over the norm of the reference.
struct Errors {
  double forward = 0, backward_data = 0, backward_weights = 0;

  void raise(const Errors& other) {
    forward = std::max(forward, other.forward);
    backward_data = std::max(backward_data, other.backward_data);
    backward_weights = std::max(backward_weights, other.backward_weights);
  }
};

// Limits of the error of fp32 sums. The rounding errors of a sum of n random terms are a random walk: about
// 0.4 sqrt(n) units of rounding in norm for sequential addition, and less with several partial sums. Operands
// rounded to tf32 would cost 2000 units, to bf16 16000.
Errors limits_of(const ConvolutionShape& s, double amplification) {
  const auto limit = [&](std::int64_t terms) {
    constexpr double kUnit = 0x1p-24;
    return amplification * kUnit * (4 + std::sqrt(static_cast<double>(terms)));
  };
  return {.forward = limit(s.in_channels * s.kernel * s.kernel / s.groups),
          .backward_data = limit(s.out_channels * s.kernel * s.kernel / s.groups),
          .backward_weights = limit(s.batch * s.out_height() * s.out_width())};
}

struct Candidate {
  const char* name;
  double amplification;
};
// Winograd's F(4x4, 3x3) adds and subtracts multiples of up to 8 before and after its products, which costs
// about one digit.
constexpr double kDirect = 1, kWinograd = 8;
constexpr Candidate kCandidates[] = {
    {"direct", kDirect},          {"direct in 2 pieces", kDirect},     {"direct in 4 pieces", kDirect},
    {"winograd", kWinograd},      {"winograd in 2 pieces", kWinograd}, {"winograd in 4 pieces", kWinograd},
    {"tiled winograd", kWinograd}};

// Inputs and the reference's results.
struct Expected {
  Values x, w, bias, y_gradient;
  Doubles y, x_gradient, w_gradient;  // the images' gradient is not needed

  explicit Expected(const ConvolutionShape& s)
      : x(random_values(s.batch * s.in_channels * s.in_height * s.in_width, "input")),
        w(random_values(s.out_channels * s.in_channels / s.groups * s.kernel * s.kernel, "weights")),
        bias(random_values(s.bias ? s.out_channels : 0, "bias")),
        y_gradient(random_values(s.batch * s.out_channels * s.out_height() * s.out_width(), "gradient")),
        y(reference_forward(s, widen(x), widen(w), widen(bias))),
        x_gradient(s.input_gradient ? reference_backward_data(s, widen(y_gradient), widen(w)) : Doubles()),
        w_gradient(reference_backward_weights(s, widen(x), widen(y_gradient))) {}
};

Errors errors_of(AffineKernel& kernel, const Expected& e) {
  AffineRunner runner(kernel, static_cast<std::int64_t>(e.bias.size()));
  const AffineRunner::Gradients before{.weights = e.w, .bias = e.bias};
  const auto gradients = runner.backward_weights(e.x, e.y_gradient, before, Write::overwrite);
  return {.forward = relative_error(runner.forward(e.x, e.w, e.bias), e.y),
          .backward_data = e.x_gradient.empty()
                               ? 0
                               : relative_error(runner.backward_data(e.y_gradient, e.w), e.x_gradient),
          .backward_weights = relative_error(gradients.weights, e.w_gradient)};
}

class NetworkConvolutions : public testing::TestWithParam<Images> {};

TEST_P(NetworkConvolutions, MatchTheReferenceByEveryCandidate) {
  std::map<std::string, Errors> largest;
  for (const auto& [key, shape] : new_convolutions_of(GetParam())) {
    const Expected expected(shape);
    // The images are plain, and other inputs have the layout of a convolution's output.
    const std::vector<Layout> layouts =
        layouts_for({shape.batch, shape.in_channels, shape.in_height, shape.in_width});
    const Layout& input = shape.input_gradient ? layouts.back() : layouts.front();
    for (const Candidate& candidate : kCandidates) {
      const auto kernel = convolution_by(candidate.name, shape, input);
      if (!kernel) continue;  // this candidate does not support the shape
      const Errors errors = errors_of(*kernel, expected);
      const Errors limit = limits_of(shape, candidate.amplification);
      const std::string what = fmt::format("{}, {}", key, candidate.name);
      EXPECT_LT(errors.forward, limit.forward) << what;
      EXPECT_LT(errors.backward_data, limit.backward_data) << what;
      EXPECT_LT(errors.backward_weights, limit.backward_weights) << what;
      largest[candidate.name].raise(errors);
    }
  }
  EXPECT_TRUE(largest.contains("direct"));
  fmt::print("{:<22} {:>8} {:>14} {:>17}\n", "largest error", "forward", "backward data", "backward weights");
  for (const auto& [name, errors] : largest) {
    fmt::print("{:<22} {:>8.1e} {:>14.1e} {:>17.1e}\n", name, errors.forward, errors.backward_data,
               errors.backward_weights);
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, NetworkConvolutions, testing::ValuesIn(kNetworks), [](const auto& images) {
  return fmt::format("{}_{}", images.param.network, images.param.size);
});

}  // namespace
}  // namespace lockstep
