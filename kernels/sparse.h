// SPDX-License-Identifier: Apache-2.0
//
// Selects the largest of many numbers without sorting, for top-k and DGC (Lin, Han, Mao, Wang and Dally,
// "Deep Gradient Compression", ICLR 2018). A threshold is estimated from a sample. Numbers that reach it are
// sent in memory order, up to a fixed capacity; the others stay in the residual. The selection depends only
// on the numbers. Sent numbers are rounded to bfloat16, and the rounding error also stays in the residual, so
// a number and its place fit into 32 bits.
//
// A number that is not finite counts as larger than any other. If there is one, the first number sent is a
// NaN, however few are sent.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

// The numbers: g = gradient / *loss_scale * *clip and r = residual / *learning_rate. Without a velocity they
// are r + g. With a velocity (algorithm 1 of DGC) they are r + u, u = momentum * velocity + g, or with
// Nesterov's momentum r + g + momentum * u. Pointers that may be null count as 1 or as zeros.
struct SparseNumbers {
  std::int64_t count = 0;
  const float* gradient = nullptr;
  const float* loss_scale = nullptr;     // may be null; in memory of the device
  const float* learning_rate = nullptr;  // as loss_scale; above 0
  const float* clip = nullptr;           // as loss_scale
  const float* residual = nullptr;       // may be null
  const float* velocity = nullptr;       // null: no momentum
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
  void* scratch = nullptr;  // aligned to 8 bytes; may be that of the threshold
};

// *threshold: the bits of a non-negative float that about `kept` numbers reach in magnitude. Samples
// stretches of 16 numbers; uses all numbers if there are few.
struct SparseThreshold {
  SparseNumbers numbers;
  std::int64_t kept = 1;
  std::uint32_t* threshold = nullptr;
  void* scratch = nullptr;
};

// The message for `count` numbers, in 32-bit words. Numbers are grouped in pages of 2^16. The heads come
// first: for each page the number of entries sent in earlier pages, and last the number of all entries. Then
// follows room for `capacity` entries in memory order: a bfloat16 in the upper half, its place in the page in
// the lower half.
struct SparseMessage {
  static constexpr std::int64_t kPage = 1 << 16;
  std::int64_t count = 0;
  std::int64_t capacity = 0;

  constexpr std::int64_t pages() const { return (count + kPage - 1) / kPage; }
  constexpr std::int64_t heads() const { return pages() + 1; }
  constexpr std::int64_t words() const { return heads() + capacity; }
};

// Selects the first `capacity` numbers that reach the threshold. next_residual is *learning_rate times the
// number, or times its rounding error if it is sent. next_velocity is u, multiplied by kept_velocity if the
// number is sent: 0 is DGC's momentum factor masking.
struct SparseSelection {
  SparseNumbers numbers;
  std::int64_t capacity = 0;
  const std::uint32_t* threshold = nullptr;
  std::uint32_t* message = nullptr;  // a SparseMessage; zeros after the last entry
  float* next_residual = nullptr;    // may be null: not wanted
  float* next_velocity = nullptr;    // null without a velocity
  float kept_velocity = 0;
  void* scratch = nullptr;
};

// sums = *loss_scale times the sum of the ranks' messages, added in rank order; zero for numbers that no rank
// sent.
struct SparseSum {
  SparseMessage shape;
  std::int32_t ranks = 0;
  const std::uint32_t* messages = nullptr;  // rank 0's message
  std::int64_t stride = 0;                  // words from one rank's message to the next
  const float* loss_scale = nullptr;        // may be null
  float* sums = nullptr;
};

// Elements that a GPU selects together.
inline constexpr std::int64_t kSparseChunk = 4096;
static_assert(SparseMessage::kPage % kSparseChunk == 0);

// Bytes of scratch memory that a clip, a threshold and a selection of `count` numbers need.
constexpr std::size_t sparse_scratch_bytes(std::int64_t count) {
  return (2051 + static_cast<std::size_t>((count + kSparseChunk - 1) / kSparseChunk)) * sizeof(std::uint32_t);
}

}  // namespace lockstep
