// SPDX-License-Identifier: Apache-2.0
//
// main() of test programs under mpirun. Rank 0 reports; its peers report failures only. All end with the same
// code: 0 if every case passed, 1 if one failed, kSkipped if some rank skipped one and none failed.
// LOCKSTEP_TEST_RANKS_PER_NODE splits one node into several.
#include <cstdlib>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/mpi/session.h"
#include "tests/comm/mpi_world.h"

namespace lockstep {
namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE of ctest

std::optional<World>& world_slot() {
  static std::optional<World> world;
  return world;
}

class FailureListener : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    test_ = fmt::format("{}.{}", test.test_suite_name(), test.name());
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const char* file = result.file_name() == nullptr ? "?" : result.file_name();
    log::error("{} failed at {}:{}: {}", test_, file, result.line_number(), result.message());
  }

  std::string test_;
};

int run() {
  if (world_slot()->rank() > 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailureListener);
  }
  std::int32_t on_some_rank[2] = {RUN_ALL_TESTS(), testing::UnitTest::GetInstance()->skipped_test_count()};
  const std::unique_ptr<Communicator> communicator = world_slot()->communicator();
  communicator->all_reduce(on_some_rank, 2, DType::i32, ReduceOp::max);
  communicator->stream().synchronize();
  const auto& [failed, skipped] = on_some_rank;
  return failed != 0 ? failed : skipped > 0 ? kSkipped : 0;
}

}  // namespace

World& test_world() { return *world_slot(); }

std::unique_ptr<Communicator> communicator_of_its_own_job(std::span<const int> nodes, AllReduceWay way) {
  static std::vector<std::shared_ptr<MpiSession>> abandoned;  // their memory is never freed
  static auto session = std::make_shared<MpiSession>();
  if (session->job->abandoned()) {
    abandoned.push_back(session);
    session = std::make_shared<MpiSession>();
  }
  session->between_nodes = way;
  return make_mpi_communicator(session, place_ranks(test_world().rank(), nodes));
}

}  // namespace lockstep

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* ranks_per_node = std::getenv("LOCKSTEP_TEST_RANKS_PER_NODE");
  lockstep::world_slot() =
      lockstep::World::join({.ranks_per_node = ranks_per_node == nullptr ? 0 : std::atoi(ranks_per_node)});
  const int exit_code = lockstep::run();
  lockstep::test_world().leave();
  lockstep::world_slot().reset();
  return exit_code;
}
