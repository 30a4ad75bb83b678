// SPDX-License-Identifier: Apache-2.0
//
// 16-bit accumulated gradients are rounded after every micro-batch. The tests compare this error with the
// format's other errors: each micro-batch's gradient comes from rounded weights and activations, and the
// exchanged sum is 16-bit, too.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/random.h"
#include "core/tensor/dtype.h"
#include "models/networks/networks.h"
#include "tests/models/network_fixture.h"

namespace lockstep {
namespace {

constexpr GraphInput kMicroBatch{.batch = 8, .height = 16, .width = 16, .channels = 3, .classes = 5};
constexpr float kLossScale = 1024;

using Sums = std::map<std::string, std::vector<double>>;

// Waves in class-dependent directions, and noise: the gradients of micro-batches have a common part.
std::vector<std::uint8_t> images_of(int micro_batch) {
  const Random random(1, fmt::format("micro-batch {}", micro_batch));
  std::vector<std::uint8_t> images;
  for (std::int64_t n = 0; n < kMicroBatch.batch; ++n) {
    for (std::int64_t i = 0; i < kMicroBatch.height * kMicroBatch.width * kMicroBatch.channels; ++i) {
      const std::int64_t position =
          i / kMicroBatch.channels * (1 + n % kMicroBatch.classes) % kMicroBatch.width;
      images.push_back(static_cast<std::uint8_t>(8 * position + (random.bits(images.size()) & 127)));
    }
  }
  return images;
}

class MicroBatches {
 public:
  MicroBatches(const char* network, Precision precision, int count)
      : fixture_(
            kMicroBatch, [&](Graph& graph) { build_network(graph, {.name = network, .dropout = 0}); }, 1,
            Recompute::nothing, precision),
        count_(count) {}

  // Accumulates like a training step.
  Sums accumulated() {
    for (int micro = 0; micro < count_; ++micro)
      run(micro, micro == 0 ? Write::overwrite : Write::accumulate);
    return widened();
  }
  // Each gradient separately, summed in fp64.
  Sums summed() {
    Sums sums;
    for (int micro = 0; micro < count_; ++micro) {
      run(micro, Write::overwrite);
      for (const auto& [name, gradient] : widened()) {
        std::vector<double>& sum = sums[name];
        sum.resize(gradient.size());
        for (std::size_t i = 0; i < gradient.size(); ++i) sum[i] += gradient[i];
      }
    }
    return sums;
  }

 private:
  void run(int micro, Write write) {
    const std::vector<std::uint8_t> images = images_of(micro);
    Batch input = fixture_.input();
    input.images.data = const_cast<std::uint8_t*>(images.data());  // only read
    const Pass pass{.stream = fixture_.stream(),
                    .gradient_scale = 1.0f / static_cast<float>(kMicroBatch.batch * count_),
                    .loss_scale = &kLossScale,
                    .gradients = write};
    fixture_.network().forward(input, pass);
    fixture_.network().backward(pass);
  }
  // The 16-bit gradients (weights of convolutions and linear layers) as floats.
  Sums widened() {
    Sums sums;
    for (const auto& [name, gradient] : fixture_.plain_gradients()) {
      const bool is_half =
          name.starts_with("conv") || name.starts_with("fc") || name.find(".conv") != name.npos;
      if (is_half && name.ends_with("weight")) sums[name].assign(gradient.begin(), gradient.end());
    }
    return sums;
  }

  NetworkFixture fixture_;
  int count_;
};

double error_of_sums(const Sums& sums, const Sums& exact) {
  double difference = 0, size = 0;
  for (const auto& [name, values] : exact) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = sums.at(name)[i] - values[i];
      difference += error * error;
      size += values[i] * values[i];
    }
  }
  return std::sqrt(difference / size);
}

template <typename Type>
Sums rounded(Sums sums) {
  for (auto& [name, values] : sums) {
    for (double& value : values)
      value = static_cast<double>(static_cast<float>(Type(static_cast<float>(value))));
  }
  return sums;
}

struct AccumulationCase {
  const char* network;
  int micro_batches;
  double more;  // highest ratio of the error to that with one rounding
};

class Accumulation : public testing::TestWithParam<AccumulationCase> {};

template <typename Type>
void expect_little_added(const AccumulationCase& c, const Sums& exact, Precision precision,
                         const char* type) {
  MicroBatches half(c.network, precision, c.micro_batches);
  const Sums apart = half.summed(), accumulated = half.accumulated();
  const double once = error_of_sums(rounded<Type>(apart), exact);
  const double each_time = error_of_sums(accumulated, exact);
  const double alone = error_of_sums(accumulated, apart);
  fmt::print("{} {} x {}: error {:.2e} rounded once, {:.2e} after each micro-batch; the sum's own {:.2e}\n",
             type, c.network, c.micro_batches, once, each_time, alone);
  EXPECT_LT(each_time, c.more * once) << type;
}

TEST_P(Accumulation, RoundingAddsLittleToTheErrorOfTheFormat) {
  const AccumulationCase& c = GetParam();
  const Sums exact = MicroBatches(c.network, Precision::fp32, c.micro_batches).summed();
  expect_little_added<BFloat16>(c, exact, Precision::bf16, "bf16");
  expect_little_added<Half>(c, exact, Precision::fp16, "fp16");
}

// The added error grows with the square root of the number of micro-batches, while other errors average out.
// In bf16 it becomes visible at 64 micro-batches.
INSTANTIATE_TEST_SUITE_P(Networks, Accumulation,
                         testing::Values(AccumulationCase{"cnn", 8, 1.02}, AccumulationCase{"cnn", 16, 1.02},
                                         AccumulationCase{"cnn", 64, 1.25},
                                         AccumulationCase{"resnet20", 16, 1.02}),
                         [](const auto& made) {
                           return fmt::format("{}_{}", made.param.network, made.param.micro_batches);
                         });

}  // namespace
}  // namespace lockstep
