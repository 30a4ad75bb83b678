// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/host_load.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "launch/observe/monitor/process.h"

namespace lockstep {
namespace {

std::optional<std::uint64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// A bond, a bridge or a vlan: other interfaces transfer its bytes.
bool is_stacked(const std::filesystem::path& network) {
  std::error_code error;
  for (std::filesystem::directory_iterator each(network, error), end; !error && each != end;
       each.increment(error))
    if (each->path().filename().string().starts_with("lower_")) return true;
  return false;
}

// The interfaces of default routes.
std::set<std::string> default_interfaces(const std::filesystem::path& routes) {
  std::set<std::string> names;
  std::ifstream file(routes);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name, destination, gateway, flags, references, uses, metric, mask;
    fields >> name >> destination >> gateway >> flags >> references >> uses >> metric >> mask;
    if (destination == "00000000" && mask == destination) names.insert(name);
  }
  return names;
}

}  // namespace

HostLoad::HostLoad(std::vector<pid_t> processes, std::filesystem::path root)
    : processes_(std::move(processes)), root_(std::move(root)) {
  std::error_code error;
  for (std::filesystem::directory_iterator each(root_ / "sys/class/powercap", error), end;
       !error && each != end; each.increment(error)) {
    // "intel-rapl:0" is a package, "intel-rapl:0:1" a part of it.
    const std::string name = each->path().filename().string();
    if (!name.starts_with("intel-rapl:") || std::ranges::count(name, ':') != 1) continue;
    std::string zone;
    std::ifstream(each->path() / "name") >> zone;
    if (zone == "psys") continue;  // the whole board, which includes the packages
    const auto now = number_in(each->path() / "energy_uj");
    if (now) packages_[each->path()] = {*now, number_in(each->path() / "max_energy_range_uj").value_or(0)};
  }
}

std::optional<HostLoad::Ticks> HostLoad::read_ticks() const {
  std::ifstream file(root_ / "proc/stat");
  std::string word;
  // The time of guests is included in user and nice.
  std::uint64_t user = 0, nice = 0, system = 0, idle = 0, waiting = 0, interrupts = 0, soft = 0, stolen = 0;
  if (!(file >> word >> user >> nice >> system >> idle) || word != "cpu") return std::nullopt;
  file >> waiting >> interrupts >> soft >> stolen;
  const std::uint64_t busy = user + nice + system + interrupts + soft + stolen;
  return Ticks{.busy = busy, .all = busy + idle + waiting};
}

std::optional<std::uint64_t> HostLoad::read_job_ticks() const {
  std::optional<std::uint64_t> sum;
  for (const pid_t process : processes_)
    if (const auto figures = process_figures(process, root_ / "proc"))
      sum = sum.value_or(0) + figures->processor_ticks;
  return sum;
}

// The interfaces that together count each byte once. Hardware transfers the bytes of bonds, bridges and
// vlans, and those of the containers and virtual machines of this host. In a container without hardware the
// virtual interfaces count. Beside hardware a virtual interface counts only if it has the default route and
// is no tunnel.
HostLoad::Interfaces HostLoad::read_interfaces() const {
  std::ifstream file(root_ / "proc/net/dev");
  Interfaces interfaces;
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;  // the two header lines
    const std::size_t begin = line.find_first_not_of(' ');
    const std::string name = line.substr(begin, colon - begin);
    if (name == "lo") continue;
    std::istringstream fields(line.substr(colon + 1));
    std::uint64_t received = 0, sent = 0, skipped = 0;
    fields >> received;
    for (int i = 0; i < 7; ++i) fields >> skipped;
    if (fields >> sent) interfaces[name] = {.received = received, .sent = sent};
  }
  const std::filesystem::path networks = root_ / "sys/class/net";
  const auto has = [&](const std::string& name, const char* link) {
    std::error_code error;
    return std::filesystem::exists(networks / name / link, error);
  };
  // A tunnel's bytes pass other interfaces. One of Ethernet frames (tap) is found by its flags, others
  // (WireGuard, GRE) by their type.
  const auto is_tunnel = [&](const std::string& name) {
    constexpr std::uint64_t kEthernet = 1;  // ARPHRD_ETHER
    return has(name, "tun_flags") || number_in(networks / name / "type").value_or(kEthernet) != kEthernet;
  };
  std::set<std::string> routes = default_interfaces(root_ / "proc/net/route");
  bool any_hardware = false;
  for (const auto& [name, traffic] : interfaces) {
    if (!has(name, "device")) continue;
    any_hardware = true;
    if (routes.contains(name) || has(name, "master")) routes.clear();  // the route's bytes pass this hardware
  }
  std::erase_if(interfaces, [&](const auto& interface) {
    const std::string& name = interface.first;
    // In a virtual machine, hardware may include the bytes of its member (netvsc, net_failover).
    if (has(name, "device")) return has(name, "master/device");
    return (any_hardware && (!routes.contains(name) || is_tunnel(name))) || is_stacked(networks / name);
  });
  return interfaces;
}

std::optional<HostLoad::Traffic> HostLoad::traffic_between(const Interfaces& before,
                                                           const Interfaces& after) {
  std::optional<Traffic> sum;
  for (const auto& [name, traffic] : after) {
    const auto found = before.find(name);
    if (found == before.end()) continue;
    if (traffic.received < found->second.received || traffic.sent < found->second.sent) return std::nullopt;
    if (!sum) sum = Traffic{};
    sum->received += traffic.received - found->second.received;
    sum->sent += traffic.sent - found->second.sent;
  }
  return sum;
}

void HostLoad::read_memory(HostFigures& figures) const {
  std::ifstream file(root_ / "proc/meminfo");
  std::optional<std::uint64_t> total, available;
  for (std::string line; std::getline(file, line) && !(total && available);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t kibibytes = 0;
    if (!(words >> name >> kibibytes)) continue;
    if (name == "MemTotal:") total = kibibytes * 1024;
    if (name == "MemAvailable:") available = kibibytes * 1024;
  }
  figures.memory_bytes = total;
  if (total && available && *available <= *total) figures.memory_used_bytes = *total - *available;
}

std::optional<double> HostLoad::read_joules() {
  if (packages_.empty()) return std::nullopt;
  for (auto& [folder, package] : packages_) {
    const auto now = number_in(folder / "energy_uj");
    if (!now) return std::nullopt;
    std::uint64_t since = *now - package.microjoules;
    if (*now < package.microjoules) since = package.range > 0 ? since + package.range : 0;  // wrapped
    joules_ += static_cast<double>(since) * 1e-6;
    package.microjoules = *now;
  }
  return joules_;
}

HostFigures HostLoad::sample() {
  HostFigures figures;
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - taken_).count();
  const auto ticks = read_ticks();
  const auto job_ticks = read_job_ticks();
  Interfaces interfaces = read_interfaces();
  if (ticks && ticks_ && ticks->all > ticks_->all) {
    const auto all = static_cast<double>(ticks->all - ticks_->all);
    const auto share = [&](std::uint64_t part, std::uint64_t before) {
      return std::clamp(100 * static_cast<double>(part - std::min(part, before)) / all, 0.0, 100.0);
    };
    figures.processor = share(ticks->busy, ticks_->busy);
    if (job_ticks && job_ticks_) figures.job_processor = share(*job_ticks, *job_ticks_);
  }
  if (const auto traffic = traffic_between(interfaces_, interfaces); traffic && seconds > 0) {
    figures.network_received = static_cast<double>(traffic->received) / seconds;
    figures.network_sent = static_cast<double>(traffic->sent) / seconds;
  }
  read_memory(figures);
  figures.joules = read_joules();
  // If less than a tick has passed, the next sample covers a longer interval. A decrease starts a new
  // interval: the kernel counts the idle time of an unplugged processor differently.
  if (!ticks || !ticks_ || ticks->all != ticks_->all) {
    ticks_ = ticks;
    job_ticks_ = job_ticks;
  }
  interfaces_ = std::move(interfaces);
  taken_ = now;
  return figures;
}

}  // namespace lockstep
