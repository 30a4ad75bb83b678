// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/pending_sums.h"

#include <bit>

#include "core/error.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

int digits_of(std::int64_t number) { return std::bit_width(static_cast<std::uint64_t>(number)); }
bool has_digit(std::int64_t number, int digit) { return (number >> digit & 1) != 0; }

// sum = earlier + later
void add(Stream& stream, std::int64_t count, const float* earlier, const float* later, float* sum) {
  backend_for(stream.device())
      .add(stream, {.type = DType::f32, .count = count, .a = earlier, .b = later, .sum = sum});
}

}  // namespace

bool make_up_a_subtree(std::int64_t micro_batches, int ranks) {
  return ranks == 1 || std::has_single_bit(static_cast<std::uint64_t>(micro_batches));
}

PendingSums::PendingSums(Device device, std::int64_t elements, std::int64_t micro_batches)
    : elements_(elements), last_(micro_batches - 1), memory_(planned_bytes(elements, micro_batches), device) {
  CHECK(micro_batches > 0, "the number of micro-batches is {}", micro_batches);
}

std::size_t PendingSums::planned_bytes(std::int64_t elements, std::int64_t micro_batches) {
  return static_cast<std::size_t>(digits_of(micro_batches - 1) * elements) * sizeof(float);
}

float* PendingSums::level(int index, const ElementRange& elements) const {
  return reinterpret_cast<float*>(memory_.data()) + index * elements_ + elements.begin;
}

void PendingSums::keep(Stream& stream, std::int64_t micro, const ElementRange& elements, float* values) {
  CHECK(micro >= 0 && micro < last_, "keep() was called for micro-batch {} of {}", micro, last_ + 1);
  const std::int64_t count = elements.count();
  if (!has_digit(micro, 0)) {
    stream.copy(level(0, elements), values, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  int carried = 0;
  for (; has_digit(micro, carried + 1); ++carried)
    add(stream, count, level(carried, elements), values, values);
  add(stream, count, level(carried, elements), values, level(carried + 1, elements));
}

void PendingSums::finish(Stream& stream, const ElementRange& elements, float* values) {
  for (int index = 0; index < digits_of(last_); ++index) {
    if (has_digit(last_, index)) add(stream, elements.count(), level(index, elements), values, values);
  }
}

}  // namespace lockstep
