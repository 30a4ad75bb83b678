// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/jobs/session_folders.h"

#include <cstdlib>
#include <system_error>

namespace lockstep {
namespace {

constexpr const char* kVariables[] = {"OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"};

}  // namespace

SessionFolders::SessionFolders() {
  std::error_code error;
  std::filesystem::path base = std::filesystem::temp_directory_path(error);
  for (const char* variable : kVariables)
    if (const char* chosen = std::getenv(variable); chosen != nullptr && *chosen != '\0') base = chosen;
  if (base.empty()) return;
  base = std::filesystem::absolute(base, error);
  std::filesystem::create_directories(base, error);
  std::string name = (base / "lockstep_sweep_XXXXXX").string();
  if (mkdtemp(name.data()) != nullptr) parent_ = name;
}

SessionFolders::~SessionFolders() {
  std::error_code ignored;
  if (!parent_.empty()) std::filesystem::remove_all(parent_, ignored);
}

std::vector<std::pair<std::string, std::string>> SessionFolders::variables_of(std::size_t slot) const {
  std::vector<std::pair<std::string, std::string>> variables;
  if (parent_.empty()) return variables;
  const std::string folder = (parent_ / std::to_string(slot)).string();
  for (const char* variable : kVariables) variables.emplace_back(variable, folder);
  return variables;
}

}  // namespace lockstep
