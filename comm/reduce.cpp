// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/error.h"
#include "core/processors.h"
#include "kernels/cpu/lanes.h"

#define INLINE LOCKSTEP_LANES_INLINE

namespace lockstep {
namespace {

// Elements accumulated at a time: two blocks of accumulators stay in the first-level cache.
constexpr std::size_t kBlock = 2048;

template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, std::int32_t>, std::int32_t, float>;

struct Sum {
  template <typename V>
  INLINE V operator()(const V& a, const V& b) const {
    return a + b;
  }
  INLINE std::int32_t operator()(std::int32_t a, std::int32_t b) const {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};

struct Max {
  template <typename V>
  INLINE V operator()(const V& a, const V& b) const {
    return (b > a) | (b != b) ? b : a;
  }
  INLINE std::int32_t operator()(std::int32_t a, std::int32_t b) const { return std::max(a, b); }
};

// body.template operator()<V>(i) for the elements from i on that a V holds: sixteen at a time, then one by
// one.
template <typename A, typename Body>
INLINE void for_each_element(std::size_t count, Body body) {
  std::size_t i = 0;
  if constexpr (std::is_same_v<A, float>) {
    for (; i + 16 <= count; i += 16) body.template operator()<Lanes<16>::Float>(i);
  }
  for (; i < count; ++i) body.template operator()<A>(i);
}

template <typename A, typename To, typename From>
INLINE void convert(To* to, const From* from, std::size_t count) {
  for_each_element<A>(
      count, [=]<typename V>(std::size_t i)
                 __attribute__((always_inline)) { store(to + i, load<V>(from + i)); });
}

template <typename A, typename From, typename Op>
INLINE void accumulate(A* total, const From* from, std::size_t count, Op op) {
  for_each_element<A>(
      count, [=]<typename V>(std::size_t i) __attribute__((always_inline)) {
        store(total + i, op(load<V>(total + i), load<V>(from + i)));
      });
}

template <typename From, typename A, typename Op>
INLINE void reduce_group(std::span<const void* const> sources, std::size_t at, A* total, std::size_t count,
                         Op op) {
  convert<A>(total, static_cast<const From*>(sources[0]) + at, count);
  for (const void* source : sources.subspan(1)) {
    accumulate(total, static_cast<const From*>(source) + at, count, op);
  }
}

struct Reduced {
  std::span<const void* const> sources;
  std::span<void* const> destinations;
  std::size_t count;
  std::size_t group;
};

template <typename From, typename To, typename Op>
INLINE void reduce(const Reduced& a, Op op) {
  using A = Accumulator<From>;
  alignas(kAlignment) A total[kBlock];
  alignas(kAlignment) A partial[kBlock];
  for (std::size_t at = 0; at < a.count; at += kBlock) {
    const std::size_t length = std::min(kBlock, a.count - at);
    reduce_group<From>(a.sources.first(a.group), at, total, length, op);
    for (std::size_t k = a.group; k < a.sources.size(); k += a.group) {
      reduce_group<From>(a.sources.subspan(k, a.group), at, partial, length, op);
      accumulate(total, partial, length, op);
    }
    for (void* destination : a.destinations) convert<A>(static_cast<To*>(destination) + at, total, length);
  }
}

// One version for each processor of each pair of types: all that they call is inlined.
#define LOCKSTEP_REDUCE(name, From, To)                                            \
  LOCKSTEP_FOR_EACH_PROCESSOR void name(const Reduced& a, ReduceOp op) {           \
    op == ReduceOp::sum ? reduce<From, To>(a, Sum{}) : reduce<From, To>(a, Max{}); \
  }
LOCKSTEP_REDUCE(reduce_f32, float, float)
LOCKSTEP_REDUCE(reduce_f32_to_f16, float, Half)
LOCKSTEP_REDUCE(reduce_f32_to_bf16, float, BFloat16)
LOCKSTEP_REDUCE(reduce_f16, Half, Half)
LOCKSTEP_REDUCE(reduce_f16_to_f32, Half, float)
LOCKSTEP_REDUCE(reduce_bf16, BFloat16, BFloat16)
LOCKSTEP_REDUCE(reduce_bf16_to_f32, BFloat16, float)
LOCKSTEP_REDUCE(reduce_i32, std::int32_t, std::int32_t)
#undef LOCKSTEP_REDUCE

}  // namespace

bool reducible(DType dtype) { return dtype != DType::u8; }

DType accumulator_of(DType dtype) { return dtype == DType::i32 ? DType::i32 : DType::f32; }

void reduce_in_rank_order(std::span<const void* const> sources, std::span<void* const> destinations,
                          std::size_t count, const Reduction& reduction) {
  const std::size_t group = reduction.group == 0 ? sources.size() : reduction.group;
  CHECK(!sources.empty() && sources.size() % group == 0, "{} sources in groups of {}", sources.size(), group);
  const auto is = [&](DType from, DType to) { return reduction.from == from && reduction.to == to; };
  const Reduced all{sources, destinations, count, group};
  const ReduceOp op = reduction.op;
  if (is(DType::f32, DType::f32)) return reduce_f32(all, op);
  if (is(DType::f32, DType::f16)) return reduce_f32_to_f16(all, op);
  if (is(DType::f32, DType::bf16)) return reduce_f32_to_bf16(all, op);
  if (is(DType::f16, DType::f16)) return reduce_f16(all, op);
  if (is(DType::f16, DType::f32)) return reduce_f16_to_f32(all, op);
  if (is(DType::bf16, DType::bf16)) return reduce_bf16(all, op);
  if (is(DType::bf16, DType::f32)) return reduce_bf16_to_f32(all, op);
  CHECK(is(DType::i32, DType::i32), "no reduction from {} to {}", name_of(reduction.from),
        name_of(reduction.to));
  reduce_i32(all, op);
}

}  // namespace lockstep
