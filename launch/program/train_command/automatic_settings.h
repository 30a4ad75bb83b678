// SPDX-License-Identifier: Apache-2.0
//
// train.precision = "auto" and train.batch = "auto": values that depend on the machine, found by measurement
// before the training is built. A resumed training keeps its values.
#pragma once

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/program/commands/command_line.h"
#include "launch/program/config/config.h"
#include "launch/program/resume/resume.h"

namespace lockstep {

// Collective. Returns the command with the values appended to its overrides, so that defaults which depend
// on them, such as the learning rate, follow; the command itself if the configuration leaves nothing to find.
// Throws what load_config(), find_batch() and TrainingSetup throw.
Command with_settings_found(World& world, Communicator& control, const Command& command, const Config& config,
                            const ResumeFlags& resume);

}  // namespace lockstep
