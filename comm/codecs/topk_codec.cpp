// SPDX-License-Identifier: Apache-2.0
//
// The codec topk: sends the largest elements of gradient plus residual of every parameter to all ranks, which
// sum them in the order of ranks.
#include "comm/codecs/sparse_codec.h"
#include "comm/exchanges/exchanges.h"

namespace lockstep {
namespace {

constexpr NumberOption kMomentumCorrection = {
    .name = "momentum_correction",
    .initial = 1,
    .least = 0,
    .most = 1,
    .meaning = "1 adds SGD's momentum before elements are chosen, as dgc does; 0 adds it after the exchange",
    .whole = true};
constexpr NumberOption kTopKOptions[] = {
    sparse_density(0.01), warmup_steps(500), warmup_density(0.125), kMomentumCorrection, kErrorFeedback,
};

constexpr CodecKind kTopKKind = {
    .momentum_option = kMomentumCorrection.name,
    .warmup_option = kWarmupSteps,
    .uses_learning_rate = true,
    .make = [](const CodecContext& context) -> std::unique_ptr<Codec> {
      SparseOptions options = sparse_options(context);
      options.error_feedback = context.choice.whole_option(kErrorFeedback.name) != 0;
      return std::make_unique<SparseCodec>(context, options);
    },
    .sent_share = sparse_sent_share,
    .kept =
        [](const ExchangeChoice& choice, int) {
          return 2.0 * static_cast<double>(choice.whole_option(kErrorFeedback.name) +
                                           choice.whole_option(kMomentumCorrection.name));
        }};

}  // namespace

constinit const ExchangeKind kTopKCodec = {
    .name = "topk",
    .meaning = "the largest elements of every parameter, with error feedback",
    .options = kTopKOptions,
    .make = make_codec_exchange,
    .codec = &kTopKKind};

}  // namespace lockstep
