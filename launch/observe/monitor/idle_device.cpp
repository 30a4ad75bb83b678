// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/idle_device.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/text/text.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

std::optional<double> utilization_of(const SeenRank& rank, const NodeView& view) {
  const auto found = view.devices.find(rank.identity.device_uuid.str());
  return found == view.devices.end() ? std::nullopt : found->second.utilization;
}

// CUDA writes "0000:3b:00.0", and NVML "00000000:3B:00.0".
std::string bus_and_device(std::string address) {
  constexpr std::size_t kLength = std::string_view("0000:3b:00.0").size();
  if (address.size() > kLength) address.erase(0, address.size() - kLength);
  return lower_case(address);
}

// Describes the largest phase in which the device was not busy.
std::string what_is_lost_by(const StepAccount& account) {
  constexpr std::pair<Phase, const char*> kLosses[] = {
      {Phase::rest, "the rank spends its time outside of training steps"},
      {Phase::data_wait, "the rank waits for data"},
      {Phase::exposed_communication, "the rank waits for communication"},
      {Phase::idle, "the host launches work too late"}};
  return std::ranges::max_element(kLosses, {}, [&](const auto& loss) { return account[loss.first]; })->second;
}

std::string why_quiet(const SeenRank& rank, double seconds) {
  std::string why = rank.progress.activity == Activity::training
                        ? fmt::format("no step for {:.0f} s", seconds)
                        : fmt::format("{} for {:.0f} s", name_of(rank.progress.activity), seconds);
  if (rank.life == RankLife::stopped) return why + ", stopped by a signal";  // regardless of its wait
  if (rank.waits) why += fmt::format(", in {} for {:.0f} s", rank.waits->what, rank.waits->seconds);
  return why;
}

}  // namespace

std::optional<IdleDevice> idle_device(const SeenRank& rank, const NodeView& view, double idle_seconds) {
  if (rank.life == RankLife::died) return std::nullopt;
  const RankProgress& progress = rank.progress;
  const double quiet = progress.quiet_seconds(view.time_ns);
  const std::optional<double> utilization = utilization_of(rank, view);
  double allowed = idle_seconds;
  bool works = false;
  if (progress.activity == Activity::training) {
    allowed = std::max(allowed, 3 * progress.step_seconds());
  } else {
    works = utilization.value_or(progress.activity == Activity::evaluating ? 1 : 0) > 0;
  }
  if (quiet >= allowed && (!works || rank.life == RankLife::stopped))
    return IdleDevice{.seconds = quiet, .why = why_quiet(rank, quiet)};
  if (progress.activity != Activity::training || progress.idle_since_ns == 0 ||
      !figures_hold(rank, view.time_ns))
    return std::nullopt;
  const double idle = seconds_between(progress.idle_since_ns, view.time_ns);
  if (idle < idle_seconds) return std::nullopt;
  return IdleDevice{.seconds = idle,
                    .why = fmt::format("less than {:.0f} % busy for {:.0f} s: {}", 100 * kHardlyBusy, idle,
                                       what_is_lost_by(progress.account))};
}

std::vector<DeviceContext> idle_contexts(const SeenRank& rank, const NodeView& view) {
  std::vector<DeviceContext> idle;
  const std::string own = bus_and_device(rank.identity.device_address.str());
  if (!rank.process || own.empty()) return idle;
  for (const DeviceContext& context : view.contexts) {
    if (context.process == rank.identity.process && context.utilization == 0.0 &&
        bus_and_device(context.pci_bus_id) != own)
      idle.push_back(context);
  }
  return idle;
}

std::string describe_device(const RankIdentity& rank) {
  const std::string device = rank.device.str();
  if (device.empty()) return "a device";  // not chosen yet
  if (device == "cpu") return fmt::format("{} of the CPU", counted(rank.threads, "thread"));
  return fmt::format("{} ({}, {})", device, rank.device_address.str(), rank.device_name.str());
}

}  // namespace lockstep
