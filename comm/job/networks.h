// SPDX-License-Identifier: Apache-2.0
//
// The IPv4 networks of this machine, and which of them a job's MPI is allowed to use.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/job/launcher.h"

namespace lockstep {

struct OwnAddress {
  std::string interface;  // "eth0"
  std::string address;    // "10.77.0.1"
  int prefix = 32;        // bits of the address that name the network
  bool bridge = false;    // belongs to a bridge, such as that of containers
  bool operator==(const OwnAddress&) const = default;
};

// The addresses of the interfaces that are up, without the loopback interface.
std::vector<OwnAddress> own_addresses();

// The addresses that Open MPI may use: those that btl_tcp_if_include (or oob_tcp_if_include) names by
// interface or network; without these all but those that btl_tcp_if_exclude names. All if the parameters
// leave none.
std::vector<OwnAddress> addresses_of_job(std::span<const OwnAddress> own, const Environment& environment);

// "eth0 10.77.0.0/24, docker0 172.17.0.0/16 (a bridge)".
std::string describe_networks(std::span<const OwnAddress> addresses);

// Advice for a job whose machines do not reach each other: which of several networks Open MPI should use, and
// how to set it. Empty if the job has one network.
std::string describe_choice_of_network(std::span<const OwnAddress> of_job);

}  // namespace lockstep
