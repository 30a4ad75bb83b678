// SPDX-License-Identifier: Apache-2.0
#include "comm/node_groups.h"

#include <numeric>

namespace lockstep {
namespace {

Placement placement_of(const Communicator& all, bool each_alone) {
  std::vector<int> nodes(all.node_of_rank().begin(), all.node_of_rank().end());
  if (each_alone) std::iota(nodes.begin(), nodes.end(), 0);
  return place_ranks(all.rank(), nodes);
}

}  // namespace

NodeGroups::NodeGroups(Communicator& all, bool each_alone) : placement_(placement_of(all, each_alone)) {
  if (!several_nodes()) return;
  if (all_alone()) {
    across_ = &all;
    return;
  }
  node_ = all.split(placement_.local_size > 1 ? placement_.node : -1, placement_.local_rank);
  made_across_ = all.split(drives() ? placement_.local_rank : -1, placement_.node);
  across_ = made_across_.get();
  for (Communicator* each : own()) each->set_call_check(all.call_check());
}

std::vector<Communicator*> NodeGroups::own() const {
  std::vector<Communicator*> made;
  if (node_ != nullptr) made.push_back(node_.get());
  if (made_across_ != nullptr) made.push_back(made_across_.get());
  return made;
}

}  // namespace lockstep
