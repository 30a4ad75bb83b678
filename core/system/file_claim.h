// SPDX-License-Identifier: Apache-2.0
//
// FileClaim: exclusive use of something by one process, as an advisory lock on a file. The file names its
// holder for users and is not removed afterwards. The system releases the lock when the process ends.
// Processes that do not use FileClaim are not affected.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include <sys/types.h>

namespace lockstep {

class FileClaim {
 public:
  enum class State {
    held,        // by this object, until its destruction
    taken,       // by another FileClaim, of any process
    unlockable,  // the file exists, but its file system cannot lock, or (owner) other processes replace it
                 // or hold read locks on it
    unopened,    // no such file and it cannot be created, it is not a regular file, or (owner) it belongs to
                 // another user
  };

  enum class By {
    readers,  // every user that can open the file can lock it (flock); the umask sets its mode
    owner,    // only its owner can lock it (write lock of an open file description); all users can read it
  };
  // Opens the file, creates it if its folder exists, and tries to lock it. Does not block and follows no
  // symbolic link.
  FileClaim(const std::filesystem::path& path, By who);
  ~FileClaim();
  FileClaim(FileClaim&& other) noexcept;
  FileClaim& operator=(FileClaim&& other) noexcept;

  State state() const { return state_; }
  // If taken: "process 17 on node7, since 2026-01-31 12:00:00".
  const std::string& holder() const { return holder_; }
  // If unlockable or unopened: the reason.
  const std::string& problem() const { return problem_; }

 private:
  State state_ = State::unopened;
  int descriptor_ = -1;
  std::string holder_, problem_;
};

// The holder of a FileClaim::By::owner file of this user, as FileClaim::holder() returns it; nothing if it is
// not held, does not exist or belongs to another user. Creates and locks nothing.
std::optional<std::string> holder_of(const std::filesystem::path& path, uid_t owner);

// Creates a file of `bytes` zeros that only its owner can open, with the advisory lock LOCK_SH or LOCK_EX of
// flock(), which lasts until its descriptor is closed. A failed lock is ignored. Returns the descriptor, or
// -1 with errno set (EEXIST: the file exists, even if as a symbolic link); then there is no new file.
int create_locked_file(const std::filesystem::path& path, std::size_t bytes, int lock);

}  // namespace lockstep
