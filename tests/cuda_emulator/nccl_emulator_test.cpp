// SPDX-License-Identifier: Apache-2.0
//
// Results of the emulated NCCL between threads and between processes: immediate, in groups and in graphs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <type_traits>

#include "core/tensor/dtype.h"
#include "tests/cuda_emulator/nccl_ranks.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

template <typename T>
struct TypeOf;
template <>
struct TypeOf<std::int8_t> : std::integral_constant<ncclDataType_t, ncclInt8> {};
template <>
struct TypeOf<std::uint8_t> : std::integral_constant<ncclDataType_t, ncclUint8> {};
template <>
struct TypeOf<std::int32_t> : std::integral_constant<ncclDataType_t, ncclInt32> {};
template <>
struct TypeOf<std::uint32_t> : std::integral_constant<ncclDataType_t, ncclUint32> {};
template <>
struct TypeOf<std::int64_t> : std::integral_constant<ncclDataType_t, ncclInt64> {};
template <>
struct TypeOf<std::uint64_t> : std::integral_constant<ncclDataType_t, ncclUint64> {};
template <>
struct TypeOf<Half> : std::integral_constant<ncclDataType_t, ncclFloat16> {};
template <>
struct TypeOf<float> : std::integral_constant<ncclDataType_t, ncclFloat32> {};
template <>
struct TypeOf<double> : std::integral_constant<ncclDataType_t, ncclFloat64> {};
template <>
struct TypeOf<BFloat16> : std::integral_constant<ncclDataType_t, ncclBfloat16> {};

constexpr ncclRedOp_t kOps[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};

// Small numbers whose results are exact in every type: 1 to 4, some of them negative in signed types.
template <typename T>
double value(int rank, std::size_t i) {
  const auto number = static_cast<double>((i * 7 + static_cast<std::size_t>(rank) * 5 + i / 11) % 4 + 1);
  return std::is_unsigned_v<T> || (i + static_cast<std::size_t>(rank)) % 3 > 0 ? number : -number;
}

template <typename T>
std::vector<T> values(int rank, std::size_t count) {
  std::vector<T> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<T>(static_cast<float>(value<T>(rank, i)));
  return made;
}

template <typename T>
double reduced(ncclRedOp_t op, int ranks, std::size_t i) {
  double total = value<T>(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const double next = value<T>(rank, i);
    if (op == ncclSum || op == ncclAvg) total += next;
    if (op == ncclProd) total *= next;
    if (op == ncclMax) total = std::max(total, next);
    if (op == ncclMin) total = std::min(total, next);
  }
  if (op != ncclAvg) return total;
  return std::is_integral_v<T> ? std::trunc(total / ranks) : total / ranks;
}

// All results are exact, except for averages of three: their error in 16-bit types is about one hundredth.
template <typename T, typename F>
void expect_values(const std::vector<T>& actual, F expected_at) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    double got = 0;
    if constexpr (std::is_arithmetic_v<T>) {
      got = static_cast<double>(actual[i]);
    } else {
      got = static_cast<float>(actual[i]);
    }
    ASSERT_NEAR(got, expected_at(i), sizeof(T) == 2 ? 0.05 : 1e-6) << "element " << i;
  }
}

// All collectives of one type on one rank.
template <typename T>
class Collectives {
 public:
  Collectives(TestRank& rank, std::size_t count) : rank_(rank), count_(count), all_(count * rank_count()) {}

  void check() {
    for (const ncclRedOp_t op : kOps) {
      SCOPED_TRACE(testing::Message()
                   << "type " << kType << ", operation " << op << ", " << count_ << " elements");
      all_reduce(op);
      reduce_scatter(op);
      reduce(op);
    }
    SCOPED_TRACE(testing::Message() << "type " << kType << ", " << count_ << " elements");
    all_gather();
    broadcast();
    transfers();
  }

 private:
  static constexpr ncclDataType_t kType = TypeOf<T>::value;

  std::size_t rank_count() const { return static_cast<std::size_t>(rank_.ranks); }
  std::size_t me() const { return static_cast<std::size_t>(rank_.rank); }
  T* own(std::size_t count) { return rank_.memory(values<T>(rank_.rank, count)); }
  T* zeros(std::size_t count) { return rank_.memory(std::vector<T>(count)); }

  void all_reduce(ncclRedOp_t op) {
    T* in_place = own(count_);
    T* send = own(count_);
    T* recv = zeros(count_);
    ASSERT_EQ(ncclAllReduce(in_place, in_place, count_, kType, op, rank_.comm, rank_.stream), ncclSuccess);
    ASSERT_EQ(ncclAllReduce(send, recv, count_, kType, op, rank_.comm, rank_.stream), ncclSuccess);
    const auto expected = [&](std::size_t i) { return reduced<T>(op, rank_.ranks, i); };
    expect_values(rank_.read(in_place, count_), expected);
    expect_values(rank_.read(recv, count_), expected);
    expect_values(rank_.read(send, count_), [&](std::size_t i) { return value<T>(rank_.rank, i); });
  }

  void reduce_scatter(ncclRedOp_t op) {
    T* send = own(all_);
    T* recv = zeros(count_);
    T* mine = send + me() * count_;
    ASSERT_EQ(ncclReduceScatter(send, recv, count_, kType, op, rank_.comm, rank_.stream), ncclSuccess);
    ASSERT_EQ(ncclReduceScatter(send, mine, count_, kType, op, rank_.comm, rank_.stream), ncclSuccess);
    const auto expected = [&](std::size_t i) { return reduced<T>(op, rank_.ranks, me() * count_ + i); };
    expect_values(rank_.read(recv, count_), expected);
    expect_values(rank_.read(mine, count_), expected);
  }

  void reduce(ncclRedOp_t op) {
    const int root = rank_.ranks - 1;
    T* send = own(count_);
    T* recv = rank_.rank == root ? zeros(count_) : nullptr;
    ASSERT_EQ(ncclReduce(send, recv, count_, kType, op, root, rank_.comm, rank_.stream), ncclSuccess);
    if (rank_.rank != root) return;
    expect_values(rank_.read(recv, count_), [&](std::size_t i) { return reduced<T>(op, rank_.ranks, i); });
  }

  void all_gather() {
    T* recv = zeros(all_);
    T* both = zeros(all_);
    T* send = own(count_);
    cudaMemcpyAsync(both + me() * count_, send, count_ * sizeof(T), cudaMemcpyDefault, rank_.stream);
    ASSERT_EQ(ncclAllGather(send, recv, count_, kType, rank_.comm, rank_.stream), ncclSuccess);
    ASSERT_EQ(ncclAllGather(both + me() * count_, both, count_, kType, rank_.comm, rank_.stream),
              ncclSuccess);
    const auto expected = [&](std::size_t i) { return value<T>(static_cast<int>(i / count_), i % count_); };
    expect_values(rank_.read(recv, all_), expected);
    expect_values(rank_.read(both, all_), expected);
  }

  void broadcast() {
    for (int root = 0; root < rank_.ranks; ++root) {
      T* in_place = own(count_);
      T* recv = zeros(count_);
      const T* send = rank_.rank == root ? own(count_) : nullptr;
      ASSERT_EQ(ncclBroadcast(in_place, in_place, count_, kType, root, rank_.comm, rank_.stream),
                ncclSuccess);
      ASSERT_EQ(ncclBroadcast(send, recv, count_, kType, root, rank_.comm, rank_.stream), ncclSuccess);
      const auto expected = [&](std::size_t i) { return value<T>(root, i); };
      expect_values(rank_.read(in_place, count_), expected);
      expect_values(rank_.read(recv, count_), expected);
    }
  }

  // Sends a different number of elements to each rank, itself included, and none to the last.
  void transfers() {
    const auto between = [&](int from, int to) {
      return to + 1 == rank_.ranks && to > 0 ? 0 : count_ + static_cast<std::size_t>(2 * from + to);
    };
    std::vector<T*> received;
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int peer = 0; peer < rank_.ranks; ++peer) {
      const std::size_t out = between(rank_.rank, peer);
      const std::size_t in = between(peer, rank_.rank);
      received.push_back(zeros(in));
      ASSERT_EQ(ncclRecv(received.back(), in, kType, peer, rank_.comm, rank_.stream), ncclSuccess);
      ASSERT_EQ(ncclSend(own(out), out, kType, peer, rank_.comm, rank_.stream), ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    for (int peer = 0; peer < rank_.ranks; ++peer) {
      const auto found = rank_.read(received[static_cast<std::size_t>(peer)], between(peer, rank_.rank));
      expect_values(found, [&](std::size_t i) { return value<T>(peer, i); });
    }
  }

  TestRank& rank_;
  std::size_t count_;
  std::size_t all_;
};

class NcclEmulator : public testing::TestWithParam<std::tuple<int, RanksAre>> {
 protected:
  void run(const std::function<void(Lobby&, int)>& body, Settings settings = {}) {
    run_ranks(ranks(), {.ranks_are = std::get<1>(GetParam()), .settings = std::move(settings)}, body);
  }
  static int ranks() { return std::get<0>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, NcclEmulator,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(RanksAre::threads, RanksAre::processes)),
                         [](const auto& suite) {
                           const bool threads = std::get<1>(suite.param) == RanksAre::threads;
                           return std::to_string(std::get<0>(suite.param)) +
                                  (threads ? "_threads" : "_processes");
                         });

TEST_P(NcclEmulator, ComputesEveryCollectiveOfEveryType) {
  run([](Lobby& lobby, int number) {
    TestRank rank(lobby, number, ranks());
    for (const std::size_t count : {std::size_t{1}, std::size_t{1001}}) {
      Collectives<std::int8_t>(rank, count).check();
      Collectives<std::uint8_t>(rank, count).check();
      Collectives<std::int32_t>(rank, count).check();
      Collectives<std::uint32_t>(rank, count).check();
      Collectives<std::int64_t>(rank, count).check();
      Collectives<std::uint64_t>(rank, count).check();
      Collectives<Half>(rank, count).check();
      Collectives<float>(rank, count).check();
      Collectives<double>(rank, count).check();
      Collectives<BFloat16>(rank, count).check();
    }
  });
}

// The data consist of several chunks.
TEST_P(NcclEmulator, ComputesCollectivesLargerThanItsStagingMemory) {
  run([](Lobby& lobby, int number) {
    TestRank rank(lobby, number, ranks());
    Collectives<float>(rank, 150'001 / kOneOf).check();
    Collectives<BFloat16>(rank, 300'001 / kOneOf).check();
  });
}

TEST_P(NcclEmulator, SumsInRankOrderWithTheSameBitsOnEveryRank) {
  run([](Lobby& lobby, int number) {
    constexpr float kTerms[] = {1e8f, -1e8f, 1.0f, 1.0f};
    TestRank rank(lobby, number, ranks());
    float* data = rank.memory(std::vector<float>(1000, kTerms[number]));
    ASSERT_EQ(rank.all_reduce(data, 1000), ncclSuccess);
    float expected = kTerms[0];
    for (int k = 1; k < ranks(); ++k) expected += kTerms[k];
    for (const float sum : rank.read(data, 1000)) ASSERT_EQ(sum, expected);
  });
}

TEST_P(NcclEmulator, RunsOncePerLaunchOfAGraph) {
  run([](Lobby& lobby, int number) {
    TestRank rank(lobby, number, ranks());
    float* data = rank.memory(std::vector<float>(500, 1.0f));
    float* all = rank.memory(std::vector<float>(500 * static_cast<std::size_t>(ranks())));
    const cudaGraphExec_t graph = rank.capture([&] {
      EXPECT_EQ(rank.all_reduce(data, 500), ncclSuccess);
      EXPECT_EQ(ncclAllGather(data, all, 500, ncclFloat32, rank.comm, rank.stream), ncclSuccess);
    });
    EXPECT_EQ(rank.read(data, 1)[0], 1.0f) << "the captured collective must not run yet";
    for (int launch = 0; launch < 3; ++launch) ASSERT_EQ(cudaGraphLaunch(graph, rank.stream), cudaSuccess);
    const auto sum = static_cast<float>(ranks() * ranks() * ranks());
    for (const float element : rank.read(all, 500)) ASSERT_EQ(element, sum);
    EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
  });
}

TEST_P(NcclEmulator, RunsTransfersInGraphsInCallOrder) {
  run([](Lobby& lobby, int number) {
    TestRank rank(lobby, number, ranks());
    float* sent = rank.memory(std::vector<float>(100, 1.0f));
    float* taken = rank.memory(std::vector<float>(100));
    const int next = (number + 1) % ranks(), before = (number + ranks() - 1) % ranks();
    const cudaGraphExec_t graph = rank.capture([&] {
      EXPECT_EQ(rank.all_reduce(sent, 100), ncclSuccess);
      EXPECT_EQ(ncclGroupStart(), ncclSuccess);
      EXPECT_EQ(ncclSend(sent, 100, ncclFloat32, next, rank.comm, rank.stream), ncclSuccess);
      EXPECT_EQ(ncclRecv(taken, 100, ncclFloat32, before, rank.comm, rank.stream), ncclSuccess);
      EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
      EXPECT_EQ(rank.all_reduce(taken, 100), ncclSuccess);
    });
    for (int launch = 0; launch < 2; ++launch) ASSERT_EQ(cudaGraphLaunch(graph, rank.stream), cudaSuccess);
    const auto sum = static_cast<float>(ranks() * ranks() * ranks());
    for (const float element : rank.read(taken, 100)) ASSERT_EQ(element, sum);
    EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
  });
}

// NCCL adds edges between the captured operations of a communicator. Otherwise unordered branches of a graph
// therefore run in call order on every rank, although a different branch is slow on each.
TEST_P(NcclEmulator, KeepsTheCallOrderOfACommunicatorInGraphBranches) {
  run([](Lobby& lobby, int number) {
    TestRank rank(lobby, number, ranks());
    const auto nap = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
    cudaStream_t other = nullptr;
    cudaEvent_t forked = nullptr;
    cudaEvent_t joined = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    for (cudaEvent_t* event : {&forked, &joined})
      ASSERT_EQ(cudaEventCreateWithFlags(event, cudaEventDisableTiming), cudaSuccess);
    float* small = rank.memory(std::vector<float>(10, 1.0f));
    float* large = rank.memory(std::vector<float>(20, 1.0f));
    const cudaGraphExec_t graph = rank.capture([&] {
      cudaEventRecord(forked, rank.stream);
      cudaStreamWaitEvent(other, forked);
      cudaLaunchHostFunc(number % 2 == 0 ? other : rank.stream, nap, nullptr);
      EXPECT_EQ(ncclAllReduce(small, small, 10, ncclFloat32, ncclMax, rank.comm, other), ncclSuccess);
      EXPECT_EQ(rank.all_reduce(large, 20), ncclSuccess);
      cudaEventRecord(joined, other);
      cudaStreamWaitEvent(rank.stream, joined);
    });
    for (int launch = 0; launch < 3; ++launch) ASSERT_EQ(cudaGraphLaunch(graph, rank.stream), cudaSuccess);
    EXPECT_EQ(rank.synchronize(), cudaSuccess);
    EXPECT_EQ(rank.async_error(), ncclSuccess);
    EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
    for (const cudaEvent_t event : {forked, joined}) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  });
}

TEST_P(NcclEmulator, GroupsStartAtTheirEndCall) {
  run([](Lobby& lobby, int number) {
    TestRank rank(lobby, number, ranks());
    float* data = rank.memory(std::vector<float>(10, 1.0f));
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    ASSERT_EQ(rank.all_reduce(data, 10), ncclSuccess);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    ASSERT_EQ(rank.all_reduce(data, 10), ncclSuccess);
    EXPECT_EQ(rank.read(data, 1)[0], 1.0f);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(rank.read(data, 1)[0], static_cast<float>(ranks() * ranks()));
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "there was no ncclGroupStart";
  });
}

TEST_P(NcclEmulator, SeveralCommunicatorsAreIndependent) {
  run([](Lobby& lobby, int number) {
    TestRank first(lobby, number, ranks());
    TestRank second(lobby, number, ranks());
    float* a = first.memory(std::vector<float>(1000, 1.0f));
    float* b = second.memory(std::vector<float>(1000, 2.0f));
    for (int i = 0; i < 5; ++i) {  // in a different order on each rank: each communicator has its own stream
      ASSERT_EQ(number % 2 == 0 ? first.all_reduce(a, 1000) : second.all_reduce(b, 1000), ncclSuccess);
      ASSERT_EQ(number % 2 == 0 ? second.all_reduce(b, 1000) : first.all_reduce(a, 1000), ncclSuccess);
    }
    EXPECT_EQ(first.read(a, 1)[0], std::pow(static_cast<float>(ranks()), 5.0f));
    EXPECT_EQ(second.read(b, 1)[0], 2 * std::pow(static_cast<float>(ranks()), 5.0f));
  });
}

// A split by the parity of ranks, with the order of ranks reversed; the last rank is in no group.
TEST_P(NcclEmulator, SplitsByColourAndOrdersByKey) {
  run([](Lobby& lobby, int number) {
    TestRank rank(lobby, number, ranks());
    const bool alone = number == ranks() - 1;
    ncclComm_t group = nullptr;
    ASSERT_EQ(ncclCommSplit(rank.comm, alone ? NCCL_SPLIT_NOCOLOR : number % 2, -number, &group, nullptr),
              ncclSuccess);
    ASSERT_EQ(group == nullptr, alone);
    if (alone) return rank.barrier();
    std::vector<float> members;
    for (int each = ranks() - 2; each >= 0; --each)
      if (each % 2 == number % 2) members.push_back(static_cast<float>(each));
    const std::size_t size = members.size();
    int count = 0;
    EXPECT_EQ(ncclCommCount(group, &count), ncclSuccess);
    EXPECT_EQ(static_cast<std::size_t>(count), size);
    const float* mine = rank.memory(std::vector<float>(1, static_cast<float>(number)));
    float* all = rank.memory(std::vector<float>(size));
    EXPECT_EQ(ncclAllGather(mine, all, 1, ncclFloat32, group, rank.stream), ncclSuccess);
    EXPECT_EQ(rank.read(all, size), members);
    EXPECT_EQ(ncclCommDestroy(group), ncclSuccess);
    rank.barrier();
  });
}

// The second rank is excluded and makes no communicator.
TEST_P(NcclEmulator, ShrinksToTheRanksThatRemain) {
  run([](Lobby& lobby, int number) {
    TestRank rank(lobby, number, ranks());
    int excluded[] = {1}, unknown[] = {ranks()}, itself[] = {number};
    ncclComm_t rest = nullptr;
    const auto shrink = [&](int* list, int count) {
      return ncclCommShrink(rank.comm, list, count, &rest, nullptr, NCCL_SHRINK_DEFAULT);
    };
    EXPECT_EQ(shrink(nullptr, 1), ncclInvalidArgument);
    EXPECT_EQ(shrink(excluded, 0), ncclInvalidArgument);
    EXPECT_EQ(shrink(unknown, 1), ncclInvalidArgument);
    EXPECT_EQ(shrink(itself, 1), ncclInvalidArgument);
    EXPECT_EQ(rest, nullptr);
    if (ranks() == 1 || number == 1) return rank.barrier();
    ASSERT_EQ(shrink(excluded, 1), ncclSuccess);
    std::vector<float> members;
    for (int each = 0; each < ranks(); ++each)
      if (each != 1) members.push_back(static_cast<float>(each));
    int place = -1;
    EXPECT_EQ(ncclCommUserRank(rest, &place), ncclSuccess);
    EXPECT_EQ(place, number == 0 ? 0 : number - 1);
    const float* mine = rank.memory(std::vector<float>(1, static_cast<float>(number)));
    float* all = rank.memory(std::vector<float>(members.size()));
    EXPECT_EQ(ncclAllGather(mine, all, 1, ncclFloat32, rest, rank.stream), ncclSuccess);
    EXPECT_EQ(rank.read(all, members.size()), members);
    EXPECT_EQ(ncclCommDestroy(rest), ncclSuccess);
    rank.barrier();
  });
}

// Like NCCL, calls of one communicator on several streams run in call order.
TEST_P(NcclEmulator, KeepsTheCallOrderOfACommunicatorAcrossStreams) {
  run([](Lobby& lobby, int number) {
    TestRank rank(lobby, number, ranks());
    cudaStream_t other = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    float* small = rank.memory(std::vector<float>(10, 1.0f));
    float* large = rank.memory(std::vector<float>(20'000, 1.0f));
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(rank.all_reduce(large, 20'000), ncclSuccess);
      ASSERT_EQ(ncclAllReduce(small, small, 10, ncclFloat32, ncclMax, rank.comm, other), ncclSuccess);
    }
    EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    EXPECT_EQ(rank.synchronize(), cudaSuccess);
    EXPECT_EQ(rank.async_error(), ncclSuccess);
    EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  });
}

}  // namespace
}  // namespace lockstep
