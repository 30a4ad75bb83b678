// SPDX-License-Identifier: Apache-2.0
//
// Numbers are computed in vectors and checked one by one only in blocks that contain a number above the
// threshold, which are few.
#include <algorithm>
#include <array>

#include "core/system/processors.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/lanes.h"
#include "kernels/sparse_functors.h"

#define INLINE LOCKSTEP_LANES_INLINE

namespace lockstep {
namespace {

using Wide = Lanes<16>::Float;
using Words = Lanes<16>::Word;
constexpr std::int64_t kWide = 16;
constexpr std::int64_t kBlock = 4 * kWide;

// Computes the numbers from i on, one per lane of V.
struct Maker {
  explicit Maker(const SparseNumbers& from) : numbers(from), make(MakeSparseNumber::from(from)) {}

  template <typename V>
  INLINE SparseNumber<V> at(std::int64_t i) const {
    const V gradient = load<V>(numbers.gradient + i);
    const V residual = numbers.residual == nullptr ? V{} : load<V>(numbers.residual + i);
    if (numbers.velocity == nullptr) return {make(gradient, residual), V{}};
    return make(gradient, residual, load<V>(numbers.velocity + i));
  }

  SparseNumbers numbers;
  MakeSparseNumber make;
};

void count_sizes(const SparseNumbers& numbers, const SparseSample& sample, const SparseStage* stage,
                 std::uint32_t* bins) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    const Maker maker(numbers);
    const std::int64_t stretches = sample.stretches();
    for (std::int64_t stretch = 0; stretch < stretches; ++stretch) {
      const std::int64_t begin = sample.begin(stretch), end = sample.end(stretch);
      float values[kWide];
      if (end - begin == kWide) {
        store(values, maker.at<Wide>(begin).value);
      } else {
        for (std::int64_t i = begin; i < end; ++i) values[i - begin] = maker.at<float>(i).value;
      }
      for (std::int64_t i = 0; i < end - begin; ++i) {
        const int bin = sparse_bin(sparse_size(values[i]), stage);
        if (bin >= 0) ++bins[bin];
      }
    }
  });
}

void find_threshold(const SparseThreshold& a) {
  const SparseSample sample = SparseSample::of(a.numbers.count, a.kept);
  std::array<std::uint32_t, kSparseBins> bins = {};
  count_sizes(a.numbers, sample, nullptr, bins.data());
  const SparseStage coarse = sparse_reached(bins.data(), sample, a.kept, 0);
  bins = {};
  count_sizes(a.numbers, sample, &coarse, bins.data());
  *a.threshold = sparse_threshold(coarse, sparse_reached(bins.data(), sample, a.kept, coarse.above));
}

struct Selected {
  std::uint32_t* words;  // the message's entries
  std::int64_t count = 0;
  std::uint32_t largest = 0;
};

// Selects the numbers of a computed block that reach the threshold.
INLINE void select_block(const SparseSelection& a, const MakeSparseNumber& make, std::int64_t begin,
                         std::int64_t count, float* numbers, Selected& selected) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t size = sparse_size(numbers[i]);
    selected.largest = std::max(selected.largest, size);
    if (size < *a.threshold || selected.count == a.capacity) continue;
    const SparseWord sent = SparseWord::of(numbers[i], begin + i);
    selected.words[selected.count++] = sent.bits;
    if (a.next_residual != nullptr) a.next_residual[begin + i] = make.kept(numbers[i] - sent.value());
    if (a.next_velocity != nullptr) a.next_velocity[begin + i] *= a.kept_velocity;
  }
}

// Computes numbers from begin + i on, stores them, next_residual and next_velocity, and returns their sizes.
template <typename V>
INLINE auto make_numbers(const SparseSelection& a, const Maker& maker, std::int64_t begin, std::int64_t i,
                         float* numbers) {
  const SparseNumber<V> made = maker.at<V>(begin + i);
  store(numbers + i, made.value);
  if (a.next_residual != nullptr) store(a.next_residual + begin + i, maker.make.kept(made.value));
  if (a.next_velocity != nullptr) store(a.next_velocity + begin + i, made.velocity);
  return same_bits<typename LanesOf<V>::Word>(made.value) & 0x7fffffffu;
}

void select_numbers(const SparseSelection& a) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    const Maker maker(a.numbers);
    const std::uint32_t threshold = *a.threshold;
    const SparseMessage shape{.count = a.numbers.count, .capacity = a.capacity};
    Selected selected{.words = a.message + shape.heads()};
    const auto head = [&](std::int64_t page) {
      a.message[page] = static_cast<std::uint32_t>(selected.count);
    };
    float numbers[kBlock];
    std::int64_t begin = 0;
    for (; begin + kBlock <= a.numbers.count; begin += kBlock) {
      if (begin % SparseMessage::kPage == 0) head(begin / SparseMessage::kPage);
      Words largest = {};
      for (std::int64_t i = 0; i < kBlock; i += kWide) {
        const Words sizes = make_numbers<Wide>(a, maker, begin, i, numbers);
        largest = sizes > largest ? sizes : largest;
      }
      std::uint32_t lanes[kWide], here = 0;
      store(lanes, largest);
      for (std::int64_t i = 0; i < kWide; ++i) here = std::max(here, lanes[i]);
      if (here >= threshold) select_block(a, maker.make, begin, kBlock, numbers, selected);
    }
    const std::int64_t rest = a.numbers.count - begin;
    if (begin % SparseMessage::kPage == 0) head(begin / SparseMessage::kPage);
    for (std::int64_t i = 0; i < rest; ++i) make_numbers<float>(a, maker, begin, i, numbers);
    select_block(a, maker.make, begin, rest, numbers, selected);
    head(shape.pages());
    std::fill(selected.words + selected.count, selected.words + a.capacity, 0u);
    if (selected.largest >= kSparseNotFinite)
      selected.words[0] = SparseWord{selected.words[0]}.spoiled().bits;
  });
}

void clip(const SparseClip& a) {
  const float factor = a.loss_scale == nullptr ? 1.0f : 1.0f / *a.loss_scale;
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < a.count; ++i) {
    const auto value = static_cast<double>(a.gradient[i] * factor);
    sum += value * value;
  }
  *a.clip = clip_factor(sum, a.most);
}

void add_up(const SparseSum& a) {
  const float scale = a.loss_scale == nullptr ? 1.0f : *a.loss_scale;
  std::fill(a.sums, a.sums + a.shape.count, 0.0f);
  for (std::int32_t rank = 0; rank < a.ranks; ++rank) {
    const std::uint32_t* heads = a.messages + rank * a.stride;
    const std::uint32_t* words = heads + a.shape.heads();
    for (std::int64_t page = 0; page < a.shape.pages(); ++page) {
      float* sums = a.sums + page * SparseMessage::kPage;
      for (std::uint32_t i = heads[page]; i < heads[page + 1]; ++i) {
        const SparseWord word{words[i]};
        sums[word.place_in_page()] += scale * word.value();
      }
    }
  }
}

}  // namespace

void CpuBackend::sparse_clip(Stream& stream, const SparseClip& arguments) {
  in_order(stream, [arguments] { clip(arguments); });
}

void CpuBackend::sparse_threshold(Stream& stream, const SparseThreshold& arguments) {
  in_order(stream, [arguments] { find_threshold(arguments); });
}

void CpuBackend::sparse_select(Stream& stream, const SparseSelection& arguments) {
  in_order(stream, [arguments] { select_numbers(arguments); });
}

void CpuBackend::sparse_sum(Stream& stream, const SparseSum& arguments) {
  in_order(stream, [arguments] { add_up(arguments); });
}

}  // namespace lockstep
