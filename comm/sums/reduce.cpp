// SPDX-License-Identifier: Apache-2.0
#include "comm/sums/reduce.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/error.h"
#include "core/system/processors.h"
#include "kernels/cpu/lanes.h"

#define INLINE LOCKSTEP_LANES_INLINE

namespace lockstep {
namespace {

// Elements added at a time: the two operands of most additions stay in the first-level cache.
constexpr std::size_t kBlock = 2048;
// Enough for a million ranks.
constexpr std::size_t kMostPending = 21;

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

struct Min {
  template <typename V>
  INLINE V operator()(const V& a, const V& b) const {
    return (b < a) | (b != b) ? b : a;
  }
  INLINE std::int32_t operator()(std::int32_t a, std::int32_t b) const { return std::min(a, b); }
};

// Calls body.template operator()<V>(i) for the elements from i on that a V holds: sixteen at a time, then one
// by one. Maxima and minima have few elements, so they have no vector version, which saves compile time.
template <typename A, typename Op, typename Body>
INLINE void for_each_element(std::size_t count, Body body) {
  std::size_t i = 0;
  if constexpr (std::is_same_v<A, float> && std::is_same_v<Op, Sum>) {
    for (; i + 16 <= count; i += 16) body.template operator()<Lanes<16>::Float>(i);
  }
  for (; i < count; ++i) body.template operator()<A>(i);
}

template <typename A, typename Op, typename To, typename From>
INLINE void convert(To* to, const From* from, std::size_t count) {
  for_each_element<A, Op>(
      count, [=]<typename V>(std::size_t i)
                 __attribute__((always_inline)) { store(to + i, load<V>(from + i)); });
}

template <typename A, typename From, typename Op>
INLINE void accumulate(A* total, const From* from, std::size_t count, Op op) {
  for_each_element<A, Op>(
      count, [=]<typename V>(std::size_t i) __attribute__((always_inline)) {
        store(total + i, op(load<V>(total + i), load<V>(from + i)));
      });
}

// total = one + other
template <typename A, typename From, typename Op>
INLINE void add_two(A* total, const From* one, const From* other, std::size_t count, Op op) {
  for_each_element<A, Op>(
      count, [=]<typename V>(std::size_t i) __attribute__((always_inline)) {
        store(total + i, op(load<V>(one + i), load<V>(other + i)));
      });
}

// total = (a + b) + (c + d)
template <typename A, typename From, typename Op>
INLINE void add_four(A* total, const From* a, const From* b, const From* c, const From* d, std::size_t count,
                     Op op) {
  for_each_element<A, Op>(
      count, [=]<typename V>(std::size_t i) __attribute__((always_inline)) {
        store(total + i, op(op(load<V>(a + i), load<V>(b + i)), op(load<V>(c + i), load<V>(d + i))));
      });
}

struct Reduced {
  std::span<const void* const> sources;
  std::span<void* const> destinations;
  std::size_t count;
  std::span<const int> ends;

  // The number of partial sums pending after the first `taken` sources: the 1 bits of the counter.
  std::size_t pending_after(std::size_t taken) const {
    if (taken == sources.size()) return 1;
    const auto ranks = ends.empty() ? taken : static_cast<std::size_t>(ends[taken - 1]);
    return static_cast<std::size_t>(std::popcount(ranks));
  }
  // True if sources k and k + 1 are added to each other first, when `pending` sums are pending before them.
  bool pair_at(std::size_t k, std::size_t pending) const {
    return k + 2 <= sources.size() && pending_after(k + 1) == pending + 1 &&
           pending_after(k + 2) <= pending + 1;
  }
  bool two_pairs_at(std::size_t k, std::size_t pending) const {
    return pair_at(k, pending) && pending_after(k + 2) == pending + 1 && pair_at(k + 2, pending + 1) &&
           pending_after(k + 4) <= pending + 1;
  }
};

// Stores the sum of `length` elements of the sources, from element `at` on, in pending[0].
template <typename From, typename A, typename Op>
INLINE void add_up(const Reduced& a, std::size_t at, std::size_t length, A (*pending)[kBlock], Op op) {
  const auto source = [&a, at](std::size_t k) { return static_cast<const From*>(a.sources[k]) + at; };
  std::size_t sums = 0;
  for (std::size_t k = 0; k < a.sources.size();) {
    if (a.two_pairs_at(k, sums)) {
      add_four(pending[sums++], source(k), source(k + 1), source(k + 2), source(k + 3), length, op);
      k += 4;
    } else if (a.pair_at(k, sums)) {
      add_two(pending[sums++], source(k), source(k + 1), length, op);
      k += 2;
    } else if (a.pending_after(k + 1) <= sums) {
      accumulate(pending[sums - 1], source(k++), length, op);
    } else {
      convert<A, Op>(pending[sums++], source(k++), length);
    }
    for (; sums > a.pending_after(k); --sums) accumulate(pending[sums - 2], pending[sums - 1], length, op);
  }
}

template <typename From, typename To, typename Op>
INLINE void reduce(const Reduced& a, Op op) {
  using A = Accumulator<From>;
  alignas(kAlignment) A pending[kMostPending][kBlock];
  for (std::size_t at = 0; at < a.count; at += kBlock) {
    const std::size_t length = std::min(kBlock, a.count - at);
    add_up<From>(a, at, length, pending, op);
    for (void* destination : a.destinations) {
      convert<A, Op>(static_cast<To*>(destination) + at, pending[0], length);
    }
  }
}

// Sums have one version per instruction set and pair of types: everything that they call is inlined.
#define LOCKSTEP_REDUCE(name, From, To)                                                \
  void name(const Reduced& a, ReduceOp op) {                                           \
    if (op == ReduceOp::max) return reduce<From, To>(a, Max{});                        \
    if (op == ReduceOp::min) return reduce<From, To>(a, Min{});                        \
    for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY { reduce<From, To>(a, Sum{}); }); \
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

void check_tree(const Reduced& a) {
  CHECK(!a.sources.empty(), "no sources to reduce");
  CHECK(a.ends.empty() || a.ends.size() == a.sources.size(), "{} ends for {} sources", a.ends.size(),
        a.sources.size());
  std::size_t pending = 0;
  for (std::size_t taken = 1; taken <= a.sources.size(); ++taken) {
    const std::size_t left = a.pending_after(taken);
    CHECK(++pending <= kMostPending && left >= 1 && left <= pending,
          "after {} of {} sources {} sums are pending, expected {}", taken, a.sources.size(), pending, left);
    pending = left;
  }
}

}  // namespace

bool reducible(DType dtype) { return dtype != DType::u8; }

DType accumulator_of(DType dtype) { return dtype == DType::i32 ? DType::i32 : DType::f32; }

void reduce_along_tree(std::span<const void* const> sources, std::span<void* const> destinations,
                       std::size_t count, const Reduction& reduction) {
  const Reduced all{sources, destinations, count, reduction.ends};
  check_tree(all);
  const auto is = [&](DType from, DType to) { return reduction.from == from && reduction.to == to; };
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
