// SPDX-License-Identifier: Apache-2.0
//
// The codec dgc: Deep Gradient Compression (Lin, Han, Mao, Wang and Dally, ICLR 2018). As topk, but so few
// elements travel that what waits is a hundred steps old: momentum is therefore added before (momentum
// correction), and that of what was sent is forgotten (momentum factor masking), gradients are clipped where
// they are made, and the share that travels sinks over the first steps: not in a few stages, as published,
// but a little with each step, since a stage with too little that comes too early is never made good.
#include "comm/codecs/sparse_codec.h"
#include "comm/exchanges/exchanges.h"

namespace lockstep {
namespace {

constexpr NumberOption kDgcOptions[] = {
    {.name = "density",
     .initial = 0.001,
     .least = 1e-6,
     .most = 1,
     .meaning = "share of a parameter's elements that travel"},
    {.name = "warmup_steps",
     .initial = 800,
     .least = 0,
     .most = 1e9,
     .meaning = "steps over which the share that travels sinks to the density",
     .whole = true},
    {.name = "warmup_density",
     .initial = 0.0625,
     .least = 1e-6,
     .most = 1,
     .meaning = "share that travels in the first of them"},
    {.name = "clip",
     .initial = 0,
     .least = 0,
     .most = 1e30,
     .meaning = "the longest gradient of a parameter, divided by the root of the ranks between which it "
                "travels; 0: any"},
};

std::unique_ptr<Codec> make_dgc(const CodecContext& context) {
  const SparseOptions options{.density = context.choice.option("density"),
                              .adds_momentum = true,
                              .momentum = context.momentum,
                              .clip = context.choice.option("clip"),
                              .warmup_steps = context.choice.whole_option("warmup_steps"),
                              .warmup_density = context.choice.option("warmup_density")};
  return std::make_unique<SparseCodec>(context, options);
}

constexpr CodecKind kDgcKind = {.adds_momentum = true,
                                .warmup_option = "warmup_steps",
                                .make = make_dgc,
                                .sent_share = sparse_sent_share,
                                .kept = [](const ExchangeChoice&, int) { return 4.0; }};

}  // namespace

constinit const ExchangeKind kDgcCodec = {
    .name = "dgc",
    .meaning = "the few largest elements of every parameter, with momentum; for SGD",
    .options = kDgcOptions,
    .make = make_codec_exchange,
    .codec = &kDgcKind};

}  // namespace lockstep
