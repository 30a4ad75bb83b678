// SPDX-License-Identifier: Apache-2.0
#include "tests/data/temporary_folder.h"

#include <fstream>
#include <system_error>

#include <stdlib.h>

#include "core/error.h"

namespace lockstep {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "lockstep_data_XXXXXX").string();
  CHECK(mkdtemp(name.data()) != nullptr, "{}", name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TemporaryFolder::write(const std::string& name, const Bytes& bytes) const {
  std::filesystem::create_directories((path_ / name).parent_path());
  std::ofstream file(path_ / name, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  CHECK(file.good(), "{}", name);
}

void TemporaryFolder::remove(const std::string& name) const { std::filesystem::remove(path_ / name); }

}  // namespace lockstep
