// SPDX-License-Identifier: Apache-2.0
//
// The largest of many numbers, chosen without sorting them: what top-k and DGC (Lin, Han, Mao, Wang and
// Dally, "Deep Gradient Compression", ICLR 2018) send of a gradient. A threshold is estimated from a sample,
// and what reaches it is sent, up to a fixed capacity, in the order of memory; the rest is remembered. Which
// numbers are chosen depends on nothing but the numbers. What is sent is rounded to bfloat16, and what
// rounding took is remembered, too: so a number and its place fit into 32 bits.
//
// What is not finite is larger than any number. Where there is some, the first of what is sent is a NaN,
// however little is sent.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

// The numbers: with g = gradient / *loss_scale * *clip and r = residual / *learning_rate, without a velocity
// they are r + g. With one they are (algorithm 1 of DGC) r + u, u = momentum * velocity + g; or by Nesterov's
// momentum r + g + momentum * u. Pointers that may be null stand for 1 or for zeros.
struct SparseNumbers {
  std::int64_t count = 0;
  const float* gradient = nullptr;
  const float* loss_scale = nullptr;     // may be null; in memory of the device
  const float* learning_rate = nullptr;  // the same; above 0
  const float* clip = nullptr;           // the same
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
};

// *threshold: about `kept` numbers are as large, as the bits of a float that is not negative. Stretches of 16
// numbers are looked at, all where there are few.
struct SparseThreshold {
  SparseNumbers numbers;
  std::int64_t kept = 1;
  std::uint32_t* threshold = nullptr;
  void* scratch = nullptr;
};

// What is sent of `count` numbers, in words of 32 bits. Numbers lie in pages of 2^16. First come the heads:
// of each page how many are sent of those before it, and last how many are sent of all. Then room for
// `capacity` numbers in the order of memory: a bfloat16 in the upper half, its place in its page in the lower
// one.
struct SparseMessage {
  static constexpr std::int64_t kPage = 1 << 16;
  std::int64_t count = 0;
  std::int64_t capacity = 0;

  constexpr std::int64_t pages() const { return (count + kPage - 1) / kPage; }
  constexpr std::int64_t heads() const { return pages() + 1; }
  constexpr std::int64_t words() const { return heads() + capacity; }
};

// The numbers that reach the threshold, the first `capacity` of them. next_residual is *learning_rate times
// the numbers, and where they are sent times what rounding took of them; next_velocity is u, and there
// kept_velocity times u: 0 is DGC's momentum factor masking.
struct SparseSelection {
  SparseNumbers numbers;
  std::int64_t capacity = 0;
  const std::uint32_t* threshold = nullptr;
  std::uint32_t* message = nullptr;  // a SparseMessage; zeros behind the last number
  float* next_residual = nullptr;    // may be null: not wanted
  float* next_velocity = nullptr;    // where there is a velocity
  float kept_velocity = 0;
  void* scratch = nullptr;
};

// sums = *loss_scale times what the ranks sent, added up in the order of ranks; zero elsewhere.
struct SparseSum {
  SparseMessage shape;
  std::int32_t ranks = 0;
  const std::uint32_t* messages = nullptr;  // rank 0's
  std::int64_t stride = 0;                  // words from one rank's message to the next
  const float* loss_scale = nullptr;        // may be null
  float* sums = nullptr;
};

// What a GPU selects together.
inline constexpr std::int64_t kSparseChunk = 4096;
static_assert(SparseMessage::kPage % kSparseChunk == 0);

// Of memory that a threshold and a selection of so many numbers work in.
constexpr std::size_t sparse_scratch_bytes(std::int64_t count) {
  return (2051 + static_cast<std::size_t>((count + kSparseChunk - 1) / kSparseChunk)) * sizeof(std::uint32_t);
}

}  // namespace lockstep
