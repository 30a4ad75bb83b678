// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include <omp.h>

#include "core/processors.h"
#include "kernels/cpu/backend.h"

namespace lockstep {
namespace {

using Vector = float __attribute__((vector_size(64)));
constexpr int kChains = 12;          // independent sums: enough to hide the latency of a multiply-add
constexpr long kRounds = 1'000'000;  // about 2 ms
constexpr std::size_t kCopyBytes = std::size_t{128} << 20;
constexpr std::size_t kCopyBytesInBrief = std::size_t{64} << 20;
constexpr int kRepeats = 5;

LOCKSTEP_FOR_EACH_PROCESSOR float multiply_add(long rounds) {
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

// The shortest of some runs of work(thread, threads) on the whole team, in seconds.
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

// Of a copy: bytes read and written.
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

// In fp32, whatever the type: what its own kernels reach differs from processor to processor.
double CpuBackend::measure_gigaflops(DType, bool) {
  const int threads = omp_get_max_threads();
  std::vector<float> results(static_cast<std::size_t>(threads) *
                             16);  // a cache line each; keeps the work alive
  const double seconds = shortest(
      [&](int thread, int) { results[static_cast<std::size_t>(thread) * 16] = multiply_add(kRounds); });
  return threads * 2.0 * 16 * kChains * static_cast<double>(kRounds) / seconds * 1e-9;
}

double CpuBackend::measure_gigabytes_per_second() { return copied_per_second(kCopyBytesInBrief); }

Peak CpuBackend::measure_peak() {
  return {.gigaflops = measure_gigaflops(DType::f32, false),
          .gigabytes_per_second = copied_per_second(kCopyBytes)};
}

}  // namespace lockstep
