// SPDX-License-Identifier: Apache-2.0
#include "launch/program/train_command/shown_training.h"

#include <filesystem>
#include <system_error>

#include "comm/agreement.h"
#include "launch/observe/jobs/shown_rank.h"

namespace lockstep {

RankIdentity starting_rank(const Config& config, const World& world, Communicator& host) {
  std::error_code ignored;
  const std::filesystem::path run_dir = std::filesystem::absolute(config.run_dir, ignored);
  return {.rank = world.rank(),
          .ranks = world.size(),
          .local_rank = world.local_rank(),
          .node = world.node(),
          .job = broadcast_text(host, own_job_name(world.host()), 0),
          .host = world.host(),
          .run_dir = run_dir.lexically_normal().string(),
          .model = config.model.name};
}

void add_training(TrainingSetup& training, RankIdentity& rank) {
  const Device device = training.network().device();
  rank.threads = training.threads();
  rank.epochs = training.length().epochs;
  rank.global_batch = training.train_loader().global_batch();
  rank.device = to_string(device);
  const std::optional<CudaDevice> known = cuda_device(device);
  if (!known) return;
  rank.device_name = known->name;
  rank.device_uuid = known->uuid;
  rank.device_address = known->pci_address;
}

}  // namespace lockstep
