// SPDX-License-Identifier: Apache-2.0
//
// SessionFolders: a folder for the temporary files of Open MPI for each slot of a sweep. By default all jobs
// of a user share /tmp/ompi.HOST.USER, and with Open MPI 4.1 a job that starts while the last other one ends,
// and removes that folder, fails in MPI_Init.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

class SessionFolders {
 public:
  // Creates their parent in the folder that the user chose for Open MPI, or in that of temporary files. If
  // that fails, the slots share Open MPI's default folder.
  SessionFolders();
  // Removes them all. The jobs have ended.
  ~SessionFolders();
  SessionFolders(const SessionFolders&) = delete;
  SessionFolders& operator=(const SessionFolders&) = delete;

  // Environment variables of the slot's jobs, for Open MPI 4 and 5.
  std::vector<std::pair<std::string, std::string>> variables_of(std::size_t slot) const;

 private:
  std::filesystem::path parent_;  // empty: none
};

}  // namespace lockstep
