// SPDX-License-Identifier: Apache-2.0
//
// The codec topk: of every parameter the largest elements of gradient and residual travel, to all ranks, and
// are summed there in the order of ranks.
#include "comm/codecs/sparse_codec.h"
#include "comm/exchanges/exchanges.h"

namespace lockstep {
namespace {

constexpr NumberOption kTopKOptions[] = {
    {.name = "density",
     .initial = 0.01,
     .least = 1e-6,
     .most = 1,
     .meaning = "share of a parameter's elements that travel"},
    kErrorFeedback,
};

constexpr CodecKind kTopKKind = {
    .make = [](const CodecContext& context) -> std::unique_ptr<Codec> {
      return std::make_unique<SparseCodec>(
          context, SparseOptions{.density = context.choice.option("density"),
                                 .error_feedback = context.choice.whole_option(kErrorFeedback.name) != 0});
    },
    .sent_share = sparse_sent_share,
    .kept = [](const ExchangeChoice& choice,
               int) { return choice.whole_option(kErrorFeedback.name) != 0 ? 2.0 : 0.0; }};

}  // namespace

constinit const ExchangeKind kTopKCodec = {
    .name = "topk",
    .meaning = "the largest elements of every parameter, with error feedback",
    .options = kTopKOptions,
    .make = make_codec_exchange,
    .codec = &kTopKKind};

}  // namespace lockstep
