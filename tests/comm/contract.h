// SPDX-License-Identifier: Apache-2.0
//
// What every Communicator promises, as checks that all of its ranks run together: the same cases for ranks
// that are threads, processes or devices.
#pragma once

#include <span>

#include "comm/communicator.h"

namespace lockstep {

// What sums promise. Along the tree: the same bits as that sum. In any order: right where every order gives
// the same, so such values are used.
enum class Sums { along_the_tree, in_any_order };

struct ContractRank {
  Communicator& communicator;
  Sums sums = Sums::along_the_tree;
};

struct ContractCase {
  const char* name;
  void (*check)(ContractRank rank);
};

std::span<const ContractCase> communicator_contract();

// One case of it: sums of every type, in either kind of memory, of sizes that split badly.
void sums_follow_the_tree(ContractRank rank);

}  // namespace lockstep
