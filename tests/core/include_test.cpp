// SPDX-License-Identifier: Apache-2.0
//
// The layers of the code: a folder includes only lower layers, and no public header includes CUDA, NCCL, MPI
// or oneDNN.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/files/file_text.h"
#include "tests/source_folder.h"

namespace lockstep {
namespace {

using Folders = std::set<std::string>;

const std::map<std::string, Folders> kMayInclude = {
    {"core", {"core"}},
    {"kernels", {"core", "kernels"}},
    {"comm", {"core", "kernels", "comm"}},
    {"data", {"core", "kernels", "data"}},
    {"models", {"core", "kernels", "models"}},
    {"launch/train", {"core", "kernels", "comm", "data", "models", "launch/train"}},
    {"launch/observe", {"core", "kernels", "comm", "data", "models", "launch/train", "launch/observe"}},
    {"launch/program",
     {"core", "kernels", "comm", "data", "models", "launch/train", "launch/observe", "launch/program"}},
    {"launch/examples", {"core", "kernels", "comm", "data", "models", "launch/train"}},
};
const Folders kBackendFolders = {"cpu", "cuda", "no_cuda", "mpi", "nccl"};
const std::regex kInclude(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
const std::regex kBackendHeader(R"((mpi\.h|(cuda|cudnn|cublas|cub/|nccl|dnnl|oneapi/).*))");

bool is_public_header(const std::filesystem::path& file) {
  return file.extension() == ".h" && std::none_of(file.begin(), file.end(), [](const auto& part) {
           return kBackendFolders.contains(part.string());
         });
}

// The layer of a path from the root: its first folder, and in launch/ the first two.
std::string layer_of(const std::filesystem::path& path) {
  auto part = path.begin();
  std::string layer = *part;
  if (layer == "launch") layer += "/" + (++part)->string();
  return layer;
}

// The reason why a file (path from the root) must not include `included`, if there is one.
std::optional<std::string> objection(const std::filesystem::path& file, bool quoted,
                                     const std::string& included) {
  if (is_public_header(file) && std::regex_match(included, kBackendHeader)) {
    return "a public header includes a backend's";
  }
  if (!quoted) return std::nullopt;
  if (included.find('/') == std::string::npos) return "includes are named from the root";
  const std::string folder = layer_of(file), other = layer_of(included);
  if (kMayInclude.at(folder).contains(other)) return std::nullopt;
  return fmt::format("{} may not include {}", folder, other);
}

// "core/tensor/tensor.h:7: ..." for each include of this text that breaks the rule.
std::vector<std::string> forbidden_includes(const std::filesystem::path& file, const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (!std::regex_search(line, match, kInclude)) continue;
    if (const auto reason = objection(file, match[1] == "\"", match[2])) {
      found.push_back(fmt::format("{}:{}: {} ({})", file.string(), number, *reason, match[2].str()));
    }
  }
  return found;
}

TEST(Includes, PointOnlyDownward) {
  const std::filesystem::path root = source_folder();
  const std::set<std::string> extensions = {".h", ".cpp", ".cu", ".cuh"};
  std::map<std::string, int> files;
  for (const auto& [folder, allowed] : kMayInclude) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      if (!extensions.contains(entry.path().extension().string())) continue;
      ++files[folder];
      const std::string text = file_text(entry.path());
      for (const std::string& broken : forbidden_includes(entry.path().lexically_relative(root), text)) {
        ADD_FAILURE() << broken;
      }
    }
  }
  for (const auto& [folder, allowed] : kMayInclude) EXPECT_GT(files[folder], 0) << folder;
}

TEST(IncludeRule, ReportsFileAndLine) {
  const auto found = forbidden_includes("core/tensor/tensor.cpp",
                                        "#include \"core/tensor/tensor.h\"\n\n#include \"comm/world.h\"\n");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], "core/tensor/tensor.cpp:3: core may not include comm (comm/world.h)");
}

TEST(IncludeRule, ForbidsUpwardAndSideways) {
  const auto forbids = [](const std::string& file, const std::string& included) {
    return !forbidden_includes(file, "#include \"" + included + "\"\n").empty();
  };
  for (const auto& [folder, allowed] : kMayInclude) {
    for (const auto& [other, unused] : kMayInclude) {
      EXPECT_EQ(forbids(folder + "/x.cpp", other + "/y.h"), !allowed.contains(other))
          << folder << " " << other;
    }
    EXPECT_TRUE(forbids(folder + "/x.cpp", "tests/y.h"));
    EXPECT_TRUE(forbids(folder + "/cuda/x.cu", "y.h"));  // not from the root
  }
  EXPECT_TRUE(forbids("data/x.cpp", "models/y.h"));
  EXPECT_TRUE(forbids("comm/mpi/x.cpp", "data/y.h"));
}

TEST(IncludeRule, SeesEveryWayToWriteIt) {
  for (const char* line :
       {"#include \"comm/world.h\"", "  #  include  \"comm/world.h\" // why", "#include\"comm/world.h\""}) {
    EXPECT_EQ(forbidden_includes("core/x.cpp", line).size(), 1u) << line;
  }
  EXPECT_TRUE(forbidden_includes("core/x.cpp", "// #include \"comm/world.h\"").empty());
}

TEST(IncludeRule, KeepsBackendsOutOfPublicHeaders) {
  for (const char* header : {"mpi.h", "cuda.h", "cuda_runtime_api.h", "cuda_fp16.h", "nccl.h", "cudnn.h",
                             "cudnn_backend.h", "dnnl.h", "dnnl.hpp", "oneapi/dnnl/dnnl.hpp"}) {
    const std::string line = fmt::format("#include <{}>\n", header);
    EXPECT_EQ(forbidden_includes("kernels/x.h", line).size(), 1u) << header;
    EXPECT_TRUE(forbidden_includes("kernels/cuda/x.h", line).empty()) << header;
    EXPECT_TRUE(forbidden_includes("kernels/x.cpp", line).empty()) << header;
  }
  EXPECT_TRUE(forbidden_includes("kernels/x.h", "#include <vector>\n#include <fmt/format.h>\n").empty());
}

std::set<std::string> headers_named_in(const std::filesystem::path& file, const std::regex& header) {
  const std::string text = file_text(std::filesystem::path(source_folder()) / file);
  std::set<std::string> named;
  for (std::sregex_iterator match(text.begin(), text.end(), header), end; match != end; ++match)
    named.insert((*match)[1]);
  return named;
}

// The guide and the installed package name the same headers, and the examples need no others.
TEST(PublicHeaders, AreInstalledAndDescribed) {
  const std::set<std::string> described =
      headers_named_in("launch/examples/README.md", std::regex(R"(`([a-z]+/[a-z_/]+\.h)`)"));
  const std::set<std::string> installed =
      headers_named_in("launch/install_headers.cmake", std::regex(R"(\b([a-z]+/[a-z_/]+\.h))"));
  EXPECT_GT(described.size(), 20u);
  EXPECT_EQ(described, installed);
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() + "/launch/examples")) {
    if (entry.path().extension() != ".cpp") continue;
    for (const std::string& header : headers_named_in(entry.path(), std::regex("#include \"([^\"]+)\"")))
      EXPECT_TRUE(described.contains(header)) << entry.path() << " includes " << header;
  }
}

}  // namespace
}  // namespace lockstep
