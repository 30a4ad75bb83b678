// SPDX-License-Identifier: Apache-2.0
//
// The contract of every Communicator, as checks that all its ranks run together. The same cases run on ranks
// that are threads, processes or devices.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "core/tensor/buffer.h"

namespace lockstep {

// The order in which the communicator adds. along_the_tree: bits equal naive_tree(). in_any_order: the checks
// use values whose sum does not depend on the order.
enum class Sums { along_the_tree, in_any_order };

struct ContractRank {
  Communicator& communicator;
  Sums sums = Sums::along_the_tree;
  // Memory from allocate(), which the checks of a case reuse: an allocation takes several rounds between
  // ranks.
  std::shared_ptr<std::vector<std::shared_ptr<Buffer>>> allocated =
      std::make_shared<std::vector<std::shared_ptr<Buffer>>>();
};

struct ContractCase {
  const char* name;
  void (*check)(ContractRank rank);
};

std::span<const ContractCase> communicator_contract();

// One case of the contract: sums of every type, in either kind of memory, with sizes that divide unevenly.
void sums_follow_the_tree(ContractRank rank);

}  // namespace lockstep
