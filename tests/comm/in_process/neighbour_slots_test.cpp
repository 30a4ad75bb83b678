// SPDX-License-Identifier: Apache-2.0
//
// The values that neighbours publish to each other and a shared counter, on threads. Between processes:
// mpi_neighbours_test.cpp.
#include "comm/in_process/neighbour_slots.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/comm/thread_ranks.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

std::vector<int> neighbours_on(int ranks, int of) {
  std::vector<int> found;
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    const NeighbourSlots slots(communicator, 1);
    if (communicator.rank() == of) found.assign(slots.neighbours().begin(), slots.neighbours().end());
  });
  return found;
}

TEST(NeighbourSlots, NeighboursFormARing) {
  EXPECT_EQ(neighbours_on(1, 0), std::vector<int>{});
  EXPECT_EQ(neighbours_on(2, 0), std::vector<int>{1});
  EXPECT_EQ(neighbours_on(2, 1), std::vector<int>{0});
  EXPECT_EQ(neighbours_on(3, 0), (std::vector<int>{2, 1}));
  EXPECT_EQ(neighbours_on(5, 2), (std::vector<int>{1, 3}));
  EXPECT_EQ(neighbours_on(5, 4), (std::vector<int>{3, 0}));
}

TEST(NeighbourSlots, ReturnTheNewestPublishedValues) {
  for (const std::int64_t count : {1, 2, 7, 1001}) {
    run_thread_ranks(3, [&](Communicator& communicator) {
      const auto elements = static_cast<std::size_t>(count);
      NeighbourSlots slots(communicator, count);
      std::vector<float> theirs(elements + 1, -1.0f);
      for (const int neighbour : slots.neighbours())
        EXPECT_EQ(slots.look(neighbour, 0, theirs.data()), 0) << "no values are published yet";
      communicator.barrier();
      communicator.stream().synchronize();
      for (int turn = 1; turn <= 3; ++turn) {
        std::vector<float> own(elements);
        for (std::size_t i = 0; i < elements; ++i)
          own[i] = static_cast<float>(100 * turn + communicator.rank()) + static_cast<float>(i) / 2048;
        slots.show(own.data());
        communicator.barrier();
        communicator.stream().synchronize();
        for (const int neighbour : slots.neighbours()) {
          EXPECT_EQ(slots.look(neighbour, turn, theirs.data()), 0) << "there are no newer values";
          ASSERT_EQ(slots.look(neighbour, turn - 1, theirs.data()), turn);
          for (std::size_t i = 0; i < elements; ++i) {
            ASSERT_EQ(theirs[i], static_cast<float>(100 * turn + neighbour) + static_cast<float>(i) / 2048)
                << i << " of " << count;
          }
        }
        EXPECT_EQ(theirs.back(), -1) << "written beyond the last element";
        communicator.barrier();
        communicator.stream().synchronize();
      }
    });
  }
}

// While one rank publishes continuously, its neighbour always gets values of one moment, newer than the
// previous ones.
TEST(NeighbourSlots, ValuesOfDifferentTurnsAreNeverMixed) {
  constexpr std::int64_t kCount = 501;
  constexpr int kLooks = 100;
  std::atomic<bool> enough = false;
  run_thread_ranks(2, [&](Communicator& communicator) {
    NeighbourSlots slots(communicator, kCount);
    std::vector<float> values(kCount);
    if (communicator.rank() == 0) {
      for (int turn = 1; !enough; ++turn) {
        std::ranges::fill(values, static_cast<float>(turn));
        slots.show(values.data());
      }
      return;
    }
    std::int64_t seen = 0;
    for (int looks = 0; looks < kLooks;) {
      const std::int64_t number = slots.look(0, seen, values.data());
      if (number == 0) continue;
      EXPECT_GT(number, seen);
      EXPECT_EQ(std::ranges::count(values, static_cast<float>(number)), kCount);
      seen = number;
      ++looks;
    }
    enough = true;
  });
}

TEST(NeighbourSlots, HandOutEachStepOnce) {
  constexpr int kRanks = 4, kEnd = 10000;
  std::array<std::int64_t, kRanks> taken = {};
  run_thread_ranks(kRanks, [&](Communicator& communicator) {
    NeighbourSlots slots(communicator, 3);
    std::int64_t& mine = taken[static_cast<std::size_t>(communicator.rank())];
    for (const std::int64_t end : {0, kEnd / 2, kEnd}) {
      while (slots.take_step(end)) ++mine;
      EXPECT_GE(slots.steps_taken(), end);
    }
    communicator.barrier();
    communicator.stream().synchronize();
    EXPECT_EQ(slots.steps_taken(), kEnd);
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_EQ(slots.steps_taken(rank), taken[static_cast<std::size_t>(rank)]);
    communicator.barrier();
    communicator.stream().synchronize();
  });
  EXPECT_EQ(taken[0] + taken[1] + taken[2] + taken[3], kEnd);
}

TEST(NeighbourSlots, GivenUpStepsAreNotHandedOut) {
  run_thread_ranks(2, [](Communicator& communicator) {
    NeighbourSlots slots(communicator, 3);
    const auto meet = [&] {
      communicator.barrier();
      communicator.stream().synchronize();
    };
    EXPECT_TRUE(slots.take_step(100));
    meet();
    if (communicator.rank() == 1) slots.give_up_steps(100);
    meet();
    EXPECT_FALSE(slots.take_step(100));
    EXPECT_EQ(slots.steps_taken(), 2);
    meet();
    EXPECT_TRUE(slots.take_step(102));
    meet();
  });
}

TEST(NeighbourSlots, NeedSharedMemoryOfAllRanks) {
  const std::vector<int> nodes = {0, 0, 1};
  const std::vector<std::string> errors = try_thread_ranks(
      3, [](Communicator& communicator) { const NeighbourSlots slots(communicator, 8); }, nodes);
  for (const std::string& error : errors) expect_parts(error, {"comm.topology = \"ring\"", "/dev/shm"});
}

}  // namespace
}  // namespace lockstep
