// SPDX-License-Identifier: Apache-2.0
//
// FileClaim: something of which one process at a time may have the use, as a file that this one locks. The
// file tells people who has it, and stays behind. The system takes the lock back when its process ends,
// however it ends. It binds nobody who does not ask.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <sys/types.h>

namespace lockstep {

class FileClaim {
 public:
  enum class State {
    held,        // by this, as long as it lives
    taken,       // by another, of this process or not
    unlockable,  // the file is there, and its file system cannot lock
    unopened,    // no such file, and none can be made; or it is no regular file
  };

  enum class By {
    readers,  // every user that can open the file can lock it (flock); the umask sets its mode
    owner,    // only its owner can lock it (write lock of an open file description); all users can read it
  };
  // Asks for the file, which is made if its folder is there. Waits for nobody, and follows no symbolic link.
  FileClaim(const std::filesystem::path& path, By who);
  ~FileClaim();
  FileClaim(FileClaim&& other) noexcept;
  FileClaim& operator=(FileClaim&& other) noexcept;

  State state() const { return state_; }
  // Where it is taken: "process 17 on node7, since 2026-01-31 12:00:00".
  const std::string& holder() const { return holder_; }
  // Where it is unlockable or unopened, the system's words for why.
  const std::string& problem() const { return problem_; }

 private:
  State state_ = State::unopened;
  int descriptor_ = -1;
  std::string holder_, problem_;
};

// The holder of a FileClaim::By::owner file of this user, as FileClaim::holder() returns it; nothing if it is
// not held, does not exist or belongs to another user. Creates and locks nothing.
std::optional<std::string> holder_of(const std::filesystem::path& path, uid_t owner);

}  // namespace lockstep
