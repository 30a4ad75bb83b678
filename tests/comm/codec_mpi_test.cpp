// SPDX-License-Identifier: Apache-2.0
//
// Codecs between processes: every step has the same bits as on ranks that are threads of one process.
#include <gtest/gtest.h>

#include "comm/codecs/auto_exchange.h"
#include "tests/comm/codec_ranks.h"
#include "tests/comm/mpi_world.h"

namespace lockstep {
namespace {

constexpr int kSteps = 4;

class CodecBetweenProcesses : public testing::TestWithParam<const ExchangeKind*> {};

INSTANTIATE_TEST_SUITE_P(Kinds, CodecBetweenProcesses,
                         testing::Values(&kFp16Codec, &kBf16Codec, &kInt8Codec, &kSignCodec, &kPowerSgdCodec,
                                         &kTopKCodec, &kDgcCodec, &kAutoCodec),
                         [](const auto& kind) { return std::string(kind.param->name); });

// Like a trial, if there is a choice: all buckets dense at first, then different codecs in turn.
void choose_by_turns(GradientBuckets& buckets) {
  AutoExchange* exchange = buckets.exchange().to_choose();
  if (exchange == nullptr) return;
  std::vector<int> by_bucket;
  for (std::size_t i = 0; i < buckets.buckets().size(); ++i)
    by_bucket.push_back(static_cast<int>((i + 1) % exchange->choices().size()));
  exchange->choose(by_bucket);
}

// Runs some steps; the third is skipped.
std::vector<std::vector<float>> codec_steps(Communicator& communicator, const BucketOptions& options) {
  std::vector<Parameter> parameters = some_parameters();
  GradientBuckets buckets(parameters, communicator, options);
  std::vector<std::vector<float>> results;
  for (int step = 0; step < kSteps; ++step) {
    if (step == 1) choose_by_turns(buckets);
    run_pass(buckets, parameters, communicator.rank(), made_up_gradients(step));
    results.push_back(agreed_gradients(communicator, parameters));
    Stream stream(Device{}, StreamUse::compute);
    std::int32_t finite = step == 2 ? 0 : 1;
    buckets.agree_finite(stream, &finite);
  }
  return results;
}

TEST_P(CodecBetweenProcesses, HasTheSameBitsAsBetweenThreads) {
  on_every_rank([] {
    World& world = test_world();
    for (const bool within : {false, true}) {
      if (within && world.nodes() == world.size()) continue;  // the same as between nodes
      BucketOptions options = codec_buckets(*GetParam());
      options.codecs.compress_within_node = within;
      options.codecs.candidates = {{.kind = &kBf16Codec}, {.kind = &kInt8Codec}, steady(kPowerSgdCodec)};
      if (GetParam() == &kInt8Codec) options.exchange.settings = {{.option = "stochastic", .value = 1}};
      const std::unique_ptr<Communicator> communicator = world.communicator();
      const std::vector<std::vector<float>> found = codec_steps(*communicator, options);
      if (world.rank() > 0) continue;  // agreed_gradients() has compared the ranks
      std::vector<std::vector<float>> expected;
      run_thread_ranks(
          communicator->size(),
          [&](Communicator& thread) {
            const std::vector<std::vector<float>> steps = codec_steps(thread, options);
            if (thread.rank() == 0) expected = steps;
          },
          communicator->node_of_rank());
      CHECK(found == expected, "the bits differ from those between threads{}", within ? " within nodes" : "");
    }
  });
}

}  // namespace
}  // namespace lockstep
