// SPDX-License-Identifier: Apache-2.0
//
// The kernel choices of this machine, kept on disk so that a second start times nothing and computes the same
// bits. One JSON file for each identity (library, version, processor, threads; see Backend::identity) in a
// folder that all processes of the machine share. Processes that start together do not wait for each other:
// each times the kernels that it lacks and merges its choices into the current file.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/kernel_choices.h"

namespace lockstep {

// $XDG_CACHE_HOME/lockstep, or ~/.cache/lockstep; empty where neither variable is set.
std::filesystem::path default_kernel_cache();

// User settings.
struct KernelSettings {
  std::string choose = "time";  // time, direct, winograd, tiled winograd
  std::string cache = "auto";   // folder; auto: default_kernel_cache(); none: keep nothing
};
KernelChoices kernel_choices(const KernelSettings& settings);
// Empty if choices are not kept.
std::filesystem::path kernel_cache_folder(const KernelSettings& settings);

class KernelCache {
 public:
  // An empty folder: nothing is read or kept.
  KernelCache(std::filesystem::path folder, std::string identity);

  // Adds the choices on disk, runs plan(), and writes the choices that plan() added, or replaced because it
  // does not have the kernel. A choice made on a busy machine is in doubt: plan() makes it again if it needs
  // it. An unusable file causes a warning and new timing, never an error; exceptions of plan() propagate.
  void use(KernelChoices& choices, const std::function<void()>& plan) const;

  const std::filesystem::path& file() const { return file_; }

 private:
  // Throws DataError for a file that holds no kernel choices.
  std::map<std::string, KernelChoice> read() const;
  std::map<std::string, KernelChoice> read_or_warn() const;
  void add(const std::map<std::string, KernelChoice>& made,
           const std::map<std::string, KernelChoice>& known) const;

  std::filesystem::path folder_;
  std::string identity_;
  std::filesystem::path file_;
};

// One file of a cache folder.
struct KeptKernels {
  std::filesystem::path file;
  std::string identity;
  std::map<std::string, KernelChoice> choices;
};
// All files of the folder, in the order of their names. A file that holds no kernel choices causes a warning.
std::vector<KeptKernels> kept_kernels(const std::filesystem::path& folder);

// For exchange between ranks. from_text() adds to the choices kept; throws DataError for text that to_text()
// did not write.
std::string to_text(const KernelChoices& choices);
void from_text(const std::string& text, KernelChoices& choices);

}  // namespace lockstep
