// SPDX-License-Identifier: Apache-2.0
//
// The codecs fp16 and bf16: values are rounded to 16 bits and summed so, which a CPU does in fp32, rounding
// once. What does not fit fp16 becomes infinite, and the step is skipped or ends the run, as with any
// overflow. Nothing is remembered: rounding errors have no direction.
#include "comm/codecs/codec.h"
#include "comm/exchanges/exchanges.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

class HalfCodec final : public Codec {
 public:
  HalfCodec(const CodecContext& context, DType wire)
      : shares_(context.shares), type_(context.type), wire_(wire), across_(context.across) {
    if (type_ != wire_)
      memory_ = across_.allocate(static_cast<std::size_t>(context.largest_share()) * size_of(wire));
  }

  void exchange(std::size_t bucket, const GradientUnit& /*unit*/) override {
    const CodecShare& share = shares_[bucket];
    void* wire = type_ == wire_ ? share.values : memory_.data();
    if (type_ != wire_) cast(share.count, type_, share.values, wire_, wire);
    across_.all_reduce(wire, static_cast<std::size_t>(share.count), wire_, ReduceOp::sum);
    if (type_ != wire_) cast(share.count, wire_, wire, type_, share.values);
  }
  std::size_t memory_bytes() const override { return memory_.bytes(); }

 private:
  void cast(std::int64_t count, DType from_type, const void* from, DType to_type, void* to) {
    Stream& stream = across_.stream();
    backend_for(stream.device())
        .cast(stream, {.count = count, .from_type = from_type, .to_type = to_type, .from = from, .to = to});
  }

  std::span<const CodecShare> shares_;
  DType type_;
  DType wire_;
  Communicator& across_;
  Buffer memory_;  // what travels, where values are fp32
};

template <DType wire>
constexpr CodecKind kHalf = {.alone = wire,
                             .make = [](const CodecContext& context) -> std::unique_ptr<Codec> {
                               return std::make_unique<HalfCodec>(context, wire);
                             },
                             .sent_share = [](const ExchangeChoice&, const Parameter&, int) { return 0.5; }};

}  // namespace

constinit const ExchangeKind kFp16Codec = {.name = "fp16",
                                           .meaning = "summed and sent as fp16, half the bytes of fp32",
                                           .options = {},
                                           .make = make_codec_exchange,
                                           .codec = &kHalf<DType::f16>};

constinit const ExchangeKind kBf16Codec = {
    .name = "bf16",
    .meaning = "summed and sent as bf16: half the bytes, the range of fp32, fewer digits than fp16",
    .options = {},
    .make = make_codec_exchange,
    .codec = &kHalf<DType::bf16>};

}  // namespace lockstep
