// SPDX-License-Identifier: Apache-2.0
//
// The codec dgc: Deep Gradient Compression (Lin, Han, Mao, Wang and Dally, ICLR 2018). Like topk, but it
// sends so few elements that unsent ones are a hundred steps old. Momentum is therefore added before elements
// are chosen (momentum correction) and reset for sent ones (momentum factor masking; less if more is sent,
// see SparseCodec::kept_velocity), each rank clips its own gradient, and the density falls over the first
// steps: with each step, not in a few stages as published, because training does not recover from a density
// that is too low too early.
#include "comm/codecs/sparse_codec.h"
#include "comm/exchanges/exchanges.h"

namespace lockstep {
namespace {

constexpr NumberOption kDgcOptions[] = {
    sparse_density(0.001),
    warmup_steps(1000),
    warmup_density(0.125),
    {.name = "clip",
     .initial = 0,
     .least = 0,
     .most = 1e30,
     .meaning = "each rank clips a parameter's gradient to this norm divided by the square root of the "
                "number of exchanging ranks; 0 disables it"},
};

std::unique_ptr<Codec> make_dgc(const CodecContext& context) {
  SparseOptions options = sparse_options(context);
  options.clip = context.choice.option("clip");
  return std::make_unique<SparseCodec>(context, options);
}

constexpr CodecKind kDgcKind = {.adds_momentum = true,
                                .warmup_option = kWarmupSteps,
                                .uses_learning_rate = true,
                                .make = make_dgc,
                                .sent_share = sparse_sent_share,
                                .kept = [](const ExchangeChoice&, int) { return 4.0; }};

}  // namespace

constinit const ExchangeKind kDgcCodec = {
    .name = "dgc",
    .meaning = "the few largest elements of every parameter, with momentum correction, for SGD only",
    .options = kDgcOptions,
    .make = make_codec_exchange,
    .codec = &kDgcKind};

}  // namespace lockstep
