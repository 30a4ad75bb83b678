// SPDX-License-Identifier: Apache-2.0
//
// Codecs that work on gradients in place, compared with the same codecs on packed copies.
#include <gtest/gtest.h>

#include "comm/codecs/codec.h"
#include "tests/comm/codec_state.h"

namespace lockstep {
namespace {

// Gradients and codec state after some steps, on this rank.
struct Trained {
  std::vector<float> gradients;
  CodecState state;
  std::size_t memory = 0;  // of the exchange
};
Trained train_with(Communicator& communicator, const BucketOptions& options, DType type) {
  static const Shape shapes[] = {{32, 32}, {7}, {64, 24}};
  std::vector<Parameter> parameters = shaped_parameters(shapes, type);
  GradientBuckets buckets(parameters, communicator, options);
  for (int step = 0; step < 3; ++step) {
    run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
  }
  return {agreed_gradients(communicator, parameters), state_of(buckets), buckets.exchange().memory_bytes()};
}

// A bucket with one matrix is exchanged in place; two matrices with a bias between them are packed. The
// results and the residuals are the same.
TEST(CodecsInPlace, ABucketWithOneMatrixIsNotPacked) {
  struct Case {
    const ExchangeKind* kind;
    DType type = DType::f32;
    std::vector<ExchangeSetting> settings = {};
  };
  const Case cases[] = {{&kInt8Codec},     {&kSignCodec},
                        {&kPowerSgdCodec}, {&kTopKCodec, DType::f32, {{"density", 0.05}}},
                        {&kDgcCodec},      {&kFp16Codec, DType::f16}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.kind->name);
    run_thread_ranks(
        2,
        [&](Communicator& communicator) {
          BucketOptions alone = codec_buckets(*each.kind, each.settings), together = alone;
          alone.first_bytes = alone.middle_bytes = alone.last_bytes = 1;
          together.first_bytes = together.middle_bytes = together.last_bytes = 1 << 20;
          const Trained in_place = train_with(communicator, alone, each.type);
          const Trained packed = train_with(communicator, together, each.type);
          CHECK(same_bits(in_place.gradients, packed.gradients));
          // Dithering and step counts are named after a bucket's first parameter; residuals are not.
          for (const auto& [name, values] : in_place.state) {
            if (name.ends_with("residual")) CHECK(same_bits(values, packed.state.at(name)), "{}", name);
          }
          if (each.kind == &kPowerSgdCodec)  // its other memory does not depend on buckets
            CHECK(packed.memory - in_place.memory == (32 * 32 + 64 * 24) * sizeof(float));
          CHECK(in_place.memory < packed.memory, "{}: {} and {} bytes", each.kind->name, in_place.memory,
                packed.memory);
        },
        std::vector<int>{0, 1});
  }
}

}  // namespace
}  // namespace lockstep
