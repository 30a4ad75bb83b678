// SPDX-License-Identifier: Apache-2.0
//
// train.batch = "auto": finds the batch before the training is built; a resumed training keeps its batch.
#pragma once

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/program/commands/command_line.h"
#include "launch/program/config/config.h"
#include "launch/program/resume/resume.h"

namespace lockstep {

// Collective. Returns the command with train.batch appended to its overrides, so that defaults which depend
// on it, such as the learning rate, follow. Throws what find_batch() throws.
Command with_batch_found(World& world, Communicator& control, const Command& command, const Config& config,
                         const ResumeFlags& resume);

}  // namespace lockstep
