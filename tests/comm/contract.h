// SPDX-License-Identifier: Apache-2.0
//
// What every Communicator promises, as checks that all of its ranks run together: the same cases for ranks
// that are threads, processes or devices.
#pragma once

#include <span>

#include "comm/communicator.h"

namespace lockstep {

// What sums promise. In the order of ranks: the same bits as that sum. In any order: right where every order
// gives the same, so such values are used.
enum class Sums { in_rank_order, in_any_order };

struct ContractRank {
  Communicator& communicator;
  int ranks_per_node;  // sums are taken within a node first
  Sums sums = Sums::in_rank_order;
};

struct ContractCase {
  const char* name;
  void (*check)(ContractRank rank);
};

std::span<const ContractCase> communicator_contract();

}  // namespace lockstep
