// SPDX-License-Identifier: Apache-2.0
//
// Preloaded: a dataset whose images are decoded once and kept, in memory that several processes may share.
// Nothing is decoded before it is asked for; the first who reads an image leaves it there for all.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// How images come to a loader: read and decoded each time, or the first time only; or they are in the
// device's memory before the first step.
enum class LoaderMode { automatic, stream, preload, device };
inline constexpr std::string_view kLoaderModeWords[] = {"auto", "stream", "preload", "device"};
constexpr std::span<const std::string_view> words_of(LoaderMode) { return kLoaderModeWords; }
constexpr std::string_view word_of(LoaderMode mode) {
  return kLoaderModeWords[static_cast<std::size_t>(mode)];
}

// Where images are kept: one place for each of those who share it, dealt in turn. Zeroed at first, aligned
// to kAlignment, each of bytes_of_place(), and the same places in the same order for everybody.
struct PreloadMemory {
  std::vector<std::byte*> places;
  std::shared_ptr<const void> owner;  // keeps them alive

  static std::size_t bytes_of_place(const Dataset& dataset, int places);
};

// What is drawn at random to train with is not kept (Dataset::draws()). An image that cannot be decoded is
// tried again by each who reads it.
std::unique_ptr<Dataset> preloaded(std::shared_ptr<const Dataset> dataset, PreloadMemory memory);

}  // namespace lockstep
