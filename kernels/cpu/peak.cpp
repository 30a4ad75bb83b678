// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include <omp.h>

#include "core/system/processors.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/lanes.h"

namespace lockstep {
namespace {

// Independent sums: enough to hide the latency of a multiply-add, few enough for 16 registers.
constexpr int kChains = 12;
constexpr long kRounds = 1'000'000;  // about 2 ms
constexpr std::size_t kCopyBytes = std::size_t{128} << 20;
constexpr std::size_t kCopyBytesInBrief = std::size_t{64} << 20;
constexpr int kRepeats = 5;

// W: floats per register of the processor. With a larger W a sum takes several registers, and sums spill.
template <int W>
LOCKSTEP_LANES_INLINE float multiply_add(long rounds) {
  using Vector = typename Lanes<W>::Float;
  Vector sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = Vector{} + static_cast<float>(i);
  const Vector factor = Vector{} + 0.999f;
  for (long round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * factor + factor;
  }
  Vector total{};
  for (const Vector& sum : sums) total += sum;
  return total[0];
}

float multiply_add(int width, long rounds) {
  return for_this_processor([=]() LOCKSTEP_PROCESSOR_BODY {
    if (width == 16) return multiply_add<16>(rounds);
    return width == 8 ? multiply_add<8>(rounds) : multiply_add<4>(rounds);
  });
}

// The shortest of kRepeats runs of work(thread, threads) on the whole team, in seconds.
template <typename Work>
double shortest(Work work) {
  double best = 1e30;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
#pragma omp parallel
    work(omp_get_thread_num(), omp_get_num_threads());
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

// The rate of a copy in 10^9 bytes per second, counting bytes read and written.
double copied_per_second(std::size_t bytes) {
  std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes, 2);
  const double copying = shortest([&](int thread, int team) {
    const std::size_t share = bytes / static_cast<std::size_t>(team);
    const std::size_t offset = share * static_cast<std::size_t>(thread);
    std::memcpy(to.data() + offset, from.data() + offset, share);
  });
  return 2.0 * static_cast<double>(bytes) / copying * 1e-9;
}

}  // namespace

// Measures fp32 for every type: the rate of half kernels differs between processors.
double CpuBackend::measure_gigaflops(DType, bool) {
  const int threads = omp_get_max_threads();
  const int width = register_floats(instruction_set());
  std::vector<float> results(static_cast<std::size_t>(threads) *
                             16);  // a cache line each; keeps the work alive
  const double seconds = shortest([&](int thread, int) {
    results[static_cast<std::size_t>(thread) * 16] = multiply_add(width, kRounds);
  });
  return threads * 2.0 * width * kChains * static_cast<double>(kRounds) / seconds * 1e-9;
}

double CpuBackend::measure_gigabytes_per_second() { return copied_per_second(kCopyBytesInBrief); }

Peak CpuBackend::measure_peak() {
  return {.gigaflops = measure_gigaflops(DType::f32, false),
          .gigabytes_per_second = copied_per_second(kCopyBytes)};
}

}  // namespace lockstep
