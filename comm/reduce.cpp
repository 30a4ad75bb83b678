// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/error.h"

namespace lockstep {
namespace {

// Elements accumulated at a time: two blocks of accumulators stay in the first-level cache.
constexpr std::size_t kBlock = 2048;

template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, std::int32_t>, std::int32_t, float>;

struct Sum {
  float operator()(float a, float b) const { return a + b; }
  std::int32_t operator()(std::int32_t a, std::int32_t b) const {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};

struct Max {
  float operator()(float a, float b) const { return b > a || b != b ? b : a; }
  std::int32_t operator()(std::int32_t a, std::int32_t b) const { return std::max(a, b); }
};

template <typename To, typename From>
void convert(To* __restrict to, const From* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
}

template <typename A, typename From, typename Op>
void accumulate(A* __restrict total, const From* __restrict from, std::size_t count, Op op) {
  for (std::size_t i = 0; i < count; ++i) total[i] = op(total[i], static_cast<A>(from[i]));
}

template <typename From, typename A, typename Op>
void reduce_group(std::span<const void* const> sources, std::size_t at, A* total, std::size_t count, Op op) {
  convert(total, static_cast<const From*>(sources[0]) + at, count);
  for (const void* source : sources.subspan(1)) {
    accumulate(total, static_cast<const From*>(source) + at, count, op);
  }
}

template <typename From, typename To, typename Op>
void reduce(std::span<const void* const> sources, std::span<void* const> destinations, std::size_t count,
            std::size_t group, Op op) {
  using A = Accumulator<From>;
  alignas(kAlignment) A total[kBlock];
  alignas(kAlignment) A partial[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t length = std::min(kBlock, count - at);
    reduce_group<From>(sources.first(group), at, total, length, op);
    for (std::size_t k = group; k < sources.size(); k += group) {
      reduce_group<From>(sources.subspan(k, group), at, partial, length, op);
      accumulate(total, partial, length, op);
    }
    for (void* destination : destinations) convert(static_cast<To*>(destination) + at, total, length);
  }
}

template <typename From, typename To>
void reduce(std::span<const void* const> sources, std::span<void* const> destinations, std::size_t count,
            std::size_t group, ReduceOp op) {
  if (op == ReduceOp::sum) return reduce<From, To>(sources, destinations, count, group, Sum{});
  reduce<From, To>(sources, destinations, count, group, Max{});
}

}  // namespace

bool reducible(DType dtype) { return dtype != DType::u8; }

DType accumulator_of(DType dtype) { return dtype == DType::i32 ? DType::i32 : DType::f32; }

void reduce_in_rank_order(std::span<const void* const> sources, std::span<void* const> destinations,
                          std::size_t count, const Reduction& reduction) {
  const std::size_t group = reduction.group == 0 ? sources.size() : reduction.group;
  CHECK(!sources.empty() && sources.size() % group == 0, "{} sources in groups of {}", sources.size(), group);
  const auto is = [&](DType from, DType to) { return reduction.from == from && reduction.to == to; };
  const auto run = [&]<typename From, typename To>() {
    reduce<From, To>(sources, destinations, count, group, reduction.op);
  };
  if (is(DType::f32, DType::f32)) return run.operator()<float, float>();
  if (is(DType::f32, DType::f16)) return run.operator()<float, Half>();
  if (is(DType::f32, DType::bf16)) return run.operator()<float, BFloat16>();
  if (is(DType::f16, DType::f16)) return run.operator()<Half, Half>();
  if (is(DType::f16, DType::f32)) return run.operator()<Half, float>();
  if (is(DType::bf16, DType::bf16)) return run.operator()<BFloat16, BFloat16>();
  if (is(DType::bf16, DType::f32)) return run.operator()<BFloat16, float>();
  CHECK(is(DType::i32, DType::i32), "no reduction from {} to {}", name_of(reduction.from),
        name_of(reduction.to));
  run.operator()<std::int32_t, std::int32_t>();
}

}  // namespace lockstep
