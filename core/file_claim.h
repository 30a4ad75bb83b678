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
    readers,  // whoever may open the file may lock it (flock), and the umask says who may
    owner,  // its owner alone may lock it (an open file description's lock to write); all may see who has it
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

// Who has the file of this user now, by FileClaim::By::owner, as FileClaim::holder() says it; nothing where
// nobody has, or nobody can, or the file is another user's. Makes no file, and locks nothing.
std::optional<std::string> holder_of(const std::filesystem::path& path, uid_t owner);

}  // namespace lockstep
