// SPDX-License-Identifier: Apache-2.0
//
// AtomicFile: a file that others see whole or not at all, whatever ends this process and whoever else writes
// the same path. Data go to a temporary of a unique name in the same folder, which takes the path's place
// only when all of it is on disk. What is no regular file (a pipe, a device) is written in place, since
// nothing could take its place. A symbolic link at the path is followed, and stays, where a user named the
// path; in a folder whose contents may be anybody's the file takes its place.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string_view>

#include "core/last_words.h"

namespace lockstep {

// What stands in a temporary's name behind the path's.
inline constexpr std::string_view kPartialMark = ".partial-";

enum class Links { follow, replace };

class AtomicFile {
 public:
  // Creates the temporary, so that a path that cannot be written is told at once. Throws IoError, as do the
  // others; the message names the path and the system's reason. A link of another user in a folder that
  // everybody may write to, such as /tmp, is not followed.
  explicit AtomicFile(const std::filesystem::path& path, Links links = Links::follow);
  // Without commit() leaves nothing behind, and what was at the path untouched.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Unbuffered.
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Syncs and renames; once, and last.
  void commit();

 private:
  [[noreturn]] void fail(int error) const;

  std::filesystem::path path_;                  // as given
  std::filesystem::path target_;                // without symbolic links
  std::optional<RemovedAtEnd> removed_at_end_;  // temporary_
  std::filesystem::path temporary_;  // empty where the target is written in place, and once it is renamed
  int descriptor_ = -1;
};

// Names that were made or changed there are on disk when this returns. Not every file system can sync a
// folder: one that cannot is left alone. Throws IoError where the disk fails.
void sync_folder(const std::filesystem::path& folder);

// A whole file at once.
void write_atomically(const std::filesystem::path& path, std::string_view text, Links links = Links::follow);

}  // namespace lockstep
