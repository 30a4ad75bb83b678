// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/jobs/slots.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include <fmt/ranges.h>

#include "comm/job/node_claims.h"
#include "core/device.h"
#include "core/error.h"
#include "core/text/text.h"
#include "launch/program/devices/cores.h"
#include "launch/program/devices/device_choice.h"

namespace lockstep {
namespace {

// Names of the `count` GPUs that this process sees: from CUDA_VISIBLE_DEVICES, or else their indices.
std::vector<std::string> names_of(std::size_t count) {
  std::vector<std::string> names;
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const std::vector<std::string_view> words = split_text(visible, ',');
    names.assign(words.begin(), words.end());
  }
  if (names.size() >= count) {
    names.resize(count);
    return names;
  }
  names.clear();
  for (std::size_t index = 0; index < count; ++index) names.push_back(std::to_string(index));
  return names;
}

std::vector<std::string> names_of_free_gpus() {
  const std::vector<CudaDevice> devices = cuda_status().devices;
  const NodeClaims claims;
  std::vector<std::string> names = names_of(devices.size()), free;
  for (std::size_t i = 0; i < devices.size(); ++i)
    if (devices[i].unusable.empty() && !holder_of_gpu(claims, devices[i].uuid)) free.push_back(names[i]);
  return free;
}

// Gives each slot the next `each` GPUs.
std::vector<std::string> dealt(const std::vector<std::string>& gpus, std::int64_t slots, std::int64_t each) {
  std::vector<std::string> devices;
  for (auto first = gpus.begin(); std::ssize(devices) < slots; first += each)
    devices.push_back(fmt::format("{}", fmt::join(first, first + each, ",")));
  return devices;
}

// The most threads per rank that a trial sets; 0: all trials have train.threads = 0.
std::int64_t most_threads(const SweepPlan& plan) {
  std::int64_t most = 0;
  for (const TuneSettings& trial : plan.trials)
    most = std::max(most, SweepPlan::integer_of(trial, "train.threads", plan.base.threads));
  return most;
}

}  // namespace

SweepResources sweep_resources() { return {.cores = usable_cores(), .gpus = names_of_free_gpus()}; }

SweepSlots deal_slots(const SweepPlan& plan, const SweepResources& resources) {
  const DeviceSettings& device = plan.base.device;
  const auto gpus = std::ssize(resources.gpus);
  const bool wants_gpus =
      device.device == "cuda" || device.device == "idle" || (device.device == "auto" && gpus >= plan.ranks);
  SweepSlots slots{.count = plan.jobs};
  if (wants_gpus && !device.share_device) {
    const std::int64_t fits = gpus / plan.ranks, needed = std::max<std::int64_t>(plan.jobs, 1) * plan.ranks;
    if (gpus < needed)
      throw ConfigError(fmt::format(
          "sweep.jobs = {} with sweep.ranks = {}: {} {} needed, but {} {} free; reduce sweep.jobs "
          "or sweep.ranks, wait for the jobs that hold GPUs (lockstep info names them), or set "
          "world.device=cpu",
          plan.jobs, plan.ranks, counted(needed, "GPU"), needed == 1 ? "is" : "are", gpus,
          gpus == 1 ? "is" : "are"));
    if (slots.count == 0) slots.count = fits;
    slots.devices = dealt(resources.gpus, slots.count, plan.ranks);
  }
  const std::int64_t of_each = plan.ranks * std::max<std::int64_t>(most_threads(plan), 1);
  if (slots.count == 0) slots.count = std::max<std::int64_t>(1, resources.cores / of_each);
  slots.count = std::min(slots.count, std::max<std::int64_t>(1, std::ssize(plan.trials)));
  slots.threads = plan.base.threads > 0
                      ? plan.base.threads
                      : std::max<std::int64_t>(1, resources.cores / (slots.count * plan.ranks));
  return slots;
}

}  // namespace lockstep
