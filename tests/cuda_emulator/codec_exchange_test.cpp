// SPDX-License-Identifier: Apache-2.0
//
// Codecs between GPUs, with steps that are recorded once and replayed. Ranks are threads with one device
// each, and some share a node. Every step has the bits of the CPU, except PowerSGD's, whose sums have another
// order.
#include <cmath>

#include <gtest/gtest.h>

#include "comm/gradients/buckets.h"
#include "comm/nccl/communicator.h"
#include "kernels/backend.h"
#include "tests/comm/codec_ranks.h"

namespace lockstep::codec_exchange_test {
namespace {

constexpr int kSteps = 5;
constexpr int kSkipped = 3;  // this step
constexpr float kLossScale = 256;

// The first parameter is a bucket by itself, which codecs between two nodes of one rank do not pack.
std::vector<Parameter> gpu_parameters() {
  static const Shape shapes[] = {{32, 32}, {10},      {40, 40}, {16, 8, 3, 3},
                                 {4, 4},   {100, 33}, {5000},   {7, 211}};
  return shaped_parameters(shapes);
}

// Multiples of 1 / 16, whose dense sums have the same bits in any order.
float codec_gradient(int rank, int step, std::int64_t element) {
  return std::round(16 * kLossScale * made_up_gradient(rank, step, element)) / 16;
}

// The gradients of rank 0 by step.
using StepResults = std::vector<std::vector<float>>;

StepResults on_cpus(const std::vector<int>& node_of, const BucketOptions& options) {
  StepResults results;
  run_thread_ranks(
      static_cast<int>(node_of.size()),
      [&](Communicator& communicator) {
        std::vector<Parameter> parameters = gpu_parameters();
        GradientBuckets buckets(parameters, communicator, options);
        for (int step = 0; step < kSteps; ++step) {
          run_pass(buckets, parameters, communicator.rank(),
                   [step](int rank, std::int64_t element) { return codec_gradient(rank, step, element); },
                   {.loss_scale = &kLossScale});
          if (communicator.rank() == 0) results.push_back(gradients_of(parameters));
          Stream stream(Device{}, StreamUse::compute);
          std::int32_t finite = step == kSkipped ? 0 : 1;
          buckets.agree_finite(stream, &finite);
        }
      },
      node_of);
  return results;
}

// A rank's device with its buckets and a recorded step.
class CodecOnGpu {
 public:
  CodecOnGpu(Communicator& host, const BucketOptions& options)
      : device_{.kind = DeviceKind::cuda, .index = host.rank()},
        nccl_(device_, host, {}, [](const std::string& reason) { ADD_FAILURE() << reason; }),
        parameters_(gpu_parameters()),
        buckets_(parameters_, nccl_, options),
        stream_(device_, StreamUse::compute),
        control_(2 * sizeof(float), device_) {
    backend_for(device_);  // must not be created while a step is recorded
    stream_.copy(control_.data(), &kLossScale, sizeof(float));
    stream_.synchronize();
    std::string reason;
    recording_ = stream_.record_work([this] { enqueue(); }, reason);
    CHECK(!recording_.empty(), "{}", reason);
  }
  ~CodecOnGpu() {
    stream_.synchronize();
    nccl_.stream().synchronize();
  }

  std::vector<float> step(int number) {
    const FlatRange& range = buckets_.gradients()[0];
    std::vector<float> arena(static_cast<std::size_t>(range.count()));
    for (const Parameter& parameter : parameters_) {
      for (std::int64_t i = 0; i < parameter.layout.shape().elements(); ++i) {
        arena[static_cast<std::size_t>(parameter.offset + i)] =
            codec_gradient(nccl_.rank(), number, parameter.offset + i);
      }
    }
    const std::int32_t finite = number == kSkipped ? 0 : 1;
    stream_.copy(range.data, arena.data(), range.bytes());
    stream_.copy(flag(), &finite, sizeof(finite));
    stream_.replay(recording_);
    stream_.copy(arena.data(), range.data, range.bytes());
    stream_.synchronize();
    std::vector<float> gradients;
    for (const Parameter& parameter : parameters_) {
      const auto first = arena.begin() + parameter.offset;
      gradients.insert(gradients.end(), first, first + parameter.layout.shape().elements());
    }
    return gradients;
  }

 private:
  void enqueue() {
    buckets_.begin(stream_, {}, {.loss_scale = reinterpret_cast<const float*>(control_.data())});
    for (std::size_t i = 0; i < parameters_.size(); ++i) buckets_.gradient_ready(i);
    buckets_.wait(stream_);
    buckets_.agree_finite(stream_, flag());
  }
  std::int32_t* flag() const { return reinterpret_cast<std::int32_t*>(control_.data()) + 1; }

  Device device_;
  NcclCommunicator nccl_;
  std::vector<Parameter> parameters_;
  GradientBuckets buckets_;
  Stream stream_;
  Buffer control_;  // the loss scale, and whether the step is applied
  Recording recording_;
};

class CodecOnGpus : public testing::TestWithParam<const ExchangeKind*> {};

INSTANTIATE_TEST_SUITE_P(Kinds, CodecOnGpus,
                         testing::Values(&kFp16Codec, &kBf16Codec, &kInt8Codec, &kSignCodec, &kPowerSgdCodec,
                                         &kTopKCodec, &kDgcCodec),
                         [](const auto& kind) { return std::string(kind.param->name); });

TEST_P(CodecOnGpus, ReplayedStepsHaveTheBitsOfTheCpu) {
  for (const std::vector<int>& node_of : {std::vector<int>{0, 1}, {0, 0, 1, 1}, {0, 1, 1}}) {
    BucketOptions options = codec_buckets(*GetParam());
    if (GetParam() == &kInt8Codec) options.exchange.settings = {{.option = "stochastic", .value = 1}};
    // No step is recorded during the warm-up.
    // The products of PowerSGD are sums in another order.
    const float tolerance = GetParam() == &kPowerSgdCodec ? 1e-3f * kLossScale : 0.0f;
    const StepResults expected = on_cpus(node_of, options);
    run_thread_ranks(
        static_cast<int>(node_of.size()),
        [&](Communicator& host) {
          CodecOnGpu gpu(host, options);
          for (int step = 0; step < kSteps; ++step) {
            const std::vector<float> found = gpu.step(step),
                                     &wanted = expected[static_cast<std::size_t>(step)];
            for (std::size_t i = 0; i < wanted.size(); ++i) {
              CHECK(std::abs(found[i] - wanted[i]) <= tolerance,
                    "element {} in step {} of {} ranks is {}, expected {}", i, step, node_of.size(), found[i],
                    wanted[i]);
            }
          }
        },
        node_of);
  }
}

}  // namespace
}  // namespace lockstep::codec_exchange_test
