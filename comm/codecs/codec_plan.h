// SPDX-License-Identifier: Apache-2.0
//
// CodecPlan: which stretches of each bucket use which codec, how the stretches of one codec are packed, and
// how the packed elements are divided among the ranks of a node that drive. Pure arithmetic, the same on all
// ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/codecs/codec.h"
#include "comm/gradients/bucket_plan.h"

namespace lockstep {

// Elements of the flat order that are contiguous in packed memory, too.
struct PackedRun {
  ElementRange range;
  std::int64_t place = 0;
};

// The part of one bucket that one codec, or the dense sum, takes.
struct PackedStretch {
  std::vector<PackedRun> runs;
  std::int64_t packed = 0;           // elements of all runs
  std::int64_t room = 0;             // packed, and the zeros after it
  std::int64_t equal = 0;            // elements per driver, consecutive; 0: shares differ in size
  std::vector<ElementRange> shares;  // by driver, of packed elements; empty for the dense sum
};

// How shares are cut: in multiples of `unit` elements, unless parameters are whole.
struct ShareRule {
  int drivers = 1;
  std::int64_t unit = kCodecBlock;
  bool whole_parameters = false;
};

// Packs the bucket's parameters i for which chosen[i] is true.
PackedStretch pack_stretch(const Bucket& bucket, std::span<const Parameter> parameters,
                           const std::vector<bool>& chosen);
void deal_shares(PackedStretch& stretch, std::span<const Parameter> parameters, const ShareRule& rule);
// The pieces of parameters in packed elements [share.begin, share.end).
std::vector<CodecPiece> pieces_of(const PackedStretch& stretch, std::span<const Parameter> parameters,
                                  ElementRange share);

// The choice for each parameter. A choice without a codec is the dense sum.
struct CodecAssignment {
  std::vector<ExchangeChoice> choices;
  std::vector<std::size_t> of_parameter;  // index into choices
};

// For each parameter 1 + the index of its rule, or 0 for `choice`. Throws ConfigError for a rule that matches
// no parameter.
std::vector<std::size_t> choose_codecs(std::span<const Parameter> parameters, const CodecRules& rules);

}  // namespace lockstep
