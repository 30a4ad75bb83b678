// SPDX-License-Identifier: Apache-2.0
#include "comm/job/networks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "core/text/text.h"

namespace lockstep {
namespace {

std::uint32_t bits_of(const sockaddr* address) {
  sockaddr_in internet = {};
  std::memcpy(&internet, address, sizeof(internet));
  return ntohl(internet.sin_addr.s_addr);
}

std::optional<std::uint32_t> parse_address(const std::string& text) {
  in_addr address = {};
  if (inet_pton(AF_INET, text.c_str(), &address) != 1) return std::nullopt;
  return ntohl(address.s_addr);
}

std::string address_text(std::uint32_t bits) {
  const in_addr address{.s_addr = htonl(bits)};
  std::array<char, INET_ADDRSTRLEN> text = {};
  inet_ntop(AF_INET, &address, text.data(), text.size());
  return text.data();
}

std::uint32_t mask_of(int prefix) { return prefix == 0 ? 0 : ~std::uint32_t{0} << (32 - prefix); }

std::string network_of(const OwnAddress& own) {
  const std::uint32_t network = parse_address(own.address).value_or(0) & mask_of(own.prefix);
  return fmt::format("{}/{}", address_text(network), own.prefix);
}

// True if an entry of Open MPI's lists, "eth0" or "10.77.0.0/24", names the address.
bool is_named_by(std::string_view entry, const OwnAddress& own) {
  if (entry == own.interface) return true;
  const std::size_t slash = entry.find('/');
  if (slash == std::string_view::npos) return false;
  const auto prefix = number_from<int>(entry.substr(slash + 1));
  if (!prefix || *prefix < 0 || *prefix > 32) return false;
  const auto network = parse_address(std::string(entry.substr(0, slash)));
  const auto address = parse_address(own.address);
  return network && address && ((*network ^ *address) & mask_of(*prefix)) == 0;
}

bool is_listed(std::string_view list, const OwnAddress& own) {
  return std::ranges::any_of(split_text(list, ','),
                             [&](std::string_view entry) { return is_named_by(entry, own); });
}

std::vector<OwnAddress> select(std::span<const OwnAddress> own, const char* list, bool listed) {
  std::vector<OwnAddress> found;
  if (list == nullptr) return found;
  std::ranges::copy_if(own, std::back_inserter(found),
                       [&](const OwnAddress& each) { return is_listed(list, each) == listed; });
  return found;
}

}  // namespace

std::vector<OwnAddress> own_addresses() {
  std::vector<OwnAddress> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    if ((each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const std::uint32_t mask = each->ifa_netmask == nullptr ? mask_of(32) : bits_of(each->ifa_netmask);
    std::error_code unknown;
    found.push_back({.interface = each->ifa_name,
                     .address = address_text(bits_of(each->ifa_addr)),
                     .prefix = std::popcount(mask),
                     .bridge = std::filesystem::exists(
                         std::filesystem::path("/sys/class/net") / each->ifa_name / "bridge", unknown)});
  }
  freeifaddrs(list);
  return found;
}

std::vector<OwnAddress> addresses_of_job(std::span<const OwnAddress> own, const Environment& environment) {
  std::vector<OwnAddress> chosen;
  for (const char* name : {"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"})
    if (chosen.empty()) chosen = select(own, environment(name), true);
  if (chosen.empty()) chosen = select(own, environment("OMPI_MCA_btl_tcp_if_exclude"), false);
  if (chosen.empty()) chosen.assign(own.begin(), own.end());
  return chosen;
}

std::string describe_networks(std::span<const OwnAddress> addresses) {
  std::string text;
  for (const OwnAddress& each : addresses) {
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", each.interface, network_of(each),
                        each.bridge ? " (a bridge)" : "");
  }
  return text;
}

std::string describe_choice_of_network(std::span<const OwnAddress> of_job) {
  if (of_job.size() < 2) return {};
  const auto wire = std::ranges::find(of_job, false, &OwnAddress::bridge);
  return fmt::format(
      "Open MPI may use the networks {}. It cannot connect if another machine has the same address, as "
      "container bridges often have. Select the network that connects the machines: mpirun --mca "
      "btl_tcp_if_include {}",
      describe_networks(of_job), network_of(wire == of_job.end() ? of_job.front() : *wire));
}

}  // namespace lockstep
