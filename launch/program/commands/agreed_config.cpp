// SPDX-License-Identifier: Apache-2.0
#include "launch/program/commands/agreed_config.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/files/file_text.h"
#include "core/text/text.h"
#include "launch/program/html_report/files/run_files.h"

namespace lockstep {
namespace {

void require_same_config(Communicator& communicator, const std::string& toml) {
  const Difference found = find_difference(communicator, toml);
  if (found.ranks.empty()) return;
  throw_agreed(ConfigError(
      fmt::format("the configuration of {} differs from rank 0's, first in {}; start every rank with the "
                  "same command",
                  named_ranks(found.ranks), first_difference(found.reference, found.text))));
}

struct ResultFile {
  const char* flag;
  std::string path;  // empty: the flag is not given
};
std::array<ResultFile, 3> result_files(const Command& command) {
  return {{{"--export", command.export_}, {"--digest", command.digest}, {"--trace", command.trace}}};
}

// Rank 0 alone writes results, so a flag that only other ranks have would be ignored.
void require_flags_of_first(Communicator& communicator, const Command& command) {
  const std::array<ResultFile, 3> files = result_files(command);
  std::array<bool, 3> given = {};
  std::ranges::transform(files, given.begin(), [](const ResultFile& each) { return !each.path.empty(); });
  const std::vector<std::array<bool, 3>> all = gather_values(communicator, given);
  for (std::size_t flag = 0; flag < given.size(); ++flag) {
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (!all[rank][flag] || all[0][flag]) continue;
      throw_agreed(
          ConfigError(fmt::format("rank {} has {}, but rank 0, which writes the file, has not; start every "
                                  "rank with the same command",
                                  rank, files[flag].flag)));
    }
  }
}

// A pipe or a device, which takes any number of results.
bool is_written_in_place(const std::string& path) {
  std::error_code unknown;
  const std::filesystem::file_status there = std::filesystem::status(path, unknown);
  return std::filesystem::exists(there) && !std::filesystem::is_regular_file(there) &&
         !std::filesystem::is_directory(there);
}

// Throws UsageError if a result would replace another result, the configuration or a file of the run.
void require_separate_files(const Command& command, const Config& config) {
  const std::vector<std::string> presets = preset_names(command.registry);
  const bool is_preset = std::ranges::find(presets, command.config) != presets.end();
  std::vector<ResultFile> earlier;
  for (const ResultFile& file : result_files(command)) {
    if (file.path.empty() || is_written_in_place(file.path)) continue;
    const auto is_same = [&](const std::string& other) {
      return resolved_path(file.path) == resolved_path(other);
    };
    const auto same = std::ranges::find_if(earlier, is_same, &ResultFile::path);
    std::string owner;
    if (same != earlier.end())
      owner = fmt::format("also the file of {}", same->flag);
    else if (!is_preset && is_same(command.config))
      owner = "the configuration";
    else if (is_file_of_run(file.path, config.run_dir))
      owner = "a file of the run itself";
    if (!owner.empty())
      throw UsageError(fmt::format("{} {} is {}; name another file", file.flag, file.path, owner));
    earlier.push_back(file);
  }
}

}  // namespace

std::optional<Config> agreed_config(Communicator& communicator, const Command& command,
                                    const AgreedConfigOptions& options) {
  // Rank 0 alone reads the file of --init; a different file of another rank would be ignored.
  require_same_flags(communicator, fmt::format("--init \"{}\"{}", command.init,
                                               command.print_config ? " --print-config" : ""));
  require_flags_of_first(communicator, command);
  const bool first = communicator.rank() == 0;
  Config config;
  run_agreed(communicator, [&] {
    config = load_config(command.config, command.overrides, command.registry);
    if (!command.print_config) refuse_auto(config, command.name, options);
    if (!first) return;
    require_separate_files(command, config);
    for (const ResultFile& file : result_files(command)) require_writable(file.path);
  });
  if (command.print_config) {
    if (first) fmt::print("{}", to_toml(config, command.registry));
    return std::nullopt;
  }
  require_same_config(communicator, to_toml(config, command.registry));
  return config;
}

void require_writable(const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (access(folder.c_str(), W_OK) != 0) {
    throw IoError(fmt::format("{}: the folder {} does not exist or is not writable", path, folder.string()));
  }
  if (is_written_in_place(path)) return;  // the reader of a pipe would read the test file as the result
  AtomicFile tried(path);
  tried.write(std::string(4096, '\0'));  // a full disk still has room for an empty file
}

void refuse_auto(const Config& config, const std::string& command, const AgreedConfigOptions& accepted) {
  if (config.loader.batch == 0 && !accepted.finds_batch) {
    throw ConfigError(fmt::format(
        "train.batch = \"auto\": lockstep {} does not search for a batch; set a number, such "
        "as the one that lockstep find-batch recommends: --set train.batch=64; config.toml in the "
        "run.dir of a training holds the one that it used",
        command));
  }
  if (config.network.precision == Precision::automatic && !accepted.finds_precision) {
    throw ConfigError(fmt::format(
        "train.precision = \"auto\": only lockstep train measures precisions, lockstep {} does "
        "not; set one, such as --set train.precision=bf16; config.toml in the run.dir of a training "
        "holds the one that it used",
        command));
  }
}

void require_same_flags(Communicator& communicator, const std::string& flags) {
  const Difference found = find_difference(communicator, flags);
  if (found.ranks.empty()) return;
  throw_agreed(ConfigError(
      fmt::format("the flags are {1} on {0}, but {2} on rank 0; start every rank with the same command",
                  named_ranks(found.ranks), found.text, found.reference)));
}

}  // namespace lockstep
