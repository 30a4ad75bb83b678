// SPDX-License-Identifier: Apache-2.0
//
// Measures the processor's peak rates: multiply-adds on registers, in each form that a kernel may use, and a
// large copy.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include <omp.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/system/processors.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/lanes.h"

namespace lockstep {
namespace {

// Independent sums: enough to hide the latency of a multiply-add, few enough for the registers, of which x86
// has 16 without AVX-512 and Arm 32.
#if defined(__aarch64__)
constexpr int kChains = 24;
#else
constexpr int kChains = 12;
#endif
constexpr long kRounds = 1'000'000;   // about 2 ms
constexpr long kTileRounds = 50'000;  // about 2 ms
constexpr std::size_t kCopyBytes = std::size_t{128} << 20;
constexpr std::size_t kCopyBytesInBrief = std::size_t{64} << 20;
constexpr int kRepeats = 5;

// W: floats per register of the processor. With a larger W a sum takes several registers, and sums spill.
template <int W>
LOCKSTEP_LANES_INLINE float multiply_add() {
  using Vector = typename Lanes<W>::Float;
  Vector sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = Vector{} + static_cast<float>(i);
  const Vector factor = Vector{} + 0.999f;
  for (long round = 0; round < kRounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * factor + factor;
  }
  Vector total{};
  for (const Vector& sum : sums) total += sum;
  return total[0];
}

#if defined(__x86_64__)
// Sums of products of bf16 pairs.
constexpr double kPairOperations = 4.0 * 16 * kChains * kRounds;
__attribute__((target("avx512f,avx512bf16"))) float multiply_add_pairs() {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const auto factor = (__m512bh)_mm512_set1_epi16(0x3f00);  // 0.5
  for (long round = 0; round < kRounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
  }
  __m512 total = sums[0];
  for (int i = 1; i < kChains; ++i) total += sums[i];
  return total[0];
}

// AMX's configuration of tile registers (Intel's manual of instruction set extensions, "Palette 1").
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;
constexpr int kTileChains = 6;  // two of the eight tiles are operands
constexpr double kTileOperations = 2.0 * kTileRows * 32 * 16 * kTileChains * kTileRounds;

// Products of bf16 tiles: 16 x 32 by 32 x 16.
__attribute__((target("amx-tile,amx-bf16"))) float multiply_add_tiles() {
  TileShapes shapes;
  for (int tile = 0; tile < kTileChains + 2; ++tile) {
    shapes.row_bytes[tile] = kTileRowBytes;
    shapes.rows[tile] = kTileRows;
  }
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (long round = 0; round < kTileRounds; ++round) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  float result[kTileRows * kTileRowBytes / sizeof(float)];
  _tile_stored(0, result, kTileRowBytes);
  _tile_release();
  return result[0];
}
#endif

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

// The rate of work() on every thread of the team, which computes `operations` and returns a number that
// depends on them, in 10^9 operations per second.
template <typename Work>
double rate_of(double operations, Work work) {
  const int threads = omp_get_max_threads();
  constexpr std::size_t kFloatsPerLine = 16;  // of the cache
  std::vector<float> results(static_cast<std::size_t>(threads) * kFloatsPerLine);
  const double seconds =
      shortest([&](int thread, int) { results[static_cast<std::size_t>(thread) * kFloatsPerLine] = work(); });
  return threads * operations / seconds * 1e-9;
}

template <InstructionSet set>
double multiply_add_rate() {
  constexpr int kWidth = register_floats(set);
  return rate_of(2.0 * kWidth * kChains * kRounds, [] {
    return run_compiled_for<set>([]() LOCKSTEP_PROCESSOR_BODY { return multiply_add<kWidth>(); });
  });
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

// Half operands of type fp16 are computed in fp32; see kernels/README.md, "Numerics".
double CpuBackend::measure_gigaflops(DType type, bool) {
  // The larger of the sets of our loops and of oneDNN's kernels.
  const InstructionSet set = std::max(instruction_set(), onednn_instruction_set());
  double best = set == InstructionSet::avx512 ? multiply_add_rate<InstructionSet::avx512>()
                : set == InstructionSet::avx2 ? multiply_add_rate<InstructionSet::avx2>()
                                              : multiply_add_rate<InstructionSet::baseline>();
#if defined(__x86_64__)
  if (type == DType::bf16 && onednn_has(dnnl::cpu_isa::avx512_core_bf16))
    best = std::max(best, rate_of(kPairOperations, multiply_add_pairs));
  if (type == DType::bf16 && onednn_has(dnnl::cpu_isa::avx512_core_amx))
    best = std::max(best, rate_of(kTileOperations, multiply_add_tiles));
#endif
  return best;
}

double CpuBackend::measure_gigabytes_per_second() { return copied_per_second(kCopyBytesInBrief); }

Peak CpuBackend::measure_peak() {
  return {.gigaflops = measure_gigaflops(DType::f32, false),
          .bf16_gigaflops = measure_gigaflops(DType::bf16, false),
          .gigabytes_per_second = copied_per_second(kCopyBytes)};
}

}  // namespace lockstep
