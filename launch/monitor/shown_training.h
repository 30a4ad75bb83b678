// SPDX-License-Identifier: Apache-2.0
//
// What a training shows of its ranks (ShownRank): who they are.
#pragma once

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/config/config.h"
#include "launch/monitor/rank_state.h"
#include "launch/training.h"

namespace lockstep {

// Collective. What is known of this rank before anything is built, with a name that all ranks of the job have
// alike.
RankIdentity starting_rank(const Config& config, const World& world, Communicator& host);

// What else is known when it is.
void add_training(Training& training, RankIdentity& rank);

}  // namespace lockstep
