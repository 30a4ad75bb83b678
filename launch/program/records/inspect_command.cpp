// SPDX-License-Identifier: Apache-2.0
//
// lockstep inspect: prints the content of record files, and verifies their checksums.
#include <algorithm>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/log.h"
#include "core/system/printable.h"
#include "core/system/terminal.h"
#include "core/text/json_text.h"
#include "core/text/text.h"
#include "data/images/png.h"
#include "data/images/resample.h"
#include "data/images/resized.h"
#include "data/records/record_file.h"
#include "data/records/records.h"
#include "data/sets/verify.h"
#include "data/sets/wrapped.h"
#include "launch/observe/terminal/progress_meter.h"
#include "launch/program/commands/commands.h"
#include "launch/program/devices/cores.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

struct InspectFlags {
  std::string folder;
  std::string sheet;
  bool quick = false;
  bool json = false;
};

constexpr std::int64_t kSheetColumns = 10;  // images of a class, side by side
constexpr std::int64_t kSheetClasses = 20;
constexpr std::int64_t kSheetSide = 96;  // pixels; larger images are scaled down to it
constexpr std::size_t kMostRows = 50;    // of the table of classes

// Image files of one size. Records do not store data.exif_orientation, with which they were packed: an image
// that has another size after EXIF rotation is read without rotation.
class InEitherOrientation final : public Wrapped {
 public:
  InEitherOrientation(std::unique_ptr<Dataset> turned, std::unique_ptr<Dataset> as_stored)
      : Wrapped(std::move(turned)), as_stored_(std::move(as_stored)) {}
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    try {
      return Wrapped::read(index, image);
    } catch (const DataError&) {
      return as_stored_->read(index, image);
    }
  }
  std::int64_t damaged() const override { return Wrapped::damaged() + as_stored_->damaged(); }

 private:
  std::unique_ptr<Dataset> as_stored_;
};

// The record files of one split.
struct Found {
  std::string name;
  std::unique_ptr<Dataset> dataset;  // images of different sizes are resized to kSheetSide
  RecordHeader header;               // of the first file
  bool own_sizes() const { return header.own_sizes != 0; }
  std::vector<std::filesystem::path> files;
  std::uint64_t bytes = 0;
};

Found find(const std::string& folder, Split split) {
  // resize.size is required to open images of different sizes.
  DatasetOptions options{.path = folder, .resize = {.size = kSheetSide}};
  Found found{.name = split == Split::train ? "train" : "test",
              .dataset = open_records(options, split),
              .files = record_files(options, split)};
  found.header = RecordFile(found.files.front()).header();
  if (found.own_sizes()) {
    found.dataset = resized(std::move(found.dataset), {.size = kSheetSide});
  } else if (found.dataset->coding() == ImageCoding::file) {
    const log::Quiet quiet;  // the first opening logged about the same files
    options.images.exif_orientation = ExifOrientation::ignore;
    found.dataset =
        std::make_unique<InEitherOrientation>(std::move(found.dataset), open_records(options, split));
  }
  for (const auto& file : found.files) found.bytes += std::filesystem::file_size(file);
  return found;
}

const char* word_of(const RecordHeader& header) {
  return header.coding == static_cast<std::uint32_t>(ImageCoding::pixels) ? "pixels" : "image files";
}

std::string summary_of_splits(const Found& train, const Found& test) {
  if (!train.own_sizes()) return summary_of(*train.dataset, *test.dataset);
  return fmt::format("{} training and {} test images, {}, in {} classes", train.dataset->size(),
                     test.dataset->size(), sizes_of_images(*train.dataset), train.dataset->classes());
}

Json description(const Found& found) {
  const RecordHeader& header = found.header;
  return {{"files", found.files.size()},
          {"bytes", found.bytes},
          {"version", header.version},
          {"images", word_of(header)},
          {"source", fmt::format("{:016x}", header.source)},
          {"samples", found.dataset->size()},
          {"own_sizes", found.own_sizes()},
          {"height", header.height},
          {"width", header.width},
          {"channels", header.channels},
          {"classes", found.dataset->classes()},
          {"samples_of_class", found.dataset->class_counts()}};
}

std::string name_of(const std::vector<std::string>& names, std::size_t label) {
  return names.empty() ? fmt::format("{}", label) : printable(names[label]);
}

void print_classes(const std::vector<Found>& splits) {
  const std::vector<std::string> names = splits.front().dataset->class_names();
  const std::vector<std::int64_t> train = splits[0].dataset->class_counts();
  std::vector<std::int64_t> test = splits[1].dataset->class_counts();
  test.resize(train.size());
  std::size_t width = 5;
  const std::size_t rows = std::min(train.size(), kMostRows);
  for (std::size_t label = 0; label < rows; ++label) width = std::max(width, name_of(names, label).size());
  width = std::min<std::size_t>(width, 40);
  const std::int64_t most = std::max<std::int64_t>(1, *std::ranges::max_element(train));
  fmt::print("\n{:<{}}  {:>9}  {:>9}\n", "class", width, "train", "test");
  for (std::size_t label = 0; label < rows; ++label) {
    const auto length = static_cast<std::size_t>(20 * train[label] / most);
    fmt::print("{:<{}.{}}  {:>9}  {:>9}  {}\n", name_of(names, label), width, width, train[label],
               test[label], std::string(length, '#'));
  }
  if (rows < train.size()) fmt::print("and {} more; --json lists all\n", train.size() - rows);
}

// Scales down to at most kSheetSide in height and width.
ImageShape shape_on_sheet(const ImageShape& shape) {
  const std::int64_t longer = std::max(shape.height, shape.width);
  if (longer <= kSheetSide) return shape;
  const auto scaled = [&](std::int64_t side) {
    return std::max<std::int64_t>(1, side * kSheetSide / longer);
  };
  return {.height = scaled(shape.height), .width = scaled(shape.width), .channels = shape.channels};
}

// Draws a row of the first images for each class, with white lines of one pixel between images.
void write_sheet(const Dataset& dataset, const std::string& path) {
  const ImageShape shape = dataset.image_shape(), shown = shape_on_sheet(shape);
  if (shape.channels != 1 && shape.channels != 3)
    throw ConfigError(
        fmt::format("--sheet: images must have 1 or 3 channels, these have {}", shape.channels));
  const std::int64_t classes = std::min(dataset.classes(), kSheetClasses);
  const ImageShape sheet{.height = classes * (shown.height + 1) + 1,
                         .width = kSheetColumns * (shown.width + 1) + 1,
                         .channels = shape.channels};
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(sheet.bytes()), 255);
  std::vector<std::uint8_t> image(static_cast<std::size_t>(shape.bytes())),
      small(static_cast<std::size_t>(shown.bytes()));
  std::vector<std::int64_t> placed(static_cast<std::size_t>(classes));
  std::int64_t missing = classes * kSheetColumns;
  for (std::int64_t i = 0; i < dataset.size() && missing > 0; ++i) {
    const std::int64_t label = dataset.read(i, image);
    if (label >= classes || placed[static_cast<std::size_t>(label)] == kSheetColumns) continue;
    const std::int64_t column = placed[static_cast<std::size_t>(label)]++;
    --missing;
    resample(ImageView::of(image, shape),
             {.height = static_cast<double>(shape.height), .width = static_cast<double>(shape.width)}, shown,
             small);
    const std::int64_t line = shown.width * shown.channels;
    for (std::int64_t y = 0; y < shown.height; ++y) {
      const std::int64_t place =
          (label * (shown.height + 1) + 1 + y) * sheet.width + column * (shown.width + 1) + 1;
      std::copy_n(small.begin() + y * line, line, pixels.begin() + place * shown.channels);
    }
  }
  const std::vector<std::uint8_t> png = encode_png(sheet, pixels);
  write_atomically(path, {reinterpret_cast<const char*>(png.data()), png.size()});
}

int run_inspect(const Command& command) {
  if (launched_rank() != 0) return exit_code::done;
  const auto& flags = command.own<InspectFlags>();
  std::vector<Found> splits;
  splits.push_back(find(flags.folder, Split::train));
  splits.push_back(find(flags.folder, Split::test));
  const Dataset& train = *splits[0].dataset;
  if (flags.json) {
    Json document{{"class_names", train.class_names()}};
    for (const Found& found : splits) document[found.name] = description(found);
    fmt::print("{}\n", dumped(document, 2, true));
  } else {
    print_fitted(printable(fmt::format("{}: {}", flags.folder, summary_of_splits(splits[0], splits[1]))));
    for (const Found& found : splits)
      print_fitted(fmt::format("  {:<5}  {} of {}, {:.1f} MB in {}", found.name, found.dataset->size(),
                               word_of(found.header), static_cast<double>(found.bytes) * 1e-6,
                               counted(found.files.size(), "file")));
    print_classes(splits);
  }
  if (!flags.sheet.empty()) write_sheet(train, flags.sheet);
  if (flags.quick) return exit_code::done;
  const int threads = usable_cores();
  for (const Found& found : splits) {
    VerifyOptions options{.extent = Verify::all, .shard = {}, .threads = threads};
    ProgressMeter meter("verifying " + found.name, "images", find_terminal());
    if (!flags.json)
      options.told_progress = [&](std::int64_t done, std::int64_t all) { meter.show(done, all); };
    verify(*found.dataset, options);
  }
  if (!flags.json) fmt::print("\nAll {} images are valid.\n", train.size() + splits[1].dataset->size());
  return exit_code::done;
}

void inspect_flags(CLI::App& app, Command& command) {
  auto& flags = command.own<InspectFlags>();
  app.add_option("FOLDER", flags.folder, "Folder of record files, written by lockstep pack")->required();
  app.add_option("--sheet", flags.sheet, "Write the first images of each class to this PNG file")
      ->type_name("FILE");
  app.add_flag("--quick", flags.quick, "Do not read the images; their checksums are then not verified");
  app.add_flag("--json", flags.json, "Print the description as JSON");
}

}  // namespace

extern const CommandEntry inspect_command = {
    .name = "inspect",
    .description = "Print the content of record files, and verify every byte",
    .example = "lockstep inspect cifar10-records --sheet cifar10.png",
    .flags = inspect_flags,
    .alone = run_inspect};

}  // namespace lockstep
