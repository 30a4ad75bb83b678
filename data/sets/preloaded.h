// SPDX-License-Identifier: Apache-2.0
//
// Preloaded: a dataset whose images and masks are decoded once and kept, in memory that several processes may
// share. An image or mask is decoded when it is first read; the first reader stores it for all.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "data/batch_loader.h"
#include "data/dataset.h"

namespace lockstep {

// How a loader gets images. stream: read and decoded each time. preload: only the first time. device: they
// are in the device's memory before the first step.
enum class LoaderMode { automatic, stream, preload, device };
inline constexpr std::string_view kLoaderModeWords[] = {"auto", "stream", "preload", "device"};
constexpr std::span<const std::string_view> words_of(LoaderMode) { return kLoaderModeWords; }

// When images that are kept are decoded: as training first reads them, or all before the first step.
enum class PreloadTime { during, before };
inline constexpr std::string_view kPreloadTimeWords[] = {"during", "before"};
constexpr std::span<const std::string_view> words_of(PreloadTime) { return kPreloadTimeWords; }

// Memory for the samples: one place per sharing process; sample i is in place i % places. The places are
// zeroed at first, aligned to kAlignment, bytes_of_place() each, and in the same order in every process.
struct PreloadMemory {
  std::vector<std::byte*> places;
  std::shared_ptr<const void> owner;  // keeps them alive

  static std::size_t bytes_of_place(const Dataset& dataset, int places);
};

// Randomly augmented images are not kept (Dataset::draws()). An image that cannot be decoded is tried again
// at each read.
std::unique_ptr<Dataset> preloaded(std::shared_ptr<const Dataset> dataset, PreloadMemory memory);

struct DecodeOptions {
  Shard shard;  // of the samples: with the order of the places, those of this process's place
  int threads = 1;
  OnError on_error = OnError::leave_out;
  // Called by the calling thread at the start, after each of its samples and at the end, with the number of
  // the shard's samples begun and in all. Null: no reports.
  std::function<void(std::int64_t done, std::int64_t all)> told_progress = {};
};

// Reads the shard's samples of a preloaded dataset, so that they are kept. Returns the number of samples that
// cannot be decoded; with OnError::stop throws the DataError of one of them. Throws what read() throws for
// files that cannot be read.
std::int64_t decode_now(const Dataset& preloaded, const DecodeOptions& options);

}  // namespace lockstep
