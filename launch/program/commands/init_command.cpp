// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include <CLI/CLI.hpp>

#include "core/error.h"
#include "core/log.h"
#include "core/system/terminal.h"
#include "core/system/wrapped_text.h"
#include "data/sets/verify.h"
#include "launch/observe/terminal/progress_meter.h"
#include "launch/program/commands/commands.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/config/starter_config.h"
#include "launch/program/config/toml_text.h"
#include "launch/program/devices/cores.h"
#include "launch/program/own_command.h"

namespace lockstep {
namespace {

// Never overwrites a file.
void write_new(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wbx");
  if (file == nullptr && errno == EEXIST) {
    throw IoError(
        fmt::format("{} exists already and is not overwritten; name another file with --output", path));
  }
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size() &&
                       std::fflush(file) == 0;
  const int error = errno;
  if (file != nullptr) std::fclose(file);
  if (written) return;
  if (file != nullptr) std::filesystem::remove(path);
  throw IoError(fmt::format("{} cannot be written: {}", path, std::strerror(error)));
}

// As size_for(), but if an image's header cannot be read, the error names the first of all such images.
std::int64_t checked_size_for(const Dataset& train, DatasetOptions options) {
  try {
    return size_for(train);
  } catch (const Error&) {
    const log::Quiet quiet;    // the first opening logged about the same files
    options.resize.size = 32;  // images may differ in size
    const std::unique_ptr<Dataset> all = open_dataset(options, Split::train);
    ProgressMeter meter("verifying", "images", find_terminal());
    verify(*all, {.extent = Verify::headers,
                  .shard = {},
                  .threads = usable_cores(),
                  .told_progress = [&](std::int64_t done, std::int64_t count) { meter.show(done, count); }});
    throw;
  }
}

// About ten images, but at most half of them.
double share_to_test(std::int64_t images) {
  return std::clamp(std::round(100 / static_cast<double>(images)) / 10, 0.1, 0.5);
}

int run_init(const Command& command) {
  if (launched_rank() != 0) return exit_code::done;
  const std::filesystem::path folder =
      (std::filesystem::absolute(command.folder) / "").lexically_normal().parent_path();
  const std::string name = folder.filename().empty() ? "images" : folder.filename().string();
  if (!readable_toml("path = " + detail::quoted(folder.string())).errors.empty())
    throw ConfigError(
        fmt::format("{} cannot be written to a configuration: TOML holds UTF-8 only; rename the folder",
                    folder.string()));
  const std::string output = command.output.empty() ? name + ".toml" : command.output;

  DatasetOptions options{.format = "image_folder", .path = folder};
  std::unique_ptr<Dataset> train = open_dataset(options, Split::train), test;
  options.resize.size = checked_size_for(*train, options);
  try {
    test = open_dataset(options, Split::test);
  } catch (const Error& error) {
    options.validation_share = share_to_test(train->size());
    log::warning("{}; {} sets data.validation_share = {}", error.what(), output, options.validation_share);
  }
  if (options.resize.size > 0 || test == nullptr) {
    const log::Quiet quiet;  // the first opening logged about the same files
    train = open_dataset(options, Split::train);
    if (test == nullptr) test = open_dataset(options, Split::test);
  }
  ImageSummary summary = summarize(*train);
  summary.resized = options.resize.size > 0;
  summary.validation_share = options.validation_share;
  write_new(output, starter_config(summary, folder, name));
  const std::string shown =
      output.find('/') == std::string::npos && !output.ends_with(".toml") ? "./" + output : output;
  std::vector<std::string> words = {own_arguments().front(), "train", shown};
  if (summary.images > 1) words.insert(words.end(), {"--ranks", "2"});  // each rank needs an image
  fmt::print("{}\n\nTrain with\n  {}\n",
             wrapped(fmt::format("Wrote {}: {} training and {} test images of {} classes, {} x {} pixels.",
                                 output, summary.images, test->size(), summary.classes, summary.shape.width,
                                 summary.shape.height),
                     {}),
             shell_command(words));
  return exit_code::done;
}

void init_flags(CLI::App& app, Command& command) {
  app.add_option("FOLDER", command.folder,
                 "Folder of images: train/CLASS/*.jpg and test/CLASS/*.jpg (or .png; or val/)")
      ->required();
  app.add_option("--output", command.output,
                 "File to write, never overwritten (default: FOLDER's name and .toml, in the current folder)")
      ->type_name("FILE");
}

}  // namespace

extern const CommandEntry init_command = {
    .name = "init",
    .description = "Write a configuration for a folder of your own images",
    .example = "lockstep init flowers\nlockstep train flowers.toml --ranks 2",
    .flags = init_flags,
    .alone = run_init};

}  // namespace lockstep
