// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/deal.h"

#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/random.h"
#include "core/tensor/buffer.h"
#include "kernels/cpu/winograd.h"
#include "tests/kernels/kept_threads.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

TEST(Deal, RunsEveryPieceOnceOnThreadsBelowTheBound) {
  for (const int threads : {1, 2, 3, 70}) {
    for (const std::int64_t pieces : {0, 1, 2, 3, 69, 70, 1000}) {
      std::vector<std::atomic<int>> done(static_cast<std::size_t>(pieces));
      std::atomic<int> beyond = 0;
      deal(pieces, threads, [&](std::int64_t piece) {
        ++done[static_cast<std::size_t>(piece)];
        if (omp_get_thread_num() >= threads) ++beyond;
      });
      for (std::int64_t i = 0; i < pieces; ++i)
        EXPECT_EQ(done[static_cast<std::size_t>(i)], 1) << "piece " << i << " of " << pieces;
      EXPECT_EQ(beyond, 0) << threads << " threads";
    }
  }
}

// The threads of a team of four, by their numbers in the system.
std::set<pid_t> team_of_four() {
  std::set<pid_t> threads;
#pragma omp parallel num_threads(4)
  {
    const pid_t thread = gettid();
#pragma omp critical
    threads.insert(thread);
  }
  return threads;
}

// Creating a thread takes longer than many a piece.
TEST(Deal, FewPiecesEndNoThread) {
  const std::set<pid_t> before = team_of_four();
  deal(2, 4, [](std::int64_t) {});
  EXPECT_EQ(team_of_four(), before);
}

// A thread whose core another process takes is suspended in its first piece.
TEST(Deal, ASuspendedThreadDelaysOnlyItsCurrentPiece) {
  constexpr std::int64_t kPieces = 64;
  std::atomic<std::int64_t> others = 0;
  std::int64_t meanwhile = 0;
  deal(kPieces, 2, [&](std::int64_t piece) {
    if (piece > 0) {
      ++others;
      return;
    }
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (others < kPieces - 1 && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
    meanwhile = others;
  });
  EXPECT_EQ(meanwhile, kPieces - 1);
}

// With more threads than cores, pieces go to different threads from run to run.
TEST(Deal, SumsKeepTheirOrderOnAnyThread) {
  const ConvolutionShape shape{.batch = 8,
                               .in_channels = 32,
                               .in_height = 20,
                               .in_width = 20,
                               .out_channels = 32,
                               .kernel = 3,
                               .padding = 1};
  if (!WinogradConvolution::supports(shape)) GTEST_SKIP() << "needs AVX2 or AVX-512";
  const KeptThreads kept;
  omp_set_num_threads(4);
  const WinogradConvolution convolution(shape, DType::f32);
  const Random random(1, "deal");
  std::vector<float> x(8 * 32 * 20 * 20), y_gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = random.uniform(2 * i) - 0.5f;
    y_gradient[i] = random.uniform(2 * i + 1) - 0.5f;
  }
  Buffer scratch(convolution.backward_weights_scratch_bytes(), Device{});
  std::vector<float> first(32 * 32 * 9), again(first.size());
  for (int run = 0; run < 50 / kOneOf; ++run) {
    convolution.backward_weights({.x = x.data(),
                                  .w = (run == 0 ? first : again).data(),
                                  .y = y_gradient.data(),
                                  .scratch = scratch.data()});
    if (run == 0) again = first;
    ASSERT_EQ(first, again) << "run " << run;
  }
}

}  // namespace
}  // namespace lockstep
