// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/libraries/operands.h"

#include <cstring>

#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator {

bool overlap(const Extent& a, const Extent& b) {
  const auto begin = [](const Extent& extent) { return reinterpret_cast<std::uintptr_t>(extent.data); };
  return begin(a) < begin(b) + b.bytes && begin(b) < begin(a) + a.bytes;
}

bool is_aligned(const void* data, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

Floats read_elements(const void* data, Element type, std::int64_t count) {
  Floats values(static_cast<std::size_t>(count));
  const std::size_t bytes = values.size() * size_of(type);
  if (type == Element::f32) {
    std::memcpy(values.data(), data, bytes);
    return values;
  }
  std::vector<std::byte> elements(bytes);
  std::memcpy(elements.data(), data, bytes);
  to_floats(elements.data(), type, count, values.data());
  return values;
}

void write_elements(const Floats& values, Element type, void* data) {
  const std::size_t bytes = values.size() * size_of(type);
  if (type == Element::f32) {
    std::memcpy(data, values.data(), bytes);
    return;
  }
  std::vector<std::byte> elements(bytes);
  from_floats(values.data(), static_cast<std::int64_t>(values.size()), type, elements.data());
  std::memcpy(data, elements.data(), bytes);
}

Workspace::Workspace(void* data, std::size_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {
  if (bytes > 0) std::memset(data_, 0xff, bytes);
}

void Workspace::write(std::size_t at_byte, const float* values, std::int64_t count) const {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  if (at_byte + bytes > bytes_)
    throw DeviceFault("an emulated algorithm uses more workspace than it requested");
  std::memcpy(data_ + at_byte, values, bytes);
}

void Workspace::read(std::size_t at_byte, std::int64_t count, float* values) const {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  if (at_byte + bytes > bytes_)
    throw DeviceFault("an emulated algorithm uses more workspace than it requested");
  std::memcpy(values, data_ + at_byte, bytes);
}

}  // namespace lockstep::emulator
