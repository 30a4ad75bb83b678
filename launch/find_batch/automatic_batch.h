// SPDX-License-Identifier: Apache-2.0
//
// train.batch = "auto": the batch is found before training is built, or is that of the training which goes
// on.
#pragma once

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/checkpoint/resume.h"
#include "launch/commands/command_line.h"
#include "launch/config/config.h"

namespace lockstep {

// Collective. The command with that batch given, behind all else that it overrides: what depends on it, such
// as a learning rate that nobody gave, is then chosen for it. Throws what find_batch() throws.
Command with_batch_found(World& world, Communicator& control, const Command& command, const Config& config,
                         const ResumeFlags& resume);

}  // namespace lockstep
