// SPDX-License-Identifier: Apache-2.0
//
// The codecs fp16 and bf16: values are rounded to 16 bits and summed by an all_reduce, which on a CPU adds in
// fp32 and rounds once. There is no residual: rounding errors have no direction.
//
// fp16 holds magnitudes from 6e-8 to 65504. Before values of a bucket become fp16 they are multiplied by a
// power of two, which depends on the largest magnitude on any rank: a bucket of small gradients keeps its
// digits, and a sum over ranks does not overflow. This costs an all-reduce of 4 bytes for each bucket.
// Infinity and NaN stay what they are: the step is skipped or ends the run, as with any overflow. Gradients
// that are fp16 already are sent unchanged if every node has one rank: the loss scale keeps them within fp16,
// as it does without a codec.
#include "comm/codecs/codec.h"
#include "comm/exchanges/exchanges.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

class HalfCodec final : public Codec {
 public:
  HalfCodec(const CodecContext& context, DType wire)
      : shares_(context.shares), type_(context.type), wire_(wire), across_(context.across) {
    if (type_ == wire_) return;
    memory_ = across_.allocate(static_cast<std::size_t>(context.largest_share()) * size_of(wire));
    if (wire_ == DType::f16) range_ = across_.allocate(sizeof(Range));
  }

  void exchange(std::size_t bucket, const GradientUnit& /*unit*/) override {
    const CodecShare& share = shares_[bucket];
    if (share.count == 0) return;
    const auto count = static_cast<std::size_t>(share.count);
    if (type_ == wire_) return across_.all_reduce(share.values, count, wire_, ReduceOp::sum);
    if (range() != nullptr) agree_on_range(share);
    Stream& stream = across_.stream();
    Backend& backend = backend_for(stream.device());
    backend.cast(stream, {.count = share.count,
                          .from_type = type_,
                          .to_type = wire_,
                          .from = share.values,
                          .to = memory_.data(),
                          .factor = range() == nullptr ? nullptr : &range()->scale});
    across_.all_reduce(memory_.data(), count, wire_, ReduceOp::sum);
    backend.cast(stream, {.count = share.count,
                          .from_type = wire_,
                          .to_type = type_,
                          .from = memory_.data(),
                          .to = share.values,
                          .factor = range() == nullptr ? nullptr : &range()->inverse});
  }
  std::size_t memory_bytes() const override { return memory_.bytes() + range_.bytes(); }

 private:
  // In device memory.
  struct Range {
    std::int32_t largest = 0;  // see LargestMagnitude
    float scale = 1;
    float inverse = 1;
  };

  // Null if values are not scaled.
  Range* range() const { return reinterpret_cast<Range*>(range_.data()); }

  void agree_on_range(const CodecShare& share) {
    Stream& stream = across_.stream();
    Backend& backend = backend_for(stream.device());
    backend.largest_magnitude(
        stream, {.type = type_, .count = share.count, .values = share.values, .largest = &range()->largest});
    across_.all_reduce(&range()->largest, 1, DType::i32, ReduceOp::max);
    backend.half_scale(stream, {.largest = &range()->largest,
                                .terms = across_.size(),
                                .scale = &range()->scale,
                                .inverse = &range()->inverse});
  }

  std::span<const CodecShare> shares_;
  DType type_;
  DType wire_;
  Communicator& across_;
  Buffer memory_;  // the values to send, if values are fp32
  Buffer range_;   // of the current bucket
};

template <DType wire>
constexpr CodecKind kHalf = {.alone = wire,
                             .scales = wire == DType::f16,
                             .make = [](const CodecContext& context) -> std::unique_ptr<Codec> {
                               return std::make_unique<HalfCodec>(context, wire);
                             },
                             .sent_share = [](const ExchangeChoice&, const Parameter&, int) { return 0.5; },
                             .round_trips = wire == DType::f16 ? 2 : 1};

}  // namespace

constinit const ExchangeKind kFp16Codec = {.name = "fp16",
                                           .meaning = "summed and sent as fp16, half the bytes of fp32",
                                           .options = {},
                                           .make = make_codec_exchange,
                                           .codec = &kHalf<DType::f16>};

constinit const ExchangeKind kBf16Codec = {
    .name = "bf16",
    .meaning = "summed and sent as bf16, half the bytes of fp32 and its range, fewer digits than fp16",
    .options = {},
    .make = make_codec_exchange,
    .codec = &kHalf<DType::bf16>};

}  // namespace lockstep
