// SPDX-License-Identifier: Apache-2.0
//
// Traffic between nodes: the algorithm of sums and the number of transfers. Ranks of one machine are placed
// on several nodes.
#include <algorithm>
#include <bit>
#include <numeric>
#include <string_view>

#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "comm/mpi/communicator.h"
#include "comm/mpi/session.h"
#include "comm/sums/sum_tree.h"
#include "tests/comm/contract.h"
#include "tests/comm/mpi_world.h"

namespace lockstep {
namespace {

// Sessions are never freed, because communicators leave objects in them.
std::shared_ptr<MpiSession> session_of(AllReduceWay way) {
  static std::vector<std::shared_ptr<MpiSession>> sessions;
  sessions.push_back(std::make_shared<MpiSession>());
  sessions.back()->between_nodes = way;
  return sessions.back();
}

// The bytes that this rank sends for one sum of `count` floats, with each rank on a separate node.
std::uint64_t sent_for_sum(const std::shared_ptr<MpiSession>& session, std::size_t count) {
  std::vector<int> nodes(static_cast<std::size_t>(test_world().size()));
  std::iota(nodes.begin(), nodes.end(), 0);
  const auto communicator = make_mpi_communicator(session, place_ranks(test_world().rank(), nodes));
  std::vector<float> data(count, 1.0f);
  communicator->all_reduce(data.data(), count, DType::f32, ReduceOp::sum);
  communicator->stream().synchronize();
  EXPECT_EQ(std::ranges::count(data, static_cast<float>(nodes.size())), static_cast<std::ptrdiff_t>(count));
  return communicator->traffic().sent_bytes;
}

// The number of sent bytes reveals the algorithm.
TEST(MpiNodes, TheFasterAlgorithmIsMeasuredOncePerShape) {
  World& world = test_world();
  const bool known = std::has_single_bit(static_cast<unsigned>(world.size()));  // or they send equal amounts
  if (world.nodes() > 1 || known) return;
  constexpr std::size_t kSmall = 6'000, kLarge = 30'000;  // floats
  on_every_rank([&] {
    const std::unique_ptr<Communicator> all = world.communicator();
    const auto direct = session_of(AllReduceWay::direct), halving = session_of(AllReduceWay::halving);
    const auto chosen = session_of(AllReduceWay::automatic);
    const auto expect_ways = [&](bool small_halves, bool large_halves) {
      EXPECT_EQ(sent_for_sum(chosen, kSmall), sent_for_sum(small_halves ? halving : direct, kSmall));
      EXPECT_EQ(sent_for_sum(chosen, kLarge), sent_for_sum(large_halves ? halving : direct, kLarge));
    };
    const auto differs = [&](std::size_t count) {
      return sent_for_sum(direct, count) != sent_for_sum(halving, count);
    };
    EXPECT_GE(first_rank_where(*all, differs(kSmall)), 0);
    EXPECT_GE(first_rank_where(*all, differs(kLarge)), 0);

    sent_for_sum(chosen, kLarge);
    const WireShape shape{.ranks = world.size(), .nodes = world.size(), .parts = 1};
    ASSERT_EQ(chosen->faster_ways.size(), 1u);
    const FasterWay measured = chosen->faster_ways.at(shape);
    expect_ways(measured.halving_small, measured.halving_large);
    // A known choice is not measured again, whatever it is.
    for (const bool large_halves : {false, true}) {
      chosen->faster_ways[shape] = {.halving_small = !large_halves, .halving_large = large_halves};
      expect_ways(!large_halves, large_halves);
    }
    // Ranks disagree: all use the same algorithm.
    chosen->faster_ways[shape] = {.halving_small = world.rank() == 0, .halving_large = world.rank() != 0};
    expect_ways(false, false);
    // One rank has no choice: all measure again and agree.
    if (world.rank() == 1) chosen->faster_ways.clear();
    sent_for_sum(chosen, kLarge);
    ASSERT_EQ(chosen->faster_ways.size(), 1u);
    const FasterWay again = chosen->faster_ways.at(shape);
    const std::int32_t found = again.halving_small + 2 * again.halving_large;
    for (const std::int32_t other : gather_values<std::int32_t>(*all, found)) EXPECT_EQ(other, found);
    expect_ways(again.halving_small, again.halving_large);
  });
}

// Some assignments of ranks to nodes in which a node has several ranks, even and uneven.
std::vector<std::vector<int>> shared_dealings(int ranks) {
  if (ranks == 3) return {{0, 0, 1}, {0, 1, 0}};
  if (ranks == 4) return {{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}, {0, 1, 2, 0}};
  if (ranks == 5) return {{0, 0, 1, 1, 2}, {0, 1, 0, 1, 0}};
  return {};
}

TEST(MpiNodes, CollectivesKeepTheirContractForEveryDistributionOfRanks) {
  World& world = test_world();
  if (world.nodes() > 1) return;  // runs where all ranks share memory
  constexpr std::string_view kCases[] = {"reduce_scatter", "all_gather", "broadcast_from_every_root"};
  on_every_rank([&] {
    for (const std::vector<int>& nodes : shared_dealings(world.size())) {
      if (nodes == std::vector{0, 0, 1} || nodes == std::vector{0, 0, 1, 1}) continue;  // in separate runs
      SCOPED_TRACE(testing::PrintToString(nodes));
      const std::unique_ptr<Communicator> communicator = communicator_of_its_own_job(nodes);
      for (const ContractCase& contract : communicator_contract())
        if (std::ranges::count(kCases, contract.name) > 0) contract.check({*communicator});
    }
  });
}

// The traffic of all ranks together.
struct Sent {
  std::uint64_t bytes = 0;
  std::uint64_t over_the_wire = 0;  // the part of it that goes to other nodes
};

Sent sent_by_all(Communicator& all, MpiTransport& transport, const Collective& collective) {
  const Sent before{.bytes = transport.sent_bytes(), .over_the_wire = transport.wire_bytes()};
  transport.run(collective);
  const Sent mine{.bytes = transport.sent_bytes() - before.bytes,
                  .over_the_wire = transport.wire_bytes() - before.over_the_wire};
  Sent sum;
  for (const Sent& sent : gather_values(all, mine)) {
    sum.bytes += sent.bytes;
    sum.over_the_wire += sent.over_the_wire;
  }
  return sum;
}

// Data goes once to each other node, however many ranks that node has. For a sum, each node sends its partial
// sums.
TEST(MpiNodes, DataIsSentOnceToEachOtherNode) {
  World& world = test_world();
  if (world.nodes() > 1) return;  // runs where all ranks share memory
  constexpr std::size_t kCount = 100'003;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  const auto ranks = static_cast<std::size_t>(world.size());
  on_every_rank([&] {
    const std::unique_ptr<Communicator> all = world.communicator();
    std::vector<float> send(kCount * ranks, 1.0f), recv(kCount * ranks);
    for (const std::vector<int>& dealt : shared_dealings(world.size())) {
      SCOPED_TRACE(testing::PrintToString(dealt));
      const Placement placement = place_ranks(0, dealt);
      MpiTransport transport(session_of(AllReduceWay::automatic), place_ranks(world.rank(), dealt));
      const auto others = static_cast<std::size_t>(placement.nodes - 1);
      const auto sent = [&](CollectiveKind kind, int root = 0) {
        return sent_by_all(*all, transport,
                           {.kind = kind,
                            .dtype = DType::f32,
                            .root = root,
                            .send = send.data(),
                            .recv = recv.data(),
                            .count = kCount});
      };
      const Sent gathered = sent(CollectiveKind::all_gather);
      EXPECT_EQ(gathered.over_the_wire, others * ranks * kBytes);
      EXPECT_EQ(gathered.bytes, ranks * (ranks - 1) * kBytes);
      for (int root = 0; root < world.size(); ++root) {
        const Sent broadcast = sent(CollectiveKind::broadcast, root);
        EXPECT_EQ(broadcast.over_the_wire, others * kBytes) << "from rank " << root;
        EXPECT_EQ(broadcast.bytes, (ranks - 1) * kBytes) << "from rank " << root;
      }
      std::size_t sums = 0;
      for (const PartialSum& sum : partial_sums(placement.node_of))
        sums += ranks - static_cast<std::size_t>(std::ranges::count(placement.node_of, sum.node));
      EXPECT_EQ(sent(CollectiveKind::reduce_scatter).over_the_wire, sums * kBytes);
      if (dealt == std::vector{0, 0, 1, 1}) {
        EXPECT_EQ(sums, 4u) << "each node sends one sum of the other node's two shares";
      }
    }
  });
}

}  // namespace
}  // namespace lockstep
