// SPDX-License-Identifier: Apache-2.0
//
// The largest of many numbers, chosen without sorting them: what top-k and DGC (Lin, Han, Mao, Wang and
// Dally, "Deep Gradient Compression", ICLR 2018) send of a gradient. A threshold is estimated from a sample,
// and what reaches it is sent, up to a fixed capacity, in the order of memory; the rest is remembered. Which
// numbers are chosen depends on nothing but the numbers.
//
// What is not finite is larger than any number. Where there is some, the first of what is sent is a NaN,
// however little is sent.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

// The numbers: with g = gradient / *loss_scale * *clip, without a velocity they are residual + g. With one
// they are (algorithm 1 of DGC) residual + u, u = momentum * velocity + g; or by Nesterov's momentum residual
// + g + momentum * u. Pointers that may be null stand for 1 or for zeros.
struct SparseNumbers {
  std::int64_t count = 0;
  const float* gradient = nullptr;
  const float* loss_scale = nullptr;  // may be null; in memory of the device
  const float* clip = nullptr;        // may be null; in memory of the device
  const float* residual = nullptr;    // may be null
  const float* velocity = nullptr;    // null: no momentum
  float momentum = 0;
  bool nesterov = false;
};

// *clip = min(1, most / the Euclidean norm of gradient / *loss_scale).
struct SparseClip {
  std::int64_t count = 0;
  const float* gradient = nullptr;
  const float* loss_scale = nullptr;  // may be null
  float most = 1;
  float* clip = nullptr;
};

// *threshold: about `kept` numbers are as large, as the bits of a float that is not negative. Stretches of 16
// numbers are looked at, all where there are few.
struct SparseThreshold {
  SparseNumbers numbers;
  std::int64_t kept = 1;
  std::uint32_t* threshold = nullptr;
  void* scratch = nullptr;
};

// The numbers that reach the threshold, the first `capacity` of them: values[i] is that at indices[i] -
// first_index; behind the last one indices are -1. next_residual is the numbers, with zeros where they are
// sent; and next_velocity is u, with zeros there, too (DGC's momentum factor masking).
struct SparseSelection {
  SparseNumbers numbers;
  std::int64_t capacity = 0;
  std::int32_t first_index = 0;
  const std::uint32_t* threshold = nullptr;
  std::int32_t* indices = nullptr;
  float* values = nullptr;
  float* next_residual = nullptr;  // may be null: not wanted
  float* next_velocity = nullptr;  // where there is a velocity
  void* scratch = nullptr;
};

// sums = *loss_scale times what the ranks sent, added up in the order of ranks; zero elsewhere. Of each rank
// there are `capacity` indices and then as many values, one rank behind another.
struct SparseSum {
  std::int64_t count = 0;
  std::int64_t capacity = 0;
  std::int32_t ranks = 0;
  const void* gathered = nullptr;
  const float* loss_scale = nullptr;  // may be null
  float* sums = nullptr;
};

// What a GPU selects together.
inline constexpr std::int64_t kSparseChunk = 4096;

// Of memory that a threshold and a selection of so many numbers work in.
constexpr std::size_t sparse_scratch_bytes(std::int64_t count) {
  return (2051 + static_cast<std::size_t>((count + kSparseChunk - 1) / kSparseChunk)) * sizeof(std::uint32_t);
}

}  // namespace lockstep
