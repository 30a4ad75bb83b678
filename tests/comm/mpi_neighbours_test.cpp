// SPDX-License-Identifier: Apache-2.0
//
// Ring neighbours in different processes: a rank sees its neighbours' values, and each step is handed out
// once.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "comm/in_process/neighbour_slots.h"
#include "core/error.h"
#include "tests/comm/mpi_world.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr std::int64_t kValues = 70001;

void meet(Communicator& communicator) {
  communicator.barrier();
  communicator.stream().synchronize();
}

TEST(MpiNeighbours, SeePublishedValuesOnTheSameNode) {
  if (test_world().nodes() > 1) return;
  on_every_rank([&] {
    const std::unique_ptr<Communicator> all = test_world().communicator();
    NeighbourSlots slots(*all, kValues);
    std::vector<float> values(kValues);
    for (int turn = 1; turn <= 3; ++turn) {
      std::ranges::fill(values, static_cast<float>(10 * turn + all->rank()));
      slots.show(values.data());
      meet(*all);
      for (const int neighbour : slots.neighbours()) {
        CHECK(slots.look(neighbour, turn - 1, values.data()) == turn, "rank {} has published no newer values",
              neighbour);
        EXPECT_EQ(std::ranges::count(values, static_cast<float>(10 * turn + neighbour)), kValues);
      }
      meet(*all);
    }
    std::int64_t mine = 0;
    while (slots.take_step(5000)) ++mine;
    std::int64_t sum = 0;
    for (const std::int64_t each : gather_values(*all, mine)) sum += each;
    EXPECT_EQ(sum, 5000);
    EXPECT_EQ(slots.steps_taken(all->rank()), mine);
    meet(*all);
  });
}

TEST(MpiNeighbours, AreRefusedAcrossNodes) {
  if (test_world().nodes() == 1) return;
  on_every_rank([&] {
    const std::unique_ptr<Communicator> all = test_world().communicator();
    expect_parts(message_of<ConfigError>([&] { const NeighbourSlots slots(*all, kValues); }),
                 {"comm.topology"});
    meet(*all);
  });
}

}  // namespace
}  // namespace lockstep
