// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/contract.h"

#include <gtest/gtest.h>

#include "tests/comm/thread_ranks.h"

namespace lockstep {
namespace {

class SelfContract : public testing::TestWithParam<ContractCase> {};

TEST_P(SelfContract, Holds) {
  const std::unique_ptr<Communicator> communicator = make_self_communicator();
  EXPECT_EQ(communicator->name(), "self");
  GetParam().check({*communicator});
}

class ThreadContract : public testing::TestWithParam<std::tuple<int, ContractCase>> {};

TEST_P(ThreadContract, Holds) {
  const auto& [ranks, contract] = GetParam();
  run_thread_ranks(ranks, [&, check = contract.check](Communicator& communicator) {
    EXPECT_EQ(communicator.name(), "threads");
    check({communicator});
  });
}

// ThreadContract covers 1, 2, 3, 5 and 8 ranks.
TEST(Threads, SumsOfAnyNumberOfRanksFollowTheTree) {
  for (const int ranks : {4, 6, 7}) {
    run_thread_ranks(ranks, [](Communicator& communicator) { sums_follow_the_tree({communicator}); });
  }
}

INSTANTIATE_TEST_SUITE_P(Self, SelfContract,
                         testing::ValuesIn(communicator_contract().begin(), communicator_contract().end()),
                         [](const auto& suite) { return std::string(suite.param.name); });
INSTANTIATE_TEST_SUITE_P(Threads, ThreadContract,
                         testing::Combine(testing::Values(1, 2, 3, 5, 8),
                                          testing::ValuesIn(communicator_contract().begin(),
                                                            communicator_contract().end())),
                         [](const auto& suite) {
                           return std::to_string(std::get<0>(suite.param)) + "_" +
                                  std::get<1>(suite.param).name;
                         });

}  // namespace
}  // namespace lockstep
