// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/monitor.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include <unistd.h>

#include "comm/agreement.h"
#include "core/log.h"
#include "core/system/processor_name.h"
#include "launch/observe/jobs/seen_ranks.h"
#include "launch/observe/monitor/background_thread.h"
#include "launch/observe/monitor/monitor_file.h"
#include "launch/observe/monitor/process.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kLongestGoodbye{2};

}  // namespace

struct DeviceMonitor::State {
  using Clock = std::chrono::steady_clock;

  explicit State(const MonitorOptions& from) : options(from), file(from.file, from.goes_on) {}

  void run();
  void sample(const Nvml* nvml, std::vector<std::unique_ptr<NvmlDevice>>& devices, HostLoad& host);
  void publish(const std::vector<MonitorRow>& rows, const HostFigures& host);

  const MonitorOptions options;
  // Made by the constructor's thread, because it creates the folder: the monitor thread may run much later,
  // when a missing folder means that its disk was unmounted. Then used by the monitor thread only.
  MonitorFile file;
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;  // this and the following members are guarded by mutex
  bool ended = false;
  bool nvml_present = false;
  std::int32_t slices = 0;
  MonitorSums sums;
  Clock::time_point taken = Clock::now();
  std::optional<SlowedDevice> slowed;
  std::map<std::string, EnergyMeter> device_energy;  // by PCI address: slices of one device share a meter
  EnergyMeter host_energy;
  std::thread thread;  // used by the constructor's thread only
};

void DeviceMonitor::State::sample(const Nvml* nvml, std::vector<std::unique_ptr<NvmlDevice>>& devices,
                                  HostLoad& host) {
  std::vector<MonitorRow> rows;
  const HostFigures host_figures = host.sample();
  for (std::size_t i = 0; i < options.devices.size(); ++i) {
    const MonitoredDevice& known = options.devices[i];
    MonitorRow row{.time = std::chrono::system_clock::now(),
                   .device = devices[i]->sample(),
                   .host = host_figures,
                   .ranks = known.ranks};
    if (row.device.name.empty()) row.device.name = known.name;
    if (row.device.pci_bus_id.empty()) row.device.pci_bus_id = known.pci_address;
    rows.push_back(std::move(row));
  }
  if (rows.empty()) {
    rows.push_back({.time = std::chrono::system_clock::now(),
                    .device = {.name = processor_name()},
                    .host = host_figures,
                    .ranks = options.ranks});
  }
  file.append(rows);
  if (options.metrics) publish(rows, host_figures);

  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex);
  nvml_present = nvml != nullptr && nvml->problem().empty();
  ++sums.samples;
  sums.add(host_figures);
  std::optional<double> host_joules = host_figures.joules;
  if (host_joules && !options.counts_energy) host_joules = 0;
  host_energy.add(now, host_joules, std::nullopt);
  if (options.devices.empty()) return;
  slices = 0;
  slowed.reset();
  std::map<std::string, const DeviceFigures*> wholes;
  for (const MonitorRow& row : rows) {
    sums.add(row.device);
    const std::optional<SlowedDevice> held = lockstep::slowed(row.device);
    if (held && (!slowed || held->share_of_clock < slowed->share_of_clock)) slowed = held;
    slices += row.device.slice ? 1 : 0;
    wholes[row.device.pci_bus_id] = &row.device;
  }
  for (const auto& [address, figures] : wholes)
    device_energy[address].add(now, figures->joules, figures->watts);
}

void DeviceMonitor::State::publish(const std::vector<MonitorRow>& rows, const HostFigures& host) {
  const RankIdentity& job = options.metrics->job();
  NodeMetrics metrics{.job = job, .interval_seconds = options.every_seconds, .host = host};
  NodeView& view = metrics.view;
  view.host = job.host.str();
  std::vector<SeenRank> ranks = see_ranks(options.rank_folder, job.job.str());
  if (!ranks.empty()) view.jobs.push_back({.ranks = std::move(ranks)});
  view.time = seconds_since_1970();
  view.time_ns = now_ns();
  for (std::size_t i = 0; i < options.devices.size(); ++i)
    view.devices[options.devices[i].uuid] = rows[i].device;
  options.metrics->publish(std::move(metrics));
}

void DeviceMonitor::State::run() {
  std::optional<Nvml> nvml;
  std::vector<std::unique_ptr<NvmlDevice>> devices;
  if (!options.devices.empty()) {
    nvml.emplace(options.nvml_library);
    if (!nvml->problem().empty())
      log::info(
          "GPUs are not monitored because NVML of the driver is not available ({}); in a container, set "
          "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
          nvml->problem());
    for (const MonitoredDevice& each : options.devices)
      devices.push_back(std::make_unique<NvmlDevice>(*nvml, each.uuid, each.pci_address));
  }
  HostLoad host(options.processes, options.root);
  const auto interval = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::min(options.every_seconds, 1e6)));
  for (std::unique_lock lock(mutex);;) {
    const bool last = stopping;  // the next sample is the last one
    lock.unlock();
    const Clock::time_point next = Clock::now() + interval;
    sample(nvml ? &*nvml : nullptr, devices, host);
    if (last) return;
    lock.lock();
    const auto stops = [&] { return stopping; };
    const auto wake = [&] { return std::min(next, Clock::now() + HostLoad::kEnergyInterval); };
    while (!changed.wait_until(lock, wake(), stops) && Clock::now() < next) {
      lock.unlock();
      host.read_joules();
      lock.lock();
    }
  }
}

DeviceMonitor::DeviceMonitor(const MonitorOptions& options) : state_(std::make_shared<State>(options)) {
  const auto work = [state = state_] {
    try {
      state->run();
    } catch (const std::exception& error) {
      log::warning("the device monitor failed: {}; {} gets no more rows, and training continues",
                   error.what(), state->options.file.string());
    }
    const std::lock_guard lock(state->mutex);
    state->ended = true;
    state->changed.notify_all();
  };
  try {
    state_->thread = start_background_thread("ls-monitor", work);
  } catch (const std::system_error& error) {
    log::warning("cannot start the device monitor: {}; training continues without {}", error.what(),
                 state_->options.file.string());
    state_->ended = true;
  }
}

DeviceMonitor::~DeviceMonitor() {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  const bool ended = state_->changed.wait_for(lock, kLongestGoodbye, [&] { return state_->ended; });
  lock.unlock();
  if (!state_->thread.joinable()) return;
  if (ended)
    state_->thread.join();
  else
    state_->thread.detach();
}

MonitorSums DeviceMonitor::take() {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  const State::Clock::time_point now = State::Clock::now();
  MonitorSums seen = std::exchange(state.sums, {});
  seen.nodes = 1;
  seen.devices = static_cast<std::int32_t>(state.options.devices.size());
  seen.slices = state.slices;
  seen.nvml = state.nvml_present;
  seen.seconds = std::chrono::duration<double>(now - std::exchange(state.taken, now)).count();
  seen.host_joules = state.host_energy.take(now);
  bool all_tell = !state.device_energy.empty();
  double joules = 0;
  for (auto& [address, meter] : state.device_energy) {
    const std::optional<double> each = meter.take(now);
    all_tell = all_tell && each.has_value();
    joules += each.value_or(0);
  }
  if (all_tell) seen.device_joules = joules;
  return seen;
}

std::optional<SlowedDevice> DeviceMonitor::slowed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->slowed;
}

namespace {

std::string text_of(const MonitoredRank& rank) {
  return fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}", rank.node, rank.host, rank.process, rank.process_space,
                     rank.machine, rank.device.uuid, rank.device.pci_address, rank.device.name);
}

MonitoredRank monitored_rank(const std::string& text) {
  std::istringstream fields(text);
  MonitoredRank rank;
  fields >> rank.node >> std::ws;
  std::getline(fields, rank.host, '\t');
  fields >> rank.process;
  fields.ignore();
  for (std::string* each :
       {&rank.process_space, &rank.machine, &rank.device.uuid, &rank.device.pci_address, &rank.device.name})
    std::getline(fields, *each, '\t');
  return rank;
}

MonitoredRank this_monitored_rank(const World& world, Device device) {
  MonitoredRank mine{.node = world.node(),
                     .host = world.host(),
                     .process = getpid(),
                     .process_space = std::to_string(own_process_space())};
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::getline(boot, mine.machine);
  if (const std::optional<CudaDevice> known = cuda_device(device))
    mine.device = {.uuid = known->uuid, .pci_address = known->pci_address, .name = known->name};
  return mine;
}

std::string monitor_file_name(std::span<const MonitoredRank> ranks, const MonitoredRank& first) {
  if (first.node == ranks.front().node) return "monitor.csv";
  const bool one_of_several = std::ranges::any_of(
      ranks, [&](const MonitoredRank& each) { return each.host == first.host && each.node != first.node; });
  return one_of_several ? fmt::format("monitor.{}-{}.csv", first.host, first.node)
                        : fmt::format("monitor.{}.csv", first.host);
}

}  // namespace

MonitorOptions monitor_options(std::span<const MonitoredRank> ranks, int node) {
  MonitorOptions options;
  const MonitoredRank* first = nullptr;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const MonitoredRank& rank = ranks[i];
    if (rank.node != node) continue;
    if (first == nullptr) first = &rank;
    const auto add_rank = [&](std::string& list) { list += fmt::format("{}{}", list.empty() ? "" : " ", i); };
    add_rank(options.ranks);
    // Process numbers of another container are not valid here.
    if (rank.process_space == first->process_space) options.processes.push_back(rank.process);
    if (rank.device.uuid.empty()) continue;
    auto device = std::ranges::find(options.devices, rank.device.uuid, &MonitoredDevice::uuid);
    if (device == options.devices.end()) device = options.devices.insert(device, rank.device);
    add_rank(device->ranks);
  }
  if (first == nullptr) return options;
  options.file = monitor_file_name(ranks, *first);
  options.counts_energy = std::ranges::none_of(ranks, [&](const MonitoredRank& rank) {
    return rank.node < node && !rank.machine.empty() && rank.machine == first->machine;
  });
  return options;
}

std::unique_ptr<DeviceMonitor> begin_monitor(const MonitorSettings& settings, const World& world,
                                             Communicator& host, Device device) {
  if (settings.every_seconds == 0) return nullptr;
  std::vector<MonitoredRank> ranks;
  for (const std::string& text : gather_texts(host, text_of(this_monitored_rank(world, device))))
    ranks.push_back(monitored_rank(text));
  if (world.local_rank() != 0) return nullptr;
  MonitorOptions options = monitor_options(ranks, world.node());
  options.file = settings.folder / options.file;
  options.goes_on = settings.goes_on;
  options.every_seconds = settings.every_seconds;
  options.metrics = settings.metrics;
  return std::make_unique<DeviceMonitor>(options);
}

MonitorSums take_of_all_nodes(DeviceMonitor* mine, Communicator& host) {
  MonitorSums all;
  for (const MonitorSums& each : gather_values(host, mine != nullptr ? mine->take() : MonitorSums{}))
    all += each;
  return all;
}

}  // namespace lockstep
