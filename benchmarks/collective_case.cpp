// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/collective_case.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace lockstep {
namespace {

// Period of the inputs, in elements. Prime, so that no piece of a transfer is a multiple of it.
constexpr std::size_t kPeriod = 17;

// All integers up to this one are exact in the type.
int exact_limit(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 1 << 24;
    case DType::f16:
      return 1 << 11;
    case DType::bf16:
      return 1 << 8;
    case DType::u8:
      return 255;
  }
  return 0;
}

// Number of different input values with which sums over all ranks are exact.
int levels(const CollectiveCase& c) {
  const int most = std::min<int>(kPeriod, exact_limit(c.dtype) / c.ranks + 1);
  CHECK(most >= 2, "sums over {} ranks cannot be exact in {}", c.ranks, type_name(c.dtype));
  return most;
}

int input(const CollectiveCase& c, int rank, std::size_t i) {
  return static_cast<int>((i + 3 * static_cast<std::size_t>(rank)) % kPeriod) % levels(c);
}

// Input of an all_to_all from rank `from` to rank `to`.
int block_input(const CollectiveCase& c, int from, int to, std::size_t i) {
  return input(c, from + 5 * to, i);
}

int reduced(const CollectiveCase& c, std::size_t i) {
  int result = input(c, 0, i);
  for (int rank = 1; rank < c.ranks; ++rank) {
    const int value = input(c, rank, i);
    result = c.op == ReduceOp::sum   ? result + value
             : c.op == ReduceOp::max ? std::max(result, value)
                                     : std::min(result, value);
  }
  return result;
}

template <typename T>
void store_as(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

void store(DType dtype, std::byte* to, int value) {
  switch (dtype) {
    case DType::f32:
      return store_as(to, static_cast<float>(value));
    case DType::f16:
      return store_as(to, Half(static_cast<float>(value)));
    case DType::bf16:
      return store_as(to, BFloat16(static_cast<float>(value)));
    case DType::i32:
      return store_as(to, std::int32_t{value});
    case DType::u8:
      return store_as(to, static_cast<std::uint8_t>(value));
  }
}

// Elements whose values repeat after kPeriod, written and compared in blocks.
class Pattern {
 public:
  // value(i): the value of element i, for any i.
  template <typename Value>
  Pattern(DType dtype, const Value& value) : width_(size_of(dtype)), block_(kBlock * width_) {
    std::array<int, kPeriod> values{};
    for (std::size_t i = 0; i < kPeriod; ++i) values[i] = value(i);
    for (std::size_t i = 0; i < kBlock; ++i) store(dtype, block_.data() + i * width_, values[i % kPeriod]);
  }

  void write(std::byte* to, std::size_t count) const {
    for (std::size_t i = 0; i < count; i += kBlock) {
      std::memcpy(to + i * width_, block_.data(), std::min(kBlock, count - i) * width_);
    }
  }

  std::size_t wrong(const std::byte* found, std::size_t count) const {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; i += kBlock) {
      const std::size_t here = std::min(kBlock, count - i);
      if (std::memcmp(found + i * width_, block_.data(), here * width_) == 0) continue;
      for (std::size_t j = 0; j < here; ++j) {
        wrong += std::memcmp(found + (i + j) * width_, block_.data() + j * width_, width_) != 0;
      }
    }
    return wrong;
  }

 private:
  static constexpr std::size_t kBlock = kPeriod * 256;
  std::size_t width_;
  std::vector<std::byte> block_;
};

std::size_t times_ranks(const CollectiveCase& c) { return c.count * static_cast<std::size_t>(c.ranks); }

std::size_t place_of(const CollectiveCase& c, int rank) {
  return static_cast<std::size_t>(rank) * c.count * size_of(c.dtype);
}

}  // namespace

bool CollectiveCase::reduces() const {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter;
}

std::size_t CollectiveCase::send_count() const {
  const bool of_all = kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::all_to_all;
  return of_all ? times_ranks(*this) : count;
}

std::size_t CollectiveCase::recv_count() const {
  const bool of_all = kind == CollectiveKind::all_gather || kind == CollectiveKind::all_to_all;
  return of_all ? times_ranks(*this) : count;
}

std::size_t CollectiveCase::bytes() const { return std::max(send_bytes(), recv_bytes()); }

std::size_t CollectiveCase::in_place_send_offset(int rank) const {
  return kind == CollectiveKind::all_gather ? place_of(*this, rank) : 0;
}

std::size_t CollectiveCase::in_place_recv_offset(int rank) const {
  return kind == CollectiveKind::reduce_scatter ? place_of(*this, rank) : 0;
}

CollectiveCase case_of(CollectiveKind kind, DType dtype, ReduceOp op, int ranks, std::size_t bytes) {
  CollectiveCase c{.kind = kind, .dtype = dtype, .op = op, .ranks = ranks};
  if (kind == CollectiveKind::barrier) return c;
  if (c.reduces() && dtype == DType::u8) {
    throw UsageError(
        fmt::format("{} of {} is not supported: set --datatype to float, half, bfloat16 or int32",
                    name_of(kind), type_name(dtype)));
  }
  const bool shared = kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::all_gather ||
                      kind == CollectiveKind::all_to_all;
  const std::size_t share = bytes / size_of(dtype) / (shared ? static_cast<std::size_t>(ranks) : 1);
  if (share == 0) {
    throw UsageError(
        fmt::format("{} of {} bytes of {} is less than one element for each of {} ranks: increase "
                    "--minbytes",
                    name_of(kind), bytes, type_name(dtype), ranks));
  }
  const std::size_t aligned = share - share % (16 / size_of(dtype));
  c.count = shared && aligned > 0 ? aligned : share;
  return c;
}

double bus_factor(CollectiveKind kind, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * others;
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_gather:
    case CollectiveKind::all_to_all:
      return others;
    case CollectiveKind::broadcast:
      return 1;
    case CollectiveKind::barrier:
      return 0;
  }
  return 0;
}

std::string_view type_name(DType dtype) {
  constexpr std::string_view kNames[] = {"float", "half", "bfloat16", "uint8", "int32"};
  return kNames[static_cast<std::size_t>(dtype)];
}

std::string_view redop_name(const CollectiveCase& c) {
  if (!c.reduces()) return "none";
  return c.op == ReduceOp::sum ? "sum" : c.op == ReduceOp::max ? "max" : "min";
}

void fill_input(const CollectiveCase& c, int rank, std::byte* send) {
  if (c.kind != CollectiveKind::all_to_all) {
    return Pattern(c.dtype, [&](std::size_t i) { return input(c, rank, i); }).write(send, c.send_count());
  }
  for (int peer = 0; peer < c.ranks; ++peer) {
    Pattern(c.dtype, [&](std::size_t i) {
      return block_input(c, rank, peer, i);
    }).write(send + place_of(c, peer), c.count);
  }
}

std::size_t count_wrong(const CollectiveCase& c, int rank, const std::byte* recv) {
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      return Pattern(c.dtype, [&](std::size_t i) { return reduced(c, i); }).wrong(recv, c.count);
    case CollectiveKind::reduce_scatter: {
      const std::size_t first = static_cast<std::size_t>(rank) * c.count;
      return Pattern(c.dtype, [&](std::size_t i) { return reduced(c, first + i); }).wrong(recv, c.count);
    }
    case CollectiveKind::broadcast:
      return Pattern(c.dtype, [&](std::size_t i) { return input(c, c.root, i); }).wrong(recv, c.count);
    case CollectiveKind::all_gather:
    case CollectiveKind::all_to_all: {
      std::size_t wrong = 0;
      for (int peer = 0; peer < c.ranks; ++peer) {
        wrong +=
            Pattern(c.dtype, [&](std::size_t i) {
              return c.kind == CollectiveKind::all_gather ? input(c, peer, i) : block_input(c, peer, rank, i);
            }).wrong(recv + place_of(c, peer), c.count);
      }
      return wrong;
    }
    case CollectiveKind::barrier:
      return 0;
  }
  return 0;
}

}  // namespace lockstep
