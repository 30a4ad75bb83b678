// SPDX-License-Identifier: Apache-2.0
//
// The tuner and the profiler that Lockstep brings for NCCL, called by the emulated one.
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "comm/nccl/kernel_times.h"
#include "comm/nccl/tuner.h"
#include "tests/cuda_emulator/nccl_ranks.h"
#include "tests/cuda_emulator/runtime/runtime.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

const Settings kTuner = {"NCCL_TUNER_PLUGIN=STATIC_PLUGIN"};
const Settings kProfiler = {"NCCL_PROFILER_PLUGIN=STATIC_PLUGIN"};

// The blocks of rank 0's all-reduce, which waits for rank 1.
std::size_t blocks_of_waiting_sum(TestRank& rank, float* data, std::size_t count) {
  std::size_t blocks = 0;
  if (rank.rank == 0) {
    EXPECT_EQ(rank.all_reduce(data, count), ncclSuccess);
    while ((blocks = emulator::resident_blocks(0)) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  rank.barrier();
  if (rank.rank == 1) {
    EXPECT_EQ(rank.all_reduce(data, count), ncclSuccess);
  }
  EXPECT_EQ(rank.synchronize(), cudaSuccess);
  return blocks;
}

TEST(NcclTuner, LimitsTheBlocksOfLargeSums) {
  for (const bool loaded : {true, false}) {
    run_ranks(2, {.settings = loaded ? kTuner : Settings{}}, [&](Lobby& lobby, int number) {
      TestRank rank(lobby, number, 2);
      EXPECT_EQ(take_tuner_use(), loaded);
      EXPECT_FALSE(take_tuner_use());
      constexpr std::size_t kCount = 100'000;
      float* const data = rank.memory(std::vector<float>(kCount, 1.0f));
      const std::size_t own = blocks_of_waiting_sum(rank, data, kCount);
      const CtaLimit limit(1);
      const std::size_t limited = blocks_of_waiting_sum(rank, data, kCount);
      if (number != 0) return;
      EXPECT_EQ(own, 2u);
      EXPECT_EQ(limited, loaded ? 1u : 2u);
    });
  }
}

TEST(NcclTuner, DoesNotRaiseTheBlocksOfSmallSums) {
  EXPECT_EQ(limited_ctas(1, 8), 1);
  EXPECT_EQ(limited_ctas(4 * 32768 - 1, 8), 3);
  EXPECT_EQ(limited_ctas(std::size_t{1} << 30, 8), 8);
}

constexpr int kAlgorithms = 7, kProtocols = 3;

// The tuner's number for a sum of 1 MiB, if NCCL would take this algorithm; 0: NCCL's own choice.
int chosen(int algorithm) {
  std::array<float, kAlgorithms * kProtocols> costs;
  costs.fill(-1);
  costs[0] = costs[kProtocols] = 5;  // a tree and a ring
  costs[static_cast<std::size_t>(algorithm * kProtocols + 2)] = 4;
  int channels = 0;
  EXPECT_EQ(ncclTunerPlugin_v5.choose(nullptr, 4, 1 << 20, 1, reinterpret_cast<float**>(costs.data()),
                                      kAlgorithms, kProtocols, 0, &channels),
            ncclSuccess);
  return channels;
}

TEST(NcclTuner, LimitEndsWithItsScope) {
  EXPECT_EQ(chosen(1), 0);
  {
    const CtaLimit limit(4);
    EXPECT_EQ(chosen(1), 4);
    {
      const CtaLimit none(0);
      EXPECT_EQ(chosen(1), 0);
    }
    EXPECT_EQ(chosen(1), 4);
  }
  EXPECT_EQ(chosen(1), 0);
}

// NCCL does not check a tuner's number for the others: networks that add, and the NVLink switch.
TEST(NcclTuner, LimitsRingsAndTreesOnly) {
  const CtaLimit limit(4);
  for (int algorithm = 0; algorithm < kAlgorithms; ++algorithm)
    EXPECT_EQ(chosen(algorithm), algorithm < 2 ? 4 : 0) << algorithm;
}

struct Told {
  std::uint64_t sequence;
  KernelTimes::Moment moment;
  bool operator==(const Told&) const = default;
};

// A communicator of this rank whose kernels are reported.
class ProfiledRank {
 public:
  explicit ProfiledRank(Lobby& lobby, int number) {
    const KernelTimes::Scope scope(times);
    rank.emplace(lobby, number, 2);
    times->listen([this](std::uint64_t sequence, KernelTimes::Moment moment) {
      told.push_back({.sequence = sequence, .moment = moment});
    });
  }

  std::vector<Told> told;
  std::shared_ptr<KernelTimes> times = std::make_shared<KernelTimes>();
  std::optional<TestRank> rank;
};

constexpr std::size_t kCount = 100'000;

Collective sum_of(float* data, std::uint64_t sequence) {
  return {.kind = CollectiveKind::all_reduce,
          .dtype = DType::f32,
          .recv = data,
          .count = kCount,
          .sequence = sequence};
}

TEST(NcclProfiler, ReportsKernelsInOrder) {
  run_ranks(2, {.settings = kProfiler}, [](Lobby& lobby, int number) {
    ProfiledRank profiled(lobby, number);
    EXPECT_TRUE(profiled.times->used());
    float* const data = profiled.rank->memory(std::vector<float>(2 * kCount, 1.0f));
    for (std::uint64_t sequence : {1, 2, 3}) {
      float* const part = sequence == 2 ? data + kCount : data;
      profiled.times->expect(sum_of(part, sequence));
      EXPECT_EQ(profiled.rank->all_reduce(part, kCount), ncclSuccess);
    }
    EXPECT_EQ(profiled.rank->synchronize(), cudaSuccess);
    using enum KernelTimes::Moment;
    EXPECT_EQ(profiled.told,
              (std::vector<Told>{{1, began}, {1, ended}, {2, began}, {2, ended}, {3, began}, {3, ended}}));
    const auto sums = profiled.times->sums();
    ASSERT_EQ(sums.size(), 1u);
    const auto& [way, sum] = *sums.begin();
    EXPECT_EQ(way, (KernelTimes::Way{.kind = CollectiveKind::all_reduce,
                                     .bytes = 4 * kCount,
                                     .algorithm = "RING",
                                     .protocol = "SIMPLE",
                                     .ctas = 2}));
    EXPECT_EQ(sum.times, 3);
    EXPECT_GT(sum.least, 0);
    EXPECT_GE(sum.most, sum.least);
    EXPECT_GE(sum.seconds, 3 * sum.least);
    EXPECT_EQ(profiled.times->describe_running(), "");
  });
}

TEST(NcclProfiler, ForgetsCollectivesThatNcclDidNotReport) {
  run_ranks(2, {.settings = kProfiler}, [](Lobby& lobby, int number) {
    ProfiledRank profiled(lobby, number);
    float* const data = profiled.rank->memory(std::vector<float>(2 * kCount, 1.0f));
    profiled.times->expect(sum_of(data + kCount, 6));
    profiled.times->expect(sum_of(data, 7));
    EXPECT_EQ(profiled.rank->all_reduce(data, kCount), ncclSuccess);
    EXPECT_EQ(profiled.rank->all_reduce(data + kCount, kCount), ncclSuccess);  // not expected any more
    EXPECT_EQ(profiled.rank->synchronize(), cudaSuccess);
    using enum KernelTimes::Moment;
    EXPECT_EQ(profiled.told, (std::vector<Told>{{7, began}, {7, ended}}));
  });
}

TEST(NcclProfiler, DescribesAKernelThatWaitsForItsPeer) {
  run_ranks(2, {.settings = kProfiler}, [](Lobby& lobby, int number) {
    ProfiledRank profiled(lobby, number);
    float* const data = profiled.rank->memory(std::vector<float>(kCount, 1.0f));
    profiled.times->expect(sum_of(data, 5));
    if (number == 0) {
      EXPECT_EQ(profiled.rank->all_reduce(data, kCount), ncclSuccess);
      std::string text;
      while ((text = profiled.times->describe_running()).empty())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      expect_parts(text, {"all_reduce 5", "0 of 2"});
    }
    profiled.rank->barrier();
    if (number == 1) {
      EXPECT_EQ(profiled.rank->all_reduce(data, kCount), ncclSuccess);
    }
    EXPECT_EQ(profiled.rank->synchronize(), cudaSuccess);
  });
}

TEST(NcclProfiler, IsNotUsedUnlessTheVariableNamesTheProgram) {
  run_ranks(2, {.settings = {"NCCL_PROFILER_PLUGIN=none"}}, [](Lobby& lobby, int number) {
    ProfiledRank profiled(lobby, number);
    EXPECT_FALSE(profiled.times->used());
  });
}

}  // namespace
}  // namespace lockstep
