// SPDX-License-Identifier: Apache-2.0
//
// AtomicFile: a file that readers see either whole or not at all, however this process ends and whichever
// other process writes the same path. Data go to a temporary in the same folder; commit() renames it to the
// path once all data are on disk. The temporary has no name before commit(), so the system removes it if the
// process is killed. On a file system without unnamed files (O_TMPFILE), such as NFS, and with Durable::no it
// has a unique name from the start, and a killed process leaves it. A path that is not a regular file (a
// pipe, a device) is written in place, because it cannot be replaced by a rename. With Links::follow a
// symbolic link at the path stays and its target is written. With Links::replace, for folders that other
// users can write to, the new file replaces the link.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string_view>

#include "core/system/last_words.h"

namespace lockstep {

// The mark in a temporary's name. The file's name is before it, or ".lockstep" if that name is long, and a
// random number after it.
inline constexpr std::string_view kPartialMark = ".partial-";

enum class Links { follow, replace };
// no: for files that are soon written again, or for many files. A crash of the machine may lose the file;
// other readers see it whole, as always. The temporary always has a name, because ZFS syncs an unnamed file
// before it names it.
enum class Durable { yes, no };

class AtomicFile {
 public:
  // Creates the temporary, so that a path that cannot be written fails here. All members throw IoError; the
  // message names the path and the system's reason. Refuses a path that leads through another user's link in
  // a sticky folder that everybody may write to, such as /tmp.
  explicit AtomicFile(const std::filesystem::path& path, Links links = Links::follow,
                      Durable durable = Durable::yes);
  // Without commit() removes the temporary and leaves the path unchanged.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Unbuffered.
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Syncs and renames; without Durable::yes only renames. Call it once, after the last write().
  void commit();

 private:
  void name_temporary();
  [[noreturn]] void fail(int error) const;

  std::filesystem::path path_;  // as given
  Durable durable_;
  std::filesystem::path target_;                // without symbolic links
  std::optional<RemovedAtEnd> removed_at_end_;  // temporary_
  std::filesystem::path temporary_;  // empty if the target is written in place, and after the rename
  bool unnamed_ = false;             // temporary_ does not exist before commit()
  int descriptor_ = -1;
};

// Syncs the folder: names created or changed in it are on disk when this returns. Does nothing on a file
// system that cannot sync a folder. Throws IoError if the disk fails.
void sync_folder(const std::filesystem::path& folder);
// Syncs a file's data; throws like sync_folder(). Does nothing where there is no file or a symbolic link.
void sync_file(const std::filesystem::path& file);

// Writes and commits a whole file.
void write_atomically(const std::filesystem::path& path, std::string_view text, Links links = Links::follow,
                      Durable durable = Durable::yes);

}  // namespace lockstep
