// SPDX-License-Identifier: Apache-2.0
//
// Preloaded: a dataset whose images are decoded once and kept, in memory that several processes may share.
// An image is decoded when it is first read; the first reader stores it for all.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// How a loader gets images. stream: read and decoded each time. preload: only the first time. device: they
// are in the device's memory before the first step.
enum class LoaderMode { automatic, stream, preload, device };
inline constexpr std::string_view kLoaderModeWords[] = {"auto", "stream", "preload", "device"};
constexpr std::span<const std::string_view> words_of(LoaderMode) { return kLoaderModeWords; }

// Memory for the images: one place per sharing process; image i is in place i % places. The places are zeroed
// at first, aligned to kAlignment, bytes_of_place() each, and in the same order in every process.
struct PreloadMemory {
  std::vector<std::byte*> places;
  std::shared_ptr<const void> owner;  // keeps them alive

  static std::size_t bytes_of_place(const Dataset& dataset, int places);
};

// Randomly augmented images are not kept (Dataset::draws()). An image that cannot be decoded is tried again
// at each read.
std::unique_ptr<Dataset> preloaded(std::shared_ptr<const Dataset> dataset, PreloadMemory memory);

}  // namespace lockstep
