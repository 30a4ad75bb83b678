// SPDX-License-Identifier: Apache-2.0
//
// Networks in half precision, compared with the same network in fp32.
#include "models/precision.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "models/networks/networks.h"
#include "models/optimizer.h"
#include "tests/models/network_fixture.h"

namespace lockstep {
namespace {

constexpr GraphInput kPrecisionInput{.batch = 8, .height = 16, .width = 16, .channels = 3, .classes = 5};

struct HalfType {
  const char* name;
  Precision precision;
  double epsilon;  // the spacing of the type around 1
};
constexpr HalfType kHalves[] = {{"fp16", Precision::fp16, 0x1p-10}, {"bf16", Precision::bf16, 0x1p-7}};

NetworkFixture fixture_in(Precision precision, const char* network = "resnet20") {
  return NetworkFixture(
      kPrecisionInput, [&](Graph& graph) { build_network(graph, {.name = network}); }, 1, Recompute::nothing,
      precision);
}

// error: the distance of a from b, relative to b's norm. scale: the size of a along b; 1 if the scale is
// right.
struct Agreement {
  double error = 0;
  double scale = 0;
};
Agreement agreement(const std::vector<float>& a, const std::vector<float>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    aa += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return {.error = std::sqrt(std::max(0.0, aa - 2 * ab + bb) / bb), .scale = ab / bb};
}

// Weights of convolutions and linear layers are 16-bit where layers read them; batch norm and biases are not.
TEST(HalfNetwork, KeepsWeightsAndTheirGradientsIn16Bits) {
  for (const HalfType& half : kHalves) {
    NetworkFixture fixture = fixture_in(half.precision);
    Network& network = fixture.network();
    const FlatRange copies = network.weight_copies();
    EXPECT_EQ(copies.type, storage_type(half.precision));
    for (const Parameter& parameter : network.parameters()) {
      const bool is_weight = parameter.layout.shape().rank() > 1;
      EXPECT_EQ(parameter.gradient_type, is_weight ? copies.type : DType::f32) << parameter.name;
      EXPECT_EQ(parameter.offset < copies.end, is_weight) << parameter.name;
      EXPECT_EQ(parameter.layout.dtype(), DType::f32) << parameter.name;
    }
    EXPECT_EQ(network.memory().weight_copies, copies.bytes());
    EXPECT_LT(network.memory().activations, 0.7 * fixture_in(Precision::fp32).network().memory().activations);
  }
}

struct Judged {
  const char* network;
  int relus;
};

// Rounding moves a pre-activation by about the spacing of the type, so about that share of the elements
// crosses the kink of its ReLU, and each of them changes the gradient completely. Each ReLU adds an error of
// about the square root of the spacing, and these errors add up like independent ones. The scale is a mean
// over elements and more exact, most of all over all weights. The loss is a smooth mean over samples, with an
// error of a few roundings of the logits.
TEST(HalfNetwork, LossAndGradientsFollowFp32) {
  for (const Judged& judged : {Judged{"cnn", 3}, Judged{"resnet20", 19}}) {
    NetworkFixture exact = fixture_in(Precision::fp32, judged.network);
    const double loss = exact.forward_backward();
    const auto wanted = exact.plain_gradients();
    for (const HalfType& half : kHalves) {
      SCOPED_TRACE(std::string(judged.network) + " " + half.name);
      NetworkFixture fixture = fixture_in(half.precision, judged.network);
      EXPECT_NEAR(fixture.forward_backward(), loss, half.epsilon * loss);
      const double kinks = std::sqrt(judged.relus * half.epsilon);
      std::vector<float> all, all_wanted;
      for (const auto& [parameter, gradient] : fixture.plain_gradients()) {
        // The gradient of a bias before batch norm is only noise.
        if (!parameter.ends_with("weight")) continue;
        const std::vector<float>& right = wanted.at(parameter);
        const Agreement found = agreement(gradient, right);
        EXPECT_LT(found.error, 2 * kinks) << parameter;
        EXPECT_NEAR(found.scale, 1, kinks) << parameter;
        all.insert(all.end(), gradient.begin(), gradient.end());
        all_wanted.insert(all_wanted.end(), right.begin(), right.end());
      }
      EXPECT_NEAR(agreement(all, all_wanted).scale, 1, std::sqrt(half.epsilon));
    }
  }
}

// The copies equal the rounded values: initially, after a step, and after values were written.
TEST(HalfNetwork, CopiesEqualTheRoundedValues) {
  for (const HalfType& half : kHalves) {
    NetworkFixture fixture = fixture_in(half.precision, "cnn");
    Network& network = fixture.network();
    const auto optimizer = make_optimizer(fixture.trained_memory(), AdamWOptions{});
    const auto expect_true = [&](const char* when) {
      const FlatRange copies = network.weight_copies();
      std::vector<std::uint16_t> rounded(static_cast<std::size_t>(copies.end));
      network.backend().cast(fixture.stream(), {.count = copies.end,
                                                .from_type = DType::f32,
                                                .to_type = copies.type,
                                                .from = network.values().data(),
                                                .to = rounded.data()});
      EXPECT_EQ(std::memcmp(rounded.data(), copies.data, copies.bytes()), 0) << half.name << " " << when;
    };
    expect_true("at first");
    fixture.forward_backward();
    optimizer->check_gradients(fixture.stream());
    optimizer->step(fixture.stream(), 0.01);
    expect_true("after a step");
    for (float& value : network.values()) value *= 1.01f;
    network.copy_weights(fixture.stream());
    expect_true("after values were written");
  }
}

TEST(HalfNetwork, EveryOptimizerLowersTheLoss) {
  const std::vector<std::pair<OptimizerOptions, double>> optimizers = {
      {SgdOptions{}, 0.02}, {AdamWOptions{}, 0.003}, {LarsOptions{.trust_coefficient = 0.02}, 1.0}};
  for (const HalfType& half : kHalves) {
    for (const auto& [options, rate] : optimizers) {
      NetworkFixture fixture = fixture_in(half.precision, "cnn");
      const auto optimizer = make_optimizer(fixture.trained_memory(), options);
      const double before = fixture.forward_backward();
      for (int step = 0; step < 12; ++step) {
        optimizer->check_gradients(fixture.stream());
        optimizer->step(fixture.stream(), rate);
        fixture.forward_backward();
      }
      EXPECT_LT(fixture.forward(), 0.6 * before) << half.name << ", optimizer " << options.index();
    }
  }
}

}  // namespace
}  // namespace lockstep
