// SPDX-License-Identifier: Apache-2.0
//
// Traffic between nodes: the algorithm of sums and the number of transfers. Ranks of one machine are placed
// on several nodes.
#include <algorithm>
#include <bit>
#include <memory>
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
    struct SentBytes {
      std::uint64_t small, large;
    };
    const auto sent_by = [&](AllReduceWay way) {
      const auto session = session_of(way);
      return SentBytes{.small = sent_for_sum(session, kSmall), .large = sent_for_sum(session, kLarge)};
    };
    const SentBytes direct = sent_by(AllReduceWay::direct), halving = sent_by(AllReduceWay::halving);
    const auto chosen = session_of(AllReduceWay::automatic);
    const auto expect_ways = [&](bool small_halves, bool large_halves) {
      EXPECT_EQ(sent_for_sum(chosen, kSmall), small_halves ? halving.small : direct.small);
      EXPECT_EQ(sent_for_sum(chosen, kLarge), large_halves ? halving.large : direct.large);
    };
    EXPECT_GE(first_rank_where(*all, direct.small != halving.small), 0);
    EXPECT_GE(first_rank_where(*all, direct.large != halving.large), 0);

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
  if (ranks == 5) return {{0, 0, 1, 2, 0}, {0, 1, 0, 1, 0}, {0, 0, 1, 1, 2}};
  return {};
}

// Nodes that contribute one, two and three partial sums, with and without sums of two ranks, and ranks that
// drive no part. Separate runs check the whole contract with {0, 0, 1} and {0, 0, 1, 1}.
// DataIsSentOnceToEachOtherNode checks the results with other distributions.
TEST(MpiNodes, CollectivesKeepTheirContractOnUnequalNodes) {
  World& world = test_world();
  if (world.nodes() > 1 || world.size() != 5) return;  // runs where all ranks share memory
  constexpr std::string_view kCases[] = {"reduce_scatter", "all_gather", "broadcast_from_every_root"};
  on_every_rank([&] {
    for (const std::vector<int>& nodes : {std::vector{0, 0, 1, 2, 0}, std::vector{0, 1, 0, 1, 0}}) {
      SCOPED_TRACE(testing::PrintToString(nodes));
      const std::unique_ptr<Communicator> communicator = communicator_of_its_own_job(nodes);
      for (const ContractCase& contract : communicator_contract())
        if (std::ranges::count(kCases, contract.name) > 0) contract.check({*communicator});
    }
  });
}

// The next allocation frees the memory that all ranks have released, and no other.
TEST(MpiSharedBySeveral, MemoryIsFreedWhenNoRankHoldsIt) {
  World& world = test_world();
  if (world.nodes() > 1) return;  // runs where all ranks share memory
  on_every_rank([&] {
    const std::vector<int> one_node(static_cast<std::size_t>(world.size()), 0);
    MpiTransport transport(session_of(AllReduceWay::automatic), place_ranks(world.rank(), one_node));
    std::vector<std::shared_ptr<void>> held;
    std::vector<std::weak_ptr<void>> all;
    const auto allocate = [&] {
      held.push_back(transport.allocate(5000));
      all.emplace_back(held.back());
    };
    const auto freed = [&] {
      std::vector<bool> each;
      for (const std::weak_ptr<void>& memory : all) each.push_back(memory.expired());
      return each;
    };
    for (int k = 0; k < 4; ++k) allocate();
    held[0].reset();
    held[world.rank() == 0 ? 1u : 2u].reset();
    held[3].reset();
    allocate();
    EXPECT_EQ(freed(), (std::vector{true, false, false, true, false}));
    held.clear();
    allocate();
    EXPECT_EQ(freed(), (std::vector{true, true, true, true, true, false}));
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

// Data goes once to each other node, however many ranks that node has, and arrives in its place. For a sum,
// each node sends its partial sums.
TEST(MpiNodes, DataIsSentOnceToEachOtherNode) {
  World& world = test_world();
  if (world.nodes() > 1) return;  // runs where all ranks share memory
  constexpr std::size_t kCount = 100'003;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  const auto ranks = static_cast<std::size_t>(world.size());
  on_every_rank([&] {
    const std::unique_ptr<Communicator> all = world.communicator();
    std::vector<float> send(kCount * ranks), recv(kCount * ranks);
    const auto value = [](std::size_t rank, std::size_t i) {  // sums are exact
      return static_cast<float>(1000 * rank + i % 997);
    };
    const auto me = static_cast<std::size_t>(world.rank());
    for (std::size_t i = 0; i < send.size(); ++i) send[i] = value(me, i);
    const auto wrong = [&](std::size_t begin, const auto& expected) {
      std::size_t count = 0;
      for (std::size_t i = 0; i < kCount; ++i)
        if (recv[begin + i] != expected(i)) ++count;
      return count;
    };
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
      std::ranges::fill(recv, -1.0f);
      const Sent gathered = sent(CollectiveKind::all_gather);
      EXPECT_EQ(gathered.over_the_wire, others * ranks * kBytes);
      EXPECT_EQ(gathered.bytes, ranks * (ranks - 1) * kBytes);
      for (std::size_t rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(wrong(rank * kCount, [&](std::size_t i) { return value(rank, i); }), 0u) << "of " << rank;
      for (int root = 0; root < world.size(); ++root) {
        std::copy_n(send.begin(), kCount, recv.begin());
        const Sent broadcast = sent(CollectiveKind::broadcast, root);
        EXPECT_EQ(broadcast.over_the_wire, others * kBytes) << "from rank " << root;
        EXPECT_EQ(broadcast.bytes, (ranks - 1) * kBytes) << "from rank " << root;
        EXPECT_EQ(wrong(0, [&](std::size_t i) { return value(static_cast<std::size_t>(root), i); }), 0u)
            << "from rank " << root;
      }
      std::size_t sums = 0;
      for (const PartialSum& sum : partial_sums(placement.node_of))
        sums += ranks - static_cast<std::size_t>(std::ranges::count(placement.node_of, sum.node));
      EXPECT_EQ(sent(CollectiveKind::reduce_scatter).over_the_wire, sums * kBytes);
      const auto sum = [&](std::size_t i) {
        float total = 0;
        for (std::size_t rank = 0; rank < ranks; ++rank) total += value(rank, me * kCount + i);
        return total;
      };
      EXPECT_EQ(wrong(0, sum), 0u);
      if (dealt == std::vector{0, 0, 1, 1}) {
        EXPECT_EQ(sums, 4u) << "each node sends one sum of the other node's two shares";
      }
    }
  });
}

}  // namespace
}  // namespace lockstep
