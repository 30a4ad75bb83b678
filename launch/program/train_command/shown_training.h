// SPDX-License-Identifier: Apache-2.0
//
// The identity that a training publishes for its ranks (ShownRank).
#pragma once

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/observe/jobs/rank_state.h"
#include "launch/program/config/config.h"
#include "launch/program/setup/training_setup.h"

namespace lockstep {

// Collective. The facts about this rank known before anything is built, with a job name that is equal on all
// ranks.
RankIdentity starting_rank(const Config& config, const World& world, Communicator& host);

// Adds the facts known once the training is built.
void add_training(TrainingSetup& training, RankIdentity& rank);

}  // namespace lockstep
