// SPDX-License-Identifier: Apache-2.0
//
// The planned memory of a rank, by part, and its need before anything is allocated.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/program/config/config.h"
#include "launch/program/devices/memory_need.h"
#include "models/network.h"

namespace lockstep {

class TrainingSetup;

struct MemoryPart {
  std::string name;  // "activations"
  std::size_t bytes = 0;
  std::string note;      // for the user
  bool on_host = false;  // in host memory although the rank is on a GPU
};

// Parts of more than 0 bytes. Libraries take more, which is not counted here.
std::vector<MemoryPart> memory_parts(TrainingSetup& training, const Communicator& communicator);

// The need of a rank of `world` that trains `config` on a device of this kind. plan: of the network; batches:
// bytes of the batches that are copied to a GPU.
MemoryNeed planned_need(const Config& config, const Registry& registry, const World& world, Device device,
                        const MemoryPlan& plan, std::size_t batches);
// Parts of planned_need().
std::size_t planned_codec_need(const Config& config, const Registry& registry, const World& world,
                               const MemoryPlan& plan);
std::size_t planned_average_need(const Config& config, const MemoryPlan& plan);

}  // namespace lockstep
