// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "comm/collective_log.h"
#include "comm/mpi/node/window.h"
#include "comm/mpi/session.h"
#include "comm/sums/halving_schedule.h"
#include "comm/world.h"
#include "core/error.h"
#include "core/timeline.h"
#include "tests/comm/contract.h"
#include "tests/comm/mpi_world.h"
#include "tests/comm/naive_tree.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

class MpiContract : public testing::TestWithParam<ContractCase> {};

TEST_P(MpiContract, Holds) {
  on_every_rank([] {
    const std::unique_ptr<Communicator> communicator = test_world().communicator();
    EXPECT_EQ(communicator->name(), communicator->size() == 1 ? "self" : "mpi");
    GetParam().check({*communicator});
  });
}

INSTANTIATE_TEST_SUITE_P(Mpi, MpiContract,
                         testing::ValuesIn(communicator_contract().begin(), communicator_contract().end()),
                         [](const auto& suite) { return std::string(suite.param.name); });

// In shared memory a mismatch would give wrong sums silently.
TEST(MpiSharedBySeveral, EveryRankOfTheNodeReportsDifferentCalls) {
  World& world = test_world();
  if (world.nodes() * world.local_size() != world.size() || world.local_size() == 1) {
    GTEST_SKIP() << "needs several ranks on every node";
  }
  on_every_rank([&] {
    const std::unique_ptr<Communicator> communicator = world.communicator();
    const Buffer shared = communicator->allocate(1024);
    communicator->all_reduce(shared.data(), world.local_rank() == 1 ? 8 : 9, DType::f32, ReduceOp::sum);
    expect_parts(message_of([&] { communicator->stream().synchronize(); }),
                 {"local rank 1", "8 fp32", "9 fp32"});
  });
}

// One rank sums shared memory while its peers sum private memory.
TEST(MpiSharedBySeveral, EveryRankOfTheNodeReportsDifferentKindsOfMemory) {
  World& world = test_world();
  if (world.nodes() > 1) return;  // runs where all ranks share memory
  on_every_rank([&] {
    constexpr std::size_t kCount = 3000;  // 12,000 bytes: not always staged, and one round if staged
    const std::unique_ptr<Communicator> communicator = world.communicator();
    const Buffer shared = communicator->allocate(kCount * sizeof(float));
    const Buffer plain(kCount * sizeof(float), Device{});
    const Buffer& data = world.rank() == 1 ? shared : plain;
    communicator->all_reduce(data.data(), kCount, DType::f32, ReduceOp::sum);
    expect_parts(message_of([&] { communicator->stream().synchronize(); }), {"local rank 1", "3000 fp32"});
  });
}

// One rank calls another collective than its peers, in private memory.
TEST(MpiSharedBySeveral, EveryRankOfTheNodeReportsDifferentCollectives) {
  World& world = test_world();
  if (world.nodes() > 1) return;  // runs where all ranks share memory
  on_every_rank([&] {
    const auto size = static_cast<std::size_t>(world.size());
    std::vector<float> own(64 * size), others(64 * size);
    constexpr CollectiveKind kKinds[] = {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter,
                                         CollectiveKind::all_gather, CollectiveKind::broadcast,
                                         CollectiveKind::barrier,    CollectiveKind::all_to_all};
    for (std::size_t k = 0; k < std::size(kKinds); ++k) {
      const std::unique_ptr<Communicator> communicator = world.communicator();
      const bool differs = world.rank() == 1;
      const Collective called{.kind = kKinds[(k + (differs ? 1 : 0)) % std::size(kKinds)],
                              .dtype = DType::f32,
                              .send = own.data(),
                              .recv = others.data(),
                              .count = 64};
      expect_parts(message_of([&] { communicator->complete(called); }), {std::string(name_of(called.kind))});
    }
  });
}

// Memory that peers can map is read in place; other memory is staged.
TEST(MpiSharedBySeveral, RanksMayMixSharedAndPrivateMemory) {
  on_every_rank([] {
    World& world = test_world();
    const std::unique_ptr<Communicator> communicator = world.communicator();
    const auto size = static_cast<std::size_t>(world.size());
    const auto rank = static_cast<std::size_t>(world.rank());
    constexpr std::size_t kCount = 40'001;
    const Buffer shared = communicator->allocate(size * kCount * sizeof(std::int32_t));
    std::vector<std::int32_t> own(size * kCount);
    const bool in_window = rank % 2 == 1;
    auto* data = in_window ? reinterpret_cast<std::int32_t*>(shared.data()) : own.data();
    const auto at = [](std::size_t k, std::size_t i) { return static_cast<std::int32_t>(100'000 * k + i); };

    for (std::size_t i = 0; i < kCount; ++i) data[rank * kCount + i] = at(rank, i);
    communicator->all_gather(data + rank * kCount, data, kCount, DType::i32);
    communicator->stream().synchronize();
    for (std::size_t k = 0; k < size; ++k)
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[k * kCount + i], at(k, i));

    communicator->reduce_scatter(data, data + rank * kCount, kCount, DType::i32, ReduceOp::sum);
    communicator->stream().synchronize();
    const auto times = static_cast<std::int32_t>(size);
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[rank * kCount + i], times * at(rank, i));

    std::vector<std::int32_t> taken(size * kCount);
    for (std::size_t i = 0; i < size * kCount; ++i) data[i] = at(rank, i);
    communicator->all_to_all(data, taken.data(), kCount, DType::i32);
    communicator->stream().synchronize();
    for (std::size_t k = 0; k < size; ++k)
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(taken[k * kCount + i], at(k, rank * kCount + i));

    for (int root = 0; root < world.size(); ++root) {
      std::fill_n(data, kCount, world.rank() == root ? root + 7 : -1);
      communicator->broadcast(data, kCount, DType::i32, root);
      communicator->stream().synchronize();
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], root + 7);
    }
  });
}

// Places the same ranks on other nodes: every assignment, or eight of many.
TEST(MpiNodes, SumsFollowTheTreeForEveryDistributionOfRanks) {
  World& world = test_world();
  if (world.nodes() > 1) return;  // runs where all ranks share memory
  on_every_rank([&] {
    const std::vector<std::vector<int>> all = dealings(world.size());
    const std::size_t step = 1 + all.size() / 8;
    for (std::size_t k = 0; k < all.size(); k += step) {
      SCOPED_TRACE(testing::PrintToString(all[k]));
      sums_follow_the_tree({*communicator_of_its_own_job(all[k])});
    }
  });
}

// True if every node contributes one partial sum, so that sums between nodes may use halving.
bool each_brings_one(std::span<const int> nodes) {
  const Placement placement = place_ranks(0, nodes);
  return one_term_of_each(partial_sums(placement.node_of), placement.nodes);
}

// Order-dependent sums of 16-bit floats in both kinds of memory: fewer elements than ranks, one cache line
// for each, and more elements than are in flight at once.
std::vector<std::uint16_t> sums_of(Communicator& communicator) {
  constexpr std::size_t kMost = 600'001;
  const Buffer shared = communicator.allocate(kMost * sizeof(BFloat16));
  const Buffer plain(kMost * sizeof(BFloat16), Device{});
  std::vector<std::uint16_t> sums;
  for (const std::size_t count : {std::size_t{1}, std::size_t{70}, kMost}) {
    for (const Buffer* data : {&shared, &plain}) {
      for (std::size_t i = 0; i < count; ++i) {
        reinterpret_cast<BFloat16*>(data->data())[i] = static_cast<BFloat16>(
            1.0f /
            static_cast<float>((i + 1) % 1021 + 7 * static_cast<std::size_t>(communicator.rank()) + 1));
      }
      communicator.all_reduce(data->data(), count, DType::bf16, ReduceOp::sum);
      communicator.stream().synchronize();
      sums.resize(sums.size() + count);
      std::memcpy(&sums[sums.size() - count], data->data(), count * sizeof(BFloat16));
    }
  }
  return sums;
}

TEST(MpiNodes, SumsHaveTheSameBitsByEveryAlgorithm) {
  World& world = test_world();
  if (world.nodes() > 1) return;  // runs where all ranks share memory
  on_every_rank([&] {
    for (const std::vector<int>& nodes : dealings(world.size())) {
      if (!each_brings_one(nodes) || nodes.back() == 0) continue;
      SCOPED_TRACE(testing::PrintToString(nodes));
      const auto direct = sums_of(*communicator_of_its_own_job(nodes, AllReduceWay::direct));
      const auto halving = communicator_of_its_own_job(nodes, AllReduceWay::halving);
      sums_follow_the_tree({*halving});
      EXPECT_EQ(sums_of(*halving), direct);
      // Small integers have the same sum in any order.
      std::vector<float> own(50'000, static_cast<float>(world.rank() + 1));
      const auto by_mpi = communicator_of_its_own_job(nodes, AllReduceWay::mpi);
      by_mpi->all_reduce(own.data(), own.size(), DType::f32, ReduceOp::sum);
      by_mpi->stream().synchronize();
      const auto sum = static_cast<float>(world.size() * (world.size() + 1) / 2);
      EXPECT_EQ(std::ranges::count(own, sum), 50'000);
    }
  });
}

std::vector<int> ranks_in(Communicator& group) {
  const std::vector<std::int32_t> ranks = gather_values<std::int32_t>(group, test_world().rank());
  return {ranks.begin(), ranks.end()};
}

TEST(MpiNodes, GroupsOfANodeAndAcrossNodesHaveTheRightRanks) {
  World& world = test_world();
  on_every_rank([&] {
    const std::unique_ptr<Communicator> all = world.communicator();
    const std::unique_ptr<Communicator> node = all->split(world.node(), world.rank());
    const std::unique_ptr<Communicator> across = all->split(world.local_rank(), world.rank());
    const std::vector<int> nodes = gather_values<std::int32_t>(*all, world.node());
    const std::vector<int> places = gather_values<std::int32_t>(*all, world.local_rank());
    std::vector<int> on_node, with_place;
    for (int rank = 0; rank < world.size(); ++rank) {
      if (nodes[static_cast<std::size_t>(rank)] == world.node()) on_node.push_back(rank);
      if (places[static_cast<std::size_t>(rank)] == world.local_rank()) with_place.push_back(rank);
    }
    EXPECT_EQ(ranks_in(*node), on_node);
    EXPECT_EQ(ranks_in(*across), with_place);
    EXPECT_EQ(node->rank(), world.local_rank());
    EXPECT_EQ(across->rank(), world.node());
    sums_follow_the_tree({*node});
    sums_follow_the_tree({*across});
  });
}

// A group has the nodes of its ranks. It adds in shared memory where possible, and along its own tree.
TEST(MpiNodes, SumsOfGroupsFollowTheirTreeForEveryDistributionOfRanks) {
  World& world = test_world();
  if (world.nodes() > 1) return;  // runs where all ranks share memory
  on_every_rank([&] {
    const std::vector<std::vector<int>> all = dealings(world.size());
    for (std::size_t k = 0; k < all.size(); k += 1 + all.size() / 5) {
      SCOPED_TRACE(testing::PrintToString(all[k]));
      const std::unique_ptr<Communicator> dealt = communicator_of_its_own_job(all[k]);
      const std::unique_ptr<Communicator> group = dealt->split(world.rank() == 1 ? 1 : 0, -world.rank());
      sums_follow_the_tree({*group});
    }
  });
}

// The path of each rank's log. Other ranks can read these files.
std::vector<std::filesystem::path> logs_of(Communicator& communicator) {
  constexpr std::size_t kLongest = 64;
  std::vector<char> paths(kLongest * static_cast<std::size_t>(communicator.size()));
  char mine[kLongest] = {};
  communicator.log().path().string().copy(mine, kLongest - 1);
  communicator.all_gather(mine, paths.data(), kLongest, DType::u8);
  communicator.stream().synchronize();
  std::vector<std::filesystem::path> logs;
  for (std::size_t at = 0; at < paths.size(); at += kLongest) logs.emplace_back(&paths[at]);
  return logs;
}

void wait_until_started(const std::filesystem::path& log, std::uint64_t sequence) {
  for (;;) {
    const auto file = read_collective_log(log);
    if (file && !file->records.empty()) {
      const CollectiveRecord& last = file->records.back();
      if (last.collective.sequence > sequence) return;  // the collective did not wait
      if (last.collective.sequence == sequence && last.moments.started_ns > 0) return;
    }
    std::this_thread::yield();
  }
}

// The rank `late` enters after all its peers. A rank that records when all met must record a later moment. In
// a broadcast by messages no rank records it.
void expect_met_when_the_last_came(Communicator& communicator, const Collective& collective, int late,
                                   bool on_one_node) {
  const std::vector<std::filesystem::path> logs = logs_of(communicator);
  for (int rank = 0; rank < communicator.size() && communicator.rank() == late; ++rank) {
    const std::uint64_t sequence = communicator.log().read().back().collective.sequence + 1;
    if (rank != late) wait_until_started(logs[static_cast<std::size_t>(rank)], sequence);
  }
  std::int64_t came_ns = communicator.rank() == late ? now_ns() : 0;  // one machine, one clock
  communicator.enqueue(collective);
  communicator.stream().synchronize();
  const CollectiveMoments moments = communicator.log().read().back().moments;
  communicator.broadcast(&came_ns, sizeof(came_ns), DType::u8, late);
  communicator.stream().synchronize();
  if (collective.kind == CollectiveKind::broadcast && !on_one_node) {
    EXPECT_EQ(moments.met_ns, 0) << "no rank records when all entered";
    return;
  }
  EXPECT_GE(moments.met_ns, came_ns) << describe(collective) << ", rank " << late << " was late";
  EXPECT_LE(moments.met_ns, moments.finished_ns);
}

// By messages, in shared memory, and both; also with parts that are empty on some ranks.
TEST(MpiNodes, RanksMeetAfterTheLastRankOfAllNodesEnters) {
  World& world = test_world();
  if (world.size() == 1 || world.nodes() > 1) return;  // runs where all ranks share memory
  on_every_rank([&] {
    const auto size = static_cast<std::size_t>(world.size());
    const std::vector<std::vector<int>> all = dealings(world.size());
    const std::size_t step = all.size() > 5 ? all.size() / 4 : 1;
    int late = 0;
    for (std::size_t k = 0; k < all.size(); k += step) {
      SCOPED_TRACE(testing::PrintToString(all[k]));
      const AllReduceWay way = k % 2 == 0 ? AllReduceWay::halving : AllReduceWay::direct;
      const std::unique_ptr<Communicator> communicator = communicator_of_its_own_job(all[k], way);
      constexpr std::size_t kMany = 5'000;
      const Buffer shared = communicator->allocate(kMany * sizeof(float));
      std::vector<float> plain(kMany * size);
      const auto sum = [](void* data, std::size_t count) {
        return Collective{
            .kind = CollectiveKind::all_reduce, .dtype = DType::f32, .recv = data, .count = count};
      };
      const auto of_parts = [&](CollectiveKind kind) {
        return Collective{.kind = kind,
                          .dtype = DType::f32,
                          .send = shared.data(),
                          .recv = plain.data(),
                          .count = kMany / size};
      };
      for (const Collective& collective :
           {sum(plain.data(), 1), sum(plain.data(), kMany), sum(shared.data(), 1), sum(shared.data(), 17),
            sum(shared.data(), kMany), of_parts(CollectiveKind::reduce_scatter),
            of_parts(CollectiveKind::all_gather), of_parts(CollectiveKind::all_to_all),
            Collective{.kind = CollectiveKind::barrier},
            Collective{.kind = CollectiveKind::broadcast, .recv = plain.data(), .count = 8}}) {
        expect_met_when_the_last_came(*communicator, collective, late++ % world.size(),
                                      std::ranges::count(all[k], all[k].front()) == world.size());
      }
    }
  });
}

// Neighbours in the tree are on different nodes: each node sends the values of all its ranks.
TEST(MpiNodes, TrafficGrowsIfANodeHoldsNoSubtree) {
  if (test_world().size() != 4 || test_world().nodes() > 1) return;
  on_every_rank([&] {
    constexpr std::size_t kCount = 1 << 16;
    const auto sent_by_all = [&](const std::vector<int>& leaders) {
      const std::unique_ptr<Communicator> communicator = communicator_of_its_own_job(leaders);
      const Buffer data = communicator->allocate(kCount * sizeof(float));
      communicator->all_reduce(data.data(), kCount, DType::f32, ReduceOp::sum);
      communicator->stream().synchronize();
      auto times = static_cast<std::int32_t>(communicator->traffic().sent_bytes);
      communicator->all_reduce(&times, 1, DType::i32, ReduceOp::sum);
      communicator->stream().synchronize();
      return static_cast<double>(times) / (kCount * sizeof(float));
    };
    // 4 within the memory of the two nodes; 1 and 1 between them.
    EXPECT_EQ(sent_by_all({0, 0, 2, 2}), 6);
    // 4 within the memory of one node. Of its two sums and the other node's one, 1.5 travel to the owners of
    // the parts.
    EXPECT_EQ(sent_by_all({0, 0, 0, 3}), 6.5);
    EXPECT_EQ(sent_by_all({0, 1, 0, 1}), 7);
  });
}

TEST(MpiShared, AllocatedMemoryIsZeroedAlignedAndReusable) {
  on_every_rank([] {
    const std::unique_ptr<Communicator> communicator = test_world().communicator();
    for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{1'000'001}}) {
      const Buffer first = communicator->allocate(bytes);
      const Buffer second = communicator->allocate(bytes);
      EXPECT_EQ(first.bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.data()) % kAlignment, 0u);
      const auto zeros = [bytes](const Buffer& buffer) {
        return static_cast<std::size_t>(std::count(buffer.data(), buffer.data() + bytes, std::byte{0}));
      };
      EXPECT_EQ(zeros(first), bytes);
      // Two buffers do not overlap, on any rank.
      std::fill_n(first.data(), bytes, std::byte{1});
      communicator->barrier();
      communicator->stream().synchronize();
      EXPECT_EQ(zeros(second), bytes);
    }
  });
}

// Shared memory without enough space ends the process at the first access.
TEST(MpiShared, IsUsedOnlyIfThereIsEnoughSpace) {
  constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
  EXPECT_TRUE(fits_shared_memory(64 * kMebibyte, 2, 30 * kMebibyte));
  EXPECT_FALSE(fits_shared_memory(64 * kMebibyte, 2, 32 * kMebibyte));
  EXPECT_FALSE(fits_shared_memory(64 * kMebibyte, 3, 30 * kMebibyte));
  EXPECT_FALSE(fits_shared_memory(kMebibyte, 1, 1)) << "some space must remain free";
  EXPECT_FALSE(fits_shared_memory(0, 1, 1));
  EXPECT_TRUE(fits_shared_memory(free_shared_memory(), 1, 1)) << "free space of this machine";
}

TEST(MpiThreads, NeedThreadMultiple) {
  EXPECT_NO_THROW(require_thread_support(MPI_THREAD_MULTIPLE, "MPI"));
  for (const int provided : {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED}) {
    expect_parts(message_of<ConfigError>([&] { require_thread_support(provided, "Open MPI v4.1.4"); }),
                 {"Open MPI v4.1.4", "MPI_THREAD_MULTIPLE", "4.0", "MPICH"});
  }
}

TEST(MpiCommunicators, OrderOnlyTheirOwnCalls) {
  on_every_rank([] {
    const std::unique_ptr<Communicator> first = test_world().communicator();
    const std::unique_ptr<Communicator> second = test_world().communicator();
    // Each communicator orders only its own calls: even and odd ranks enqueue on the two in different order.
    std::vector<float> a(20'000, 1.0f), b(20'000, 2.0f);
    const auto enqueue = [](Communicator& communicator, std::vector<float>& data) {
      communicator.all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum);
    };
    if (test_world().rank() % 2 == 0) {
      enqueue(*first, a);
      first->stream().synchronize();
      enqueue(*second, b);
    } else {
      enqueue(*second, b);
      enqueue(*first, a);
    }
    first->stream().synchronize();
    second->stream().synchronize();
    const auto size = static_cast<float>(test_world().size());
    for (float element : a) ASSERT_EQ(element, size);
    for (float element : b) ASSERT_EQ(element, 2 * size);
  });
}

}  // namespace
}  // namespace lockstep
