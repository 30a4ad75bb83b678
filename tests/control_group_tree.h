// SPDX-License-Identifier: Apache-2.0
//
// A file tree that shows the control groups of this process as Linux and containers do.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/temporary_folder.h"

namespace lockstep {

class ControlGroupTree {
 public:
  // Writes the file, and creates the folders in its name.
  void put(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = root() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  // Adds a line to mountinfo. root: the group that is mounted; type_and_options: "cgroup cgroup rw,cpu".
  void mount(const std::string& root, const std::string& place, const std::string& type_and_options) const {
    std::filesystem::create_directories(this->root() / "proc/self");
    std::ofstream(this->root() / "proc/self/mountinfo", std::ios::app)
        << "31 23 0:28 " << root << ' ' << place << " rw,relatime shared:9 - " << type_and_options << '\n';
  }
  const std::filesystem::path& root() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

}  // namespace lockstep
