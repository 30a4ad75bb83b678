// SPDX-License-Identifier: Apache-2.0
//
// CodecPlan: which stretches of each bucket travel by which codec, how the stretches of one codec are packed,
// and how what is packed is dealt to the ranks of a node that drive. Pure arithmetic, the same on all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/bucket_plan.h"
#include "comm/codecs/codec.h"

namespace lockstep {

// Elements of the flat order that lie one behind another in packed memory, too.
struct PackedRun {
  ElementRange range;
  std::int64_t place = 0;
};

// What one codec, or the dense sum, has of one bucket.
struct PackedStretch {
  std::vector<PackedRun> runs;
  std::int64_t packed = 0;           // elements of all runs
  std::int64_t room = 0;             // with the zeros behind them
  std::int64_t equal = 0;            // of each driver, one behind another; 0: shares are what they are
  std::vector<ElementRange> shares;  // by driver, of packed elements; empty for the dense sum
};

// How shares are cut: `unit` elements at least, unless parameters are whole.
struct ShareRule {
  int drivers = 1;
  std::int64_t unit = kCodecBlock;
  bool whole_parameters = false;
};

// Of the parameters of the bucket that are chosen, by their place in all parameters.
PackedStretch pack_stretch(const Bucket& bucket, std::span<const Parameter> parameters,
                           const std::vector<bool>& chosen);
void deal_shares(PackedStretch& stretch, std::span<const Parameter> parameters, const ShareRule& rule);
// What of which parameters is in elements [share.begin, share.end) of what is packed.
std::vector<CodecPiece> pieces_of(const PackedStretch& stretch, std::span<const Parameter> parameters,
                                  ElementRange share);

// Which parameter goes which way. A choice without a codec is the dense sum.
struct CodecAssignment {
  std::vector<ExchangeChoice> choices;
  std::vector<std::size_t> of_parameter;  // its place in choices
};

// For each parameter the index of its choice, the first rule's being 1, or 0 for `choice`; throws ConfigError
// for a rule that matches none.
std::vector<std::size_t> choose_codecs(std::span<const Parameter> parameters, const CodecRules& rules);

}  // namespace lockstep
