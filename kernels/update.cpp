// SPDX-License-Identifier: Apache-2.0
#include "kernels/update.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/stream.h"

namespace lockstep {
namespace {

template <typename T>
Buffer on_device(Stream& stream, Device device, std::span<const T> items) {
  Buffer buffer(items.size_bytes(), device);
  if (!items.empty()) stream.copy(buffer.data(), items.data(), items.size_bytes());
  stream.synchronize();
  return buffer;
}

template <typename T>
std::span<const T> items_in(const Buffer& buffer) {
  return {reinterpret_cast<const T*>(buffer.data()), buffer.bytes() / sizeof(T)};
}

}  // namespace

UpdateTable::UpdateTable(Device device, std::span<const UpdateSegment> segments) {
  std::vector<UpdateSegment> placed(segments.begin(), segments.end());
  std::vector<UpdateChunk> chunks;
  std::int64_t end = 0;
  for (std::size_t i = 0; i < placed.size(); ++i) {
    UpdateSegment& segment = placed[i];
    CHECK(segment.begin >= end && segment.count > 0,
          "segment {} has {} elements from {} on, expected at least 1 element from {} on", i, segment.count,
          segment.begin, end);
    end = segment.begin + segment.count;
    elements_ += segment.count;
    segment.first_chunk = static_cast<std::int32_t>(chunks.size());
    for (std::int64_t begin = segment.begin; begin < end; begin += kUpdateChunk) {
      chunks.push_back({.begin = begin,
                        .count = static_cast<std::int32_t>(std::min(kUpdateChunk, end - begin)),
                        .segment = static_cast<std::int32_t>(i)});
    }
  }
  Stream stream(device, StreamUse::compute);
  segments_ = on_device<UpdateSegment>(stream, device, placed);
  chunks_ = on_device<UpdateChunk>(stream, device, chunks);
}

std::span<const UpdateSegment> UpdateTable::segments() const { return items_in<UpdateSegment>(segments_); }
std::span<const UpdateChunk> UpdateTable::chunks() const { return items_in<UpdateChunk>(chunks_); }

}  // namespace lockstep
