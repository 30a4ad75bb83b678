// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "core/error.h"
#include "core/system/processors.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/element.h"
#include "kernels/functors.h"

namespace lockstep {
namespace {

// An exponent of all ones is infinity or NaN. Tested in integers, so that floating-point compiler options
// cannot remove the test.
std::uint32_t not_finite(float value) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  return (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1u : 0u;
}
std::uint32_t not_finite(Half value) { return (value.bits & 0x7c00u) == 0x7c00u ? 1u : 0u; }
std::uint32_t not_finite(BFloat16 value) { return (value.bits & 0x7f80u) == 0x7f80u ? 1u : 0u; }

template <typename T>
void run_dropout(const DropoutArguments& a) {
  const auto* x = static_cast<const T*>(a.x);
  auto* y = static_cast<T*>(a.y);
  const Dropout dropout = Dropout::from(a);
  const std::int64_t blocks = (a.features + 3) / 4;
  const int threads = threads_for(a.batch * a.features);
  deal(a.batch, threads, [&](std::int64_t sample) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      const PhiloxCounter words = dropout.words(a.samples[sample], static_cast<std::uint32_t>(block));
      const std::int64_t first = sample * a.features + 4 * block;
      const std::int64_t count = std::min<std::int64_t>(4, a.features - 4 * block);
      for (std::int64_t k = 0; k < count; ++k) {
        y[first + k] =
            static_cast<T>(dropout(static_cast<float>(x[first + k]), words[static_cast<std::size_t>(k)]));
      }
    }
  });
}

double squares_of(const float* values, std::int64_t count) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < count; ++i) sum += double{values[i]} * double{values[i]};
    return sum;
  });
}

template <typename Half>
double squares_of(const Half* values, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<double>(static_cast<float>(values[i]));
    sum += value * value;
  }
  return sum;
}

std::int32_t magnitude_bits(float value) { return std::bit_cast<std::int32_t>(value) & 0x7fffffff; }

void find_largest(const LargestMagnitude& a) {
  std::atomic<std::int32_t> largest = 0;
  with_element(a.type, [&](auto element) {
    const auto* values = static_cast<const typename decltype(element)::type*>(a.values);
    in_spans(a.count, [&largest, values](std::int64_t begin, std::int64_t count) {
      std::int32_t here = 0;
#pragma omp simd reduction(max : here)
      for (std::int64_t i = begin; i < begin + count; ++i) {
        const std::int32_t bits = magnitude_bits(static_cast<float>(values[i]));
        here = here > bits ? here : bits;
      }
      std::int32_t before = largest.load(std::memory_order_relaxed);
      while (before < here && !largest.compare_exchange_weak(before, here, std::memory_order_relaxed)) {
      }
    });
  });
  *a.largest = largest;
}

// Each part is the sum over one contiguous range.
void add_squares(const SquareSum& a) {
  const std::int64_t share = (a.count + kSquareSums - 1) / kSquareSums;
  const int threads = threads_for(a.count);
  with_element(a.type, [&](auto element) {
    const auto* values = static_cast<const typename decltype(element)::type*>(a.values);
    deal(kSquareSums, threads, [&](std::int64_t part) {
      const std::int64_t begin = std::min(a.count, part * share);
      const double sum = squares_of(values + begin, std::min(share, a.count - begin));
      a.sums[part] = a.write == Write::accumulate ? a.sums[part] + sum : sum;
    });
  });
}

}  // namespace

void cpu_add(const Addition& a) {
  in_spans(a.count, [&](std::int64_t begin, std::int64_t count) {
    add_span({.type = a.type,
              .count = count,
              .a = element_at(a.a, a.type, begin),
              .b = element_at(a.b, a.type, begin),
              .sum = element_at(a.sum, a.type, begin)});
  });
}

void cpu_sum_into(const SumInto& a) {
  in_spans(a.count, [&](std::int64_t begin, std::int64_t count) {
    sum_into_span(
        {.type = a.type, .count = count, .from = a.from + begin, .to = element_at(a.to, a.type, begin)});
  });
}

void cpu_cast(const Cast& a) {
  in_spans(a.count, [&](std::int64_t begin, std::int64_t count) {
    cast_span({.count = count,
               .from_type = a.from_type,
               .to_type = a.to_type,
               .from = element_at(a.from, a.from_type, begin),
               .to = element_at(a.to, a.to_type, begin),
               .factor = a.factor,
               .write = a.write});
  });
}

void cpu_check_finite(const FiniteCheck& a) {
  std::atomic<std::uint32_t> found = 0;
  with_element(a.type, [&](auto element) {
    const auto* values = static_cast<const typename decltype(element)::type*>(a.values);
    in_spans(a.count, [&found, values](std::int64_t begin, std::int64_t count) {
      std::uint32_t here = 0;
#pragma omp simd reduction(| : here)
      for (std::int64_t i = begin; i < begin + count; ++i) here |= not_finite(values[i]);
      if (here != 0) found.store(1, std::memory_order_relaxed);
    });
  });
  if (found != 0) {
    *a.finite = 0;
  } else if (a.write == Write::overwrite) {
    *a.finite = 1;
  }
}

void cpu_activate(const ActivationForward& a) {
  in_spans(a.count, [&a](std::int64_t begin, std::int64_t count) {
    activation_forward_span({.activation = a.activation,
                             .type = a.type,
                             .count = count,
                             .x = element_at(a.x, a.type, begin),
                             .y = element_at(a.y, a.type, begin)});
  });
}

void CpuBackend::activation_forward(Stream& stream, const ActivationForward& arguments) {
  in_order(stream, [a = arguments] { cpu_activate(a); });
}

void CpuBackend::activation_backward(Stream& stream, const ActivationBackward& arguments) {
  in_order(stream, [a = arguments] {
    in_spans(a.count, [&a](std::int64_t begin, std::int64_t count) {
      activation_backward_span({.activation = a.activation,
                                .type = a.type,
                                .count = count,
                                .y = element_at(a.y, a.type, begin),
                                .y_gradient = element_at(a.y_gradient, a.type, begin),
                                .x_gradient = element_at(a.x_gradient, a.type, begin)});
    });
  });
}

void CpuBackend::scale(Stream& stream, const Scaling& arguments) {
  in_order(stream, [a = arguments] {
    in_spans(a.count, [&a](std::int64_t begin, std::int64_t count) {
      scale_span({.type = a.type,
                  .count = count,
                  .factor = a.factor,
                  .values = element_at(a.values, a.type, begin)});
    });
  });
}

void CpuBackend::add(Stream& stream, const Addition& arguments) {
  in_order(stream, [arguments] { cpu_add(arguments); });
}

void CpuBackend::cast(Stream& stream, const Cast& arguments) {
  in_order(stream, [arguments] { cpu_cast(arguments); });
}

void CpuBackend::largest_magnitude(Stream& stream, const LargestMagnitude& arguments) {
  in_order(stream, [arguments] { find_largest(arguments); });
}

void CpuBackend::half_scale(Stream& stream, const HalfScale& arguments) {
  in_order(stream, [arguments] { choose_half_scale(arguments); });
}

void CpuBackend::all_finite(Stream& stream, const FiniteCheck& arguments) {
  in_order(stream, [arguments] { cpu_check_finite(arguments); });
}

void CpuBackend::sum_squares(Stream& stream, const SquareSum& arguments) {
  in_order(stream, [arguments] { add_squares(arguments); });
}

void CpuBackend::dropout(Stream&, const DropoutArguments& a) {
  CHECK(a.probability >= 0 && a.probability < 1, "dropout probability {}, expected at least 0 and below 1",
        a.probability);
  with_element(a.type, [&](auto element) { run_dropout<typename decltype(element)::type>(a); });
}

}  // namespace lockstep
