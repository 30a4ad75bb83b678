// SPDX-License-Identifier: Apache-2.0
//
// The kernel choices of this machine, kept on disk so that a second start times nothing and computes the same
// bits. One JSON file for each identity (library, version, processor, threads; see Backend::identity) in a
// folder that all processes of the machine share. Nobody waits for anybody: processes that start together
// each time what they lack, and add it to what the file has by then.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "kernels/kernel_choices.h"

namespace lockstep {

// $XDG_CACHE_HOME/lockstep, or ~/.cache/lockstep; empty where neither variable is set.
std::filesystem::path default_kernel_cache();

// As a person gives them.
struct KernelSettings {
  std::string choose = "time";  // time, direct, winograd, tiled winograd
  std::string cache = "auto";   // folder; auto: default_kernel_cache(); none: keep nothing
};
KernelChoices kernel_choices(const KernelSettings& settings);
// Empty: choices are not kept.
std::filesystem::path kernel_cache_folder(const KernelSettings& settings);

class KernelCache {
 public:
  // An empty folder: nothing is read or kept.
  KernelCache(std::filesystem::path folder, std::string identity);

  // Adds what is on disk to the choices, runs plan(), and writes what it added. Choices that a busy machine
  // made are in doubt: made again by plan(), if it asks for them. A file that cannot be used costs a warning
  // and the time to time again, never the run; what plan throws passes.
  void use(KernelChoices& choices, const std::function<void()>& plan) const;

  const std::filesystem::path& file() const { return file_; }

 private:
  // Throws DataError for a file that is none of these.
  std::map<std::string, KernelChoice> read() const;
  std::map<std::string, KernelChoice> read_or_warn() const;
  void add(const std::map<std::string, KernelChoice>& made) const;

  std::filesystem::path folder_;
  std::string identity_;
  std::filesystem::path file_;
};

// For other ranks. from_text adds to what is kept; throws DataError for anything to_text did not write.
std::string to_text(const KernelChoices& choices);
void from_text(const std::string& text, KernelChoices& choices);

}  // namespace lockstep
