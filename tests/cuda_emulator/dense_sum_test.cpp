// SPDX-License-Identifier: Apache-2.0
//
// Sums over many ranks by NCCL, which rounds 16-bit partial sums at each rank. Ranks are threads with one
// device each.
#include <cmath>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "comm/gradients/buckets.h"
#include "comm/nccl/communicator.h"
#include "kernels/backend.h"
#include "tests/comm/codec_ranks.h"

namespace lockstep::dense_sum_test {
namespace {

constexpr int kRanks = 12;
constexpr int kMicroBatches = 11;

// The emulated machine reads this variable at the first CUDA call.
const int kEnoughDevices = setenv("LOCKSTEP_EMULATED_GPUS", std::to_string(kRanks).c_str(), 1);

// A bf16 value between 1 and 2.
float summand(int rank, int micro, std::int64_t element) {
  return static_cast<float>(BFloat16(1.5f + 0.5f * made_up_gradient(rank, micro, element)));
}

struct Sums {
  double largest_error = 0;  // largest over all elements, relative to the sum
  std::size_t sum_bytes = 0;
  std::uint64_t sent_bytes = 0;
};

// The result of rank 0. A step with several micro-batches is recorded and replayed once.
Sums sum_over_ranks(int micro_batches, const BucketOptions& options) {
  CHECK(kEnoughDevices == 0);
  Sums result;
  run_thread_ranks(kRanks, [&](Communicator& host) {
    const Device device{.kind = DeviceKind::cuda, .index = host.rank()};
    NcclCommunicator nccl(device, host, {}, [](const std::string& reason) { ADD_FAILURE() << reason; });
    std::vector<Parameter> parameters = some_parameters(DType::bf16);
    GradientBuckets buckets(parameters, nccl, options);
    Stream stream(device, StreamUse::compute);
    const FlatRange& range = buckets.gradients()[0];
    std::vector<Buffer> written;  // by micro-batch: the gradients that backward would write
    for (int micro = 0; micro < micro_batches; ++micro) {
      std::vector<BFloat16> values;
      for (std::int64_t i = range.begin; i < range.end; ++i)
        values.push_back(BFloat16(summand(host.rank(), micro, i)));
      stream.copy(written.emplace_back(range.bytes(), device).data(), values.data(), range.bytes());
    }
    stream.synchronize();
    backend_for(device);  // must not be created while a step is recorded
    std::string reason;
    const std::uint64_t sent_before = nccl.traffic().sent_bytes;
    Recording recording = stream.record_work(
        [&] {
          for (int micro = 0; micro < micro_batches; ++micro) {
            stream.copy(range.data, written[static_cast<std::size_t>(micro)].data(), range.bytes());
            if (micro + 1 < micro_batches) buckets.behind_micro_batch(stream, micro);
          }
          buckets.begin(stream);
          for (std::size_t i = 0; i < parameters.size(); ++i) buckets.gradient_ready(i);
          buckets.wait(stream);
        },
        reason);
    CHECK(!recording.empty(), "{}", reason);
    stream.replay(recording);
    nccl.replayed(nccl.take_recorded(), stream);
    std::vector<BFloat16> sums(static_cast<std::size_t>(range.count()));
    stream.copy(sums.data(), range.data, range.bytes());
    stream.synchronize();
    nccl.stream().synchronize();
    if (host.rank() > 0) return;
    result.sum_bytes = buckets.sum_bytes();
    result.sent_bytes = nccl.traffic().sent_bytes - sent_before;
    for (const Parameter& parameter : parameters) {
      const std::int64_t end = parameter.offset + parameter.layout.shape().elements();
      for (std::int64_t i = parameter.offset; i < end; ++i) {
        double sum = 0;
        for (int rank = 0; rank < kRanks; ++rank) {
          for (int micro = 0; micro < micro_batches; ++micro) sum += summand(rank, micro, i);
        }
        const double error = std::abs(static_cast<float>(sums[static_cast<std::size_t>(i)]) - sum) / sum;
        result.largest_error = std::max(result.largest_error, error);
      }
    }
  });
  return result;
}

constexpr double kOneRounding = 0x1p-8;

TEST(DenseSum, SumsOverManyGpusAreRoundedOnce) {
  const Sums wide = sum_over_ranks(1, {});
  EXPECT_LE(wide.largest_error, 1.01 * kOneRounding);
  const Sums narrow = sum_over_ranks(1, {.sum_type = SumType::gradients});
  EXPECT_GT(narrow.largest_error, 2 * kOneRounding) << "the emulated NCCL must round partial sums";
  EXPECT_EQ(narrow.sum_bytes, 0u);
  EXPECT_GT(wide.sum_bytes, 0u);
  EXPECT_NEAR(static_cast<double>(wide.sent_bytes), 2.0 * static_cast<double>(narrow.sent_bytes), 1024);
}

TEST(DenseSum, DenseSumsBesideACodecAreRoundedOnce) {
  BucketOptions options{.exchange = {.kind = &kTopKCodec},
                        .codecs = {.rules = {{.pattern = "*", .choice = {.kind = &kDenseSum}}}}};
  EXPECT_LE(sum_over_ranks(1, options).largest_error, 1.01 * kOneRounding);
  options.sum_type = SumType::gradients;
  EXPECT_GT(sum_over_ranks(1, options).largest_error, 2 * kOneRounding);
}

// A rank rounds its own sum before it sends it.
TEST(DenseSum, SumsOfMicroBatchesOverManyGpusAreRoundedTwice) {
  EXPECT_LE(sum_over_ranks(kMicroBatches, {.micro_batches = kMicroBatches}).largest_error,
            2.01 * kOneRounding);
}

}  // namespace
}  // namespace lockstep::dense_sum_test
