// SPDX-License-Identifier: Apache-2.0
//
// lockstep pack: writes the dataset of a configuration as record files.

#include <CLI/CLI.hpp>

#include "core/error.h"
#include "core/log.h"
#include "core/system/terminal.h"
#include "core/system/wrapped_text.h"
#include "core/text/text.h"
#include "data/records/pack.h"
#include "data/records/records.h"
#include "launch/observe/terminal/progress_meter.h"
#include "launch/program/commands/commands.h"
#include "launch/program/config/config.h"
#include "launch/program/devices/cores.h"
#include "launch/program/own_command.h"

namespace lockstep {
namespace {

struct PackFlags {
  std::string folder;
  std::string as = "pixels";
  int quality = 90;
  std::int64_t shard_mib = 1024;
  int threads = 0;  // 0: one for each usable core
  bool leave_out_damaged = false;
};

std::uint64_t bytes_in(const std::filesystem::path& folder) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) bytes += entry.file_size();
  return bytes;
}

PackProgress pack_or_say_how(const std::vector<PackSplit>& splits, const std::string& folder,
                             const PackOptions& options, ProgressMeter& bar) try {
  return pack(splits, folder, options,
              [&](const PackProgress& progress) { bar.show(progress.done, progress.samples); });
} catch (const DataError& error) {
  bar.clear();
  if (options.leave_out_damaged) throw;
  throw DataError(fmt::format("{}\n--leave-out-damaged packs the other images", error.what()));
}

// Every option that changes the pixels of the same files.
std::string preparation_of(const DatasetOptions& dataset) {
  return fmt::format("resize {} center_crop {} channels {} exif_orientation {}", dataset.resize.size,
                     dataset.resize.center_share, dataset.images.channels,
                     word_of(dataset.images.exif_orientation));
}

// The settings with which training reads the same samples and pixels as from the packed dataset.
std::string settings_to_train(const DatasetOptions& dataset, const PackOptions& options,
                              const std::string& folder) {
  std::vector<std::string> settings = {"data.format=records", "data.path=" + folder};
  if (options.own_sizes) {
    settings.push_back(fmt::format("data.resize={}", dataset.resize.size));
  } else if (dataset.resize.size > 0) {
    settings.push_back("data.resize=0");
    settings.push_back("data.random_resized_crop=false");
    // For lockstep predict, which crops photos by it.
    if (dataset.resize.center_share < 1)
      settings.push_back(fmt::format("data.center_crop={}", dataset.resize.center_share));
  }
  if (dataset.validation_share > 0) settings.push_back("data.validation_share=0");
  if (dataset.test_split != "auto") settings.push_back("data.test_split=auto");
  std::vector<std::string> words;
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  return shell_command(words);
}

ConfigError cannot_store_random_crops(const std::string& as) {
  return ConfigError(fmt::format(
      "data.random_resized_crop = true: --as {} stores one crop of each image, but training takes "
      "another in each epoch; use --as files, or set data.random_resized_crop=false to store "
      "center crops (with data.resize=0 whole images, which must have one size)",
      as));
}

// For packing that left out images: the counts of the source would include them.
std::string summary_of_written(const std::string& folder, const ResizeOptions& resize) {
  const log::Quiet quiet;
  const DatasetOptions options{.path = folder, .resize = resize};
  return summary_of(*open_records(options, Split::train), *open_records(options, Split::test));
}

int run_pack(const Command& command) {
  if (launched_rank() != 0) return exit_code::done;
  const auto& flags = command.own<PackFlags>();
  const Config config = load_config(command.config, command.overrides, command.registry);
  const bool as_files = flags.as == "files";  // keep the stored sizes, also with data.resize
  if (config.dataset.resize.random_crop && !as_files) throw cannot_store_random_crops(flags.as);
  const auto open = as_files ? open_in_own_sizes : open_dataset;
  const auto train = open(config.dataset, Split::train, command.registry.formats);
  const auto test = open(config.dataset, Split::test, command.registry.formats);
  const PackOptions options = {.coding = flags.as == "pixels" ? ImageCoding::pixels : ImageCoding::file,
                               .jpeg_quality = flags.as == "jpeg" ? flags.quality : 0,
                               .own_sizes = as_files && config.dataset.resize.size > 0,
                               .shard_bytes = flags.shard_mib << 20,
                               .threads = flags.threads > 0 ? flags.threads : usable_cores(),
                               .leave_out_damaged = flags.leave_out_damaged,
                               .preparation = preparation_of(config.dataset)};
  ProgressMeter bar("packing", "images", find_terminal());
  const PackProgress packed =
      pack_or_say_how({{.name = "train", .dataset = train.get()}, {.name = "test", .dataset = test.get()}},
                      flags.folder, options, bar);
  bar.clear();
  const std::string summary = packed.left_out > 0 ? summary_of_written(flags.folder, config.dataset.resize)
                                                  : summary_of(*train, *test);
  std::string text = fmt::format("Wrote {}: {}, {:.1f} MB, in {:.1f} s", flags.folder, summary,
                                 static_cast<double>(bytes_in(flags.folder)) * 1e-6, bar.seconds());
  if (packed.kept_shards > 0)
    text += fmt::format("; kept {} of an earlier run", counted(packed.kept_shards, "file"));
  if (packed.left_out > 0)
    text += fmt::format("; skipped {} that cannot be decoded", counted(packed.left_out, "image"));
  fmt::print("{}.\n\nTrain on it with\n  {}\n", wrapped(text, {}),
             settings_to_train(config.dataset, options, flags.folder));
  return exit_code::done;
}

void pack_flags(CLI::App& app, Command& command) {
  auto& flags = command.own<PackFlags>();
  add_configuration_flags(app, command);
  app.add_option("FOLDER", flags.folder, "Folder to create; an existing folder is not overwritten")
      ->required();
  app.add_option("--as", flags.as,
                 "Content of an image. pixels: its pixels, which are read fastest (default); files: its "
                 "original JPEG or PNG file, of any size if data.resize is set; jpeg: a JPEG file made from "
                 "its pixels, resized like them. files and jpeg take less space and are decoded at each "
                 "read. data.random_resized_crop allows only files")
      ->type_name("pixels|files|jpeg")
      ->check(CLI::IsMember({"pixels", "files", "jpeg"}));
  app.add_option("--quality", flags.quality, "JPEG quality of --as jpeg, as defined by libjpeg (default 90)")
      ->type_name("1..100")
      ->check(CLI::Range(1, 100));
  app.add_option("--shard-mib", flags.shard_mib,
                 "Approximate size of the pixels in one file, in MiB (default 1024)")
      ->type_name("MIB")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  app.add_option("--threads", flags.threads, "Threads that read images (default: one per usable core)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--leave-out-damaged", flags.leave_out_damaged,
               "Skip images that cannot be decoded instead of failing with exit code 65");
}

}  // namespace

extern const CommandEntry pack_command = {
    .name = "pack",
    .description = "Write a dataset as record files, which are read fastest",
    .example =
        "lockstep pack cifar10_resnet18 cifar10-records --set data.path=cifar10\n"
        "lockstep inspect cifar10-records",
    .flags = pack_flags,
    .alone = run_pack};

}  // namespace lockstep
