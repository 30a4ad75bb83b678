// SPDX-License-Identifier: Apache-2.0
//
// Compares the measured peak rate with the rates that kernels reach. It runs at every instruction set of the
// processor.
#include <algorithm>
#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "core/tensor/buffer.h"
#include "kernels/backend.h"
#include "kernels/kernel_choices.h"
#include "tests/kernels/kept_threads.h"

namespace lockstep {
namespace {

constexpr std::int64_t kImages = 8, kSide = 28, kChannels = 64;

// A convolution's forward and the products that it executes: without padding, each of them with a pixel.
struct PeakCase {
  const char* kernel;
  DType type;
  double operations;
};
constexpr double kDirect = 2.0 * kImages * (kSide - 2) * (kSide - 2) * 9 * kChannels * kChannels;
// 7 x 7 tiles of 4 x 4 outputs hold 26 x 26; 36 products each.
constexpr double kWinograd = 2.0 * kImages * 7 * 7 * 36 * kChannels * kChannels;

class MeasuredPeak : public testing::TestWithParam<PeakCase> {};

// An interrupted measurement is too low; it is repeated until the peak reaches the kernel's rate. At most two
// threads, because beside other programs many cores are never free at once.
TEST_P(MeasuredPeak, IsAtLeastWhatKernelsReach) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers slow our loops down, but not oneDNN's kernels";
#endif
  const PeakCase& tried = GetParam();
  Backend& backend = backend_for(Device{});
  const KeptThreads kept;
  backend.set_threads(static_cast<int>(std::min<std::int64_t>(2, backend.batch_multiple(tried.type))));
  const auto planned = [&](std::int64_t padding, const Layout& input) {
    KernelChoices choices(ChooseBy::name, tried.kernel);
    return backend.convolution({.batch = kImages,
                                .in_channels = kChannels,
                                .in_height = kSide,
                                .in_width = kSide,
                                .out_channels = kChannels,
                                .kernel = 3,
                                .padding = padding,
                                .bias = false},
                               input, choices);
  };
  // The input has the layout that a convolution before this one would give it.
  const auto before = planned(1, Layout({kImages, kChannels, kSide, kSide}, tried.type));
  const auto kernel = planned(0, before->output());
  if (kernel->choice(AffineDirection::forward) != tried.kernel)
    GTEST_SKIP() << "this processor has no " << tried.kernel;
  const Buffer x(kernel->input().bytes(), Device{}), w(kernel->weights().bytes(), Device{}),
      y(kernel->output().bytes(), Device{}),
      scratch(std::max<std::size_t>(kernel->scratch_bytes(), 1), Device{});
  Stream stream(Device{}, StreamUse::compute);
  double reached = 0, peak = 0;
  for (int turn = 0; turn < 200 && (turn < 3 || peak < reached); ++turn) {
    if (turn < 3) {
      const auto begin = std::chrono::steady_clock::now();
      kernel->forward(stream, x.data(), w.data(), nullptr, y.data(), scratch.data());
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      reached = std::max(reached, tried.operations / seconds * 1e-9);
    }
    peak = std::max(peak, backend.measure_gigaflops(tried.type, false));
  }
  EXPECT_GE(peak, reached) << "GFLOP/s";
  EXPECT_GT(reached, 0);
}

INSTANTIATE_TEST_SUITE_P(Convolution, MeasuredPeak,
                         testing::Values(PeakCase{"direct", DType::f32, kDirect},
                                         PeakCase{"direct bf16", DType::bf16, kDirect},
                                         PeakCase{"tiled winograd", DType::f32, kWinograd},
                                         PeakCase{"tiled winograd", DType::bf16, kWinograd}),
                         [](const testing::TestParamInfo<PeakCase>& tested) {
                           std::string name = tested.param.kernel;
                           std::ranges::replace(name, ' ', '_');
                           return name + "_of_" + std::string(name_of(tested.param.type));
                         });

}  // namespace
}  // namespace lockstep
