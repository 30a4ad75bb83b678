// SPDX-License-Identifier: Apache-2.0
//
// The element types of device kernels: float, __half and __nv_bfloat16. Arithmetic is fp32. Memory is
// accessed 16 bytes at a time: a thread loads several adjacent elements into Lanes. If an address is not
// aligned, or fewer elements remain, kernels access single elements.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "core/error.h"
#include "core/tensor/dtype.h"

namespace lockstep {

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ inline T from_float(float value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

// Calls function(std::type_identity<T>) with the T of a floating-point type.
template <typename F>
void with_element(DType type, F&& function) {
  CHECK(type == DType::f32 || type == DType::f16 || type == DType::bf16,
        "the element type is {}, expected fp32, fp16 or bf16", name_of(type));
  if (type == DType::f32) return function(std::type_identity<float>());
  if (type == DType::f16) return function(std::type_identity<__half>());
  return function(std::type_identity<__nv_bfloat16>());
}

// True if 16-byte accesses may start at all of these addresses; null counts as aligned.
template <typename... T>
__host__ __device__ inline bool aligned(const T*... pointers) {
  return ((... | reinterpret_cast<std::uintptr_t>(pointers)) & 15) == 0;
}

// Adjacent elements as they are in memory (Pack) and as fp32 in registers (Lanes).
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T elements[kCount];
};
template <int kCount>
struct Lanes {
  float values[kCount];

  __device__ float& operator[](int i) { return values[i]; }
  __device__ float operator[](int i) const { return values[i]; }
};

// Access whole packs: the address must be aligned to one. A kCount of 1 accepts any address.
template <int kCount, typename T>
__device__ inline Pack<T, kCount> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <int kCount, typename T>
__device__ inline Lanes<kCount> to_lanes(const Pack<T, kCount>& pack) {
  Lanes<kCount> lanes;
#pragma unroll
  for (int i = 0; i < kCount; ++i) lanes[i] = to_float(pack.elements[i]);
  return lanes;
}
template <int kCount, typename T>
__device__ inline Lanes<kCount> load(const T* from) {
  return to_lanes(load_pack<kCount>(from));
}
template <int kCount, typename T>
__device__ inline void store(T* to, const Lanes<kCount>& lanes) {
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) pack.elements[i] = from_float<T>(lanes[i]);
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

__host__ __device__ constexpr std::int64_t ceil_div(std::int64_t count, std::int64_t by) {
  return (count + by - 1) / by;
}

}  // namespace lockstep
