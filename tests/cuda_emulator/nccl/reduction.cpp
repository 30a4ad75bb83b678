// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/reduction.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/tensor/dtype.h"

namespace lockstep::emulator {
namespace {

// The type of computations for a type: wide enough and without undefined overflow.
template <typename T>
struct Computed {
  using type = std::conditional_t<std::is_same_v<T, double>, double, float>;
};
template <typename T>
requires std::is_integral_v<T>
struct Computed<T> {
  using type = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
};
template <typename T>
using Wide = typename Computed<T>::type;

template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T>;

template <typename T>
T sum(T a, T b) {
  return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
}
template <typename T>
T product(T a, T b) {
  return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
}
template <typename T>
T largest(T a, T b) {
  if constexpr (kIsInteger<T>) {
    return a < b ? b : a;
  } else {
    return static_cast<T>(std::fmax(static_cast<Wide<T>>(a), static_cast<Wide<T>>(b)));
  }
}
template <typename T>
T smallest(T a, T b) {
  if constexpr (kIsInteger<T>) {
    return b < a ? b : a;
  } else {
    return static_cast<T>(std::fmin(static_cast<Wide<T>>(a), static_cast<Wide<T>>(b)));
  }
}

template <typename T, typename Combine, typename Before, typename After>
void fold(std::span<const std::byte* const> from, std::byte* to, std::size_t count, Combine combine,
          Before before, After after) {
  T* result = reinterpret_cast<T*>(to);
  for (std::size_t i = 0; i < count; ++i) {
    T total = before(reinterpret_cast<const T*>(from[0])[i]);
    for (std::size_t k = 1; k < from.size(); ++k) {
      total = combine(total, before(reinterpret_cast<const T*>(from[k])[i]));
    }
    result[i] = after(total);
  }
}

template <typename T>
void average(std::span<const std::byte* const> from, std::byte* to, std::size_t count) {
  const auto same = [](T value) { return value; };
  if constexpr (kIsInteger<T>) {
    const auto ranks =
        static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(from.size());
    const auto divide = [ranks](T value) { return static_cast<T>(value / ranks); };
    fold<T>(from, to, count, sum<T>, same, divide);
  } else {
    const auto scale = static_cast<T>(Wide<T>{1} / static_cast<Wide<T>>(from.size()));
    const auto scaled = [scale](T value) { return product<T>(value, scale); };
    fold<T>(from, to, count, sum<T>, scaled, same);
  }
}

template <typename T>
void reduce_type(ncclRedOp_t op, std::span<const std::byte* const> from, std::byte* to, std::size_t count) {
  const auto same = [](T value) { return value; };
  switch (op) {
    case ncclSum:
      return fold<T>(from, to, count, sum<T>, same, same);
    case ncclProd:
      return fold<T>(from, to, count, product<T>, same, same);
    case ncclMax:
      return fold<T>(from, to, count, largest<T>, same, same);
    case ncclMin:
      return fold<T>(from, to, count, smallest<T>, same, same);
    default:
      return average<T>(from, to, count);
  }
}

}  // namespace

void reduce(ncclDataType_t type, ncclRedOp_t op, std::span<const std::byte* const> from, std::byte* to,
            std::size_t count) {
  switch (type) {
    case ncclInt8:
      return reduce_type<std::int8_t>(op, from, to, count);
    case ncclUint8:
      return reduce_type<std::uint8_t>(op, from, to, count);
    case ncclInt32:
      return reduce_type<std::int32_t>(op, from, to, count);
    case ncclUint32:
      return reduce_type<std::uint32_t>(op, from, to, count);
    case ncclInt64:
      return reduce_type<std::int64_t>(op, from, to, count);
    case ncclUint64:
      return reduce_type<std::uint64_t>(op, from, to, count);
    case ncclFloat16:
      return reduce_type<Half>(op, from, to, count);
    case ncclFloat64:
      return reduce_type<double>(op, from, to, count);
    case ncclBfloat16:
      return reduce_type<BFloat16>(op, from, to, count);
    default:
      return reduce_type<float>(op, from, to, count);
  }
}

}  // namespace lockstep::emulator
