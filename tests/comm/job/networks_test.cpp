// SPDX-License-Identifier: Apache-2.0
#include "comm/job/networks.h"

#include <map>

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace lockstep {
namespace {

const std::vector<OwnAddress> kOwn = {
    {"eth0", "10.77.0.1", 24}, {"docker0", "172.17.0.1", 16, true}, {"ib0", "192.168.3.7", 30}};

Environment with(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

std::string job(std::map<std::string, std::string> variables) {
  return describe_networks(addresses_of_job(kOwn, with(std::move(variables))));
}

TEST(Networks, AreNamedByInterfaceAndNetwork) {
  const std::string bridge = describe_networks(std::vector{kOwn[1]});
  expect_parts(bridge, {"docker0 172.17.0.0/16", "bridge"});
  EXPECT_EQ(describe_networks(kOwn), "eth0 10.77.0.0/24, " + bridge + ", ib0 192.168.3.4/30");
  EXPECT_EQ(describe_networks({}), "");
}

TEST(Networks, TheJobUsesTheNetworksOfMpisParameters) {
  EXPECT_EQ(job({}), describe_networks(kOwn));
  EXPECT_EQ(job({{"OMPI_MCA_btl_tcp_if_include", "10.77.0.0/16"}}), "eth0 10.77.0.0/24");
  EXPECT_EQ(job({{"OMPI_MCA_btl_tcp_if_include", "lo,ib0"}}), "ib0 192.168.3.4/30");
  EXPECT_EQ(job({{"OMPI_MCA_oob_tcp_if_include", "eth0"}}), "eth0 10.77.0.0/24");
  EXPECT_EQ(job({{"OMPI_MCA_btl_tcp_if_include", "eth0"}, {"OMPI_MCA_oob_tcp_if_include", "ib0"}}),
            "eth0 10.77.0.0/24");
  EXPECT_EQ(job({{"OMPI_MCA_btl_tcp_if_exclude", "127.0.0.1/8,docker0"}}),
            "eth0 10.77.0.0/24, ib0 192.168.3.4/30");
}

TEST(Networks, ParametersThatExcludeAllNetworksAreIgnored) {
  for (const char* list : {"eth7", "10.78.0.0/24", "10.77.0.0/40", "10.77.0.0/", "/24", ""})
    EXPECT_EQ(job({{"OMPI_MCA_btl_tcp_if_include", list}}), describe_networks(kOwn)) << list;
}

TEST(Networks, TheChoiceNamesTheParameterAndANetworkWithoutBridges) {
  const std::vector<OwnAddress> bridge_first = {kOwn[1], kOwn[0]};
  EXPECT_NE(describe_choice_of_network(bridge_first).find("btl_tcp_if_include 10.77.0.0/24"),
            std::string::npos);
  EXPECT_EQ(describe_choice_of_network(std::vector{kOwn[0]}), "");
}

}  // namespace
}  // namespace lockstep
