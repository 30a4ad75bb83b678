// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/files/crc32c.h"
#include "core/files/file_text.h"
#include "core/log.h"
#include "core/system/printable.h"
#include "core/system/terminal.h"
#include "core/text/json_text.h"
#include "core/text/text.h"
#include "data/formats/image_folder.h"
#include "data/formats/image_names.h"
#include "data/images/png.h"
#include "data/images/resized.h"
#include "launch/observe/terminal/progress_line.h"
#include "launch/program/commands/agreed_config.h"
#include "launch/program/commands/commands.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/devices/cores.h"
#include "launch/program/devices/device_choice.h"
#include "launch/program/network/export_facts.h"
#include "launch/program/network/predictor.h"
#include "launch/program/resume/resume.h"
#include "launch/train/checkpoint/saved_training.h"
#include "launch/train/hold.h"
#include "launch/train/job_end.h"
#include "launch/train/watch/replicas.h"
#include "launch/train/watch/step_watch.h"
#include "models/state_copy.h"
#include "models/weight_average.h"

namespace lockstep {
namespace {

struct PredictFlags {
  std::string weights;
  std::vector<std::string> images;
  std::string config;
  std::string masks;  // folder of the masks to write
  int batch = 64;
  int top = 1;
  bool csv = false;
  bool logits = false;
};

// Files as given, whether they exist or not, and the sorted images in given folders.
std::vector<std::string> image_paths(const std::vector<std::string>& given) {
  std::vector<std::string> paths;
  for (const std::string& each : given) {
    std::error_code error;
    if (std::filesystem::is_directory(each, error))
      std::ranges::move(images_below(each), std::back_inserter(paths));
    else
      paths.push_back(each);
  }
  if (paths.empty())
    throw IoError(fmt::format("{}: no images (.jpg, .jpeg, .jpe, .jfif, .png)", fmt::join(given, ", ")));
  return paths;
}

// A file that another program wrote has no facts; --config and its dataset supply them.
ExportFacts facts_of(const PredictFlags& flags, const Command& command) {
  if (std::optional<ExportFacts> facts = read_export_facts(flags.weights); facts && flags.config.empty())
    return *facts;
  if (flags.config.empty())
    throw UsageError(
        fmt::format("{} does not contain the settings of its network, which lockstep train --export writes; "
                    "give --config CONFIG with the model and the dataset that it was trained with",
                    flags.weights));
  const Registry& registry = command.registry;
  const Config config = load_config(flags.config, command.overrides, registry);
  return export_facts(config, *open_dataset(config.dataset, Split::train, registry.formats), registry);
}

// For a checkpoint: its saved keys of model and data, and the class names of its dataset, which a checkpoint
// does not contain.
ExportFacts facts_of(const SavedTraining& saved, const Command& command) {
  const Registry& registry = command.registry;
  auto [settings, unknown] = network_settings(saved.manifest, registry);
  if (!unknown.empty())
    log::shared_warning(
        "{}: the program that saved this checkpoint (version {}) has keys that this one lacks ({}), so "
        "predictions may be wrong; use that program",
        saved.folder.string(), saved.manifest.lockstep, fmt::join(unknown, ", "));
  settings.insert(settings.end(), command.overrides.begin(), command.overrides.end());
  const Config config = config_of(settings, registry);
  const std::unique_ptr<Dataset> train = open_dataset(config.dataset, Split::train, registry.formats);
  if (!train->class_names().empty() && !is_described_by(saved.manifest.data, *train))
    log::shared_warning(
        "{}: data.path = \"{}\" does not hold the training data of this checkpoint ({}), so class names may "
        "be wrong; restore the data, or predict with an export of the training, which contains the names",
        saved.folder.string(), config.dataset.path, saved.manifest.data);
  return export_facts(config, *train, registry);
}

// The origin of the weights: an export, or a checkpoint.
struct Source {
  std::optional<SavedTraining> saved;
  ExportFacts facts;
};

// Replaces the weights by their averages, as evaluations and exports do, if the training keeps them.
void use_averages(StateCopy& state) {
  std::map<std::string, const StateCopy::Tensor*> averages;
  for (const StateCopy::Tensor& tensor : state.tensors)
    if (tensor.name.ends_with(WeightAverage::kSuffix))
      averages[tensor.name.substr(0, tensor.name.size() - WeightAverage::kSuffix.size())] = &tensor;
  for (StateCopy::Tensor& tensor : state.tensors)
    if (const auto found = averages.find(tensor.name); found != averages.end())
      tensor.values = found->second->values;
}

// Collective; errors are agreed.
Source find_source(const PredictFlags& flags, const Command& command, Communicator& host) {
  Source source;
  std::error_code error;
  if (first_rank_where(host, std::filesystem::is_directory(flags.weights, error)) >= 0) {
    if (!flags.config.empty())
      throw_agreed(UsageError(fmt::format(
          "--config {}: {} is the folder of a run, which contains its configuration; remove --config",
          flags.config, flags.weights)));
    source.saved = newest_saved(host, flags.weights);
    use_averages(source.saved->state);
    log::info("using the weights of {}", source.saved->folder.string());
  }
  run_agreed(host, [&] {
    source.facts = source.saved ? facts_of(*source.saved, command) : facts_of(flags, command);
  });
  return source;
}

// The paths of the masks: those of the images below the deepest folder that holds all of them, as PNG files
// in `folder`. Throws UsageError if two images would have the same, or if a mask would replace an image.
std::vector<std::filesystem::path> mask_paths(const std::vector<std::string>& images,
                                              const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::vector<fs::path> whole;
  for (const std::string& image : images) whole.push_back(fs::absolute(image).lexically_normal());
  fs::path common = whole.front().parent_path();
  for (const fs::path& each : whole) {
    const fs::path parent = each.parent_path();
    const auto [end, unused] = std::mismatch(common.begin(), common.end(), parent.begin(), parent.end());
    fs::path shared;
    for (auto part = common.begin(); part != end; ++part) shared /= *part;
    common = shared;
  }
  std::set<fs::path> inputs;
  for (const std::string& image : images) inputs.insert(resolved_path(image));
  std::vector<fs::path> masks;
  std::map<fs::path, std::string> taken;
  for (std::size_t i = 0; i < images.size(); ++i) {
    masks.push_back(folder / whole[i].lexically_relative(common).replace_extension(".png"));
    const fs::path written = resolved_path(masks.back());
    const auto [other, is_new] = taken.emplace(written, images[i]);
    if (!is_new && other->second != images[i])
      throw UsageError(fmt::format("--masks {}: {} and {} would have the same mask {}; predict them apart",
                                   folder.string(), other->second, images[i], masks.back().string()));
    if (inputs.contains(written))
      throw UsageError(fmt::format("--masks {}: {} would be overwritten; choose another folder",
                                   folder.string(), masks.back().string()));
  }
  return masks;
}

// Replaces the file, without writing into it: the path may be a hard link to an input image.
void write_mask(const std::filesystem::path& path, const ImageShape& image,
                std::span<const std::uint8_t> mask) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const std::vector<std::uint8_t> png = encode_png_values(image, mask);
  write_atomically(path, {reinterpret_cast<const char*>(png.data()), png.size()}, Links::follow, Durable::no);
}

constexpr const char* kNotFinite = "the network's logits are not finite";

// Prints rank 0's predictions at once; other ranks keep theirs until finish().
class Printer {
 public:
  // images: the dataset of `paths`. masks: the files to write if the network has an output for each pixel;
  // their shape is `facts.image`.
  Printer(const std::vector<std::string>& paths, const Dataset& images, const ExportFacts& facts,
          const std::vector<std::filesystem::path>& masks, const PredictFlags& flags, Communicator& host)
      : paths_(paths),
        images_(images),
        facts_(facts),
        classes_(facts.classes),
        masks_(masks),
        flags_(flags),
        host_(host) {
    if (flags.csv && host.rank() == 0)
      put(facts.masks ? "file,mask,class,label,share\n"
                      : fmt::format("file,class,label,probability{}\n", flags.logits ? ",logit" : ""));
  }

  void operator()(std::int64_t image, const Predictor::Scores& scores) {
    const std::string& path = paths_[static_cast<std::size_t>(image)];
    const bool decoded = !scores.logits.empty();
    const bool finite = std::ranges::all_of(scores.logits, [](float x) { return std::isfinite(x); });
    if (!decoded) ++undecoded_;
    if (!finite) ++not_finite_;
    const std::string problem = decoded ? "" : problem_of(image);
    const char* error = !decoded ? problem.c_str() : !finite ? kNotFinite : nullptr;
    if (facts_.masks) return put_mask(image, scores, error);
    flags_.csv ? put_csv(path, scores, error) : put_json(path, scores, error);
  }
  std::int64_t undecoded() const { return undecoded_; }
  // Number of images with logits that are not finite.
  std::int64_t not_finite() const { return not_finite_; }
  // Collective, after the last image: rank 0 prints the predictions of the other ranks in rank order.
  void finish() {
    constexpr std::size_t kPiece = 1 << 20;  // bytes that each rank receives at a time
    const std::vector<std::uint64_t> sizes = gather_values<std::uint64_t>(host_, kept_.size());
    for (int rank = 1; rank < host_.size(); ++rank) {
      for (std::size_t at = 0; at < sizes[static_cast<std::size_t>(rank)]; at += kPiece) {
        const std::string piece =
            broadcast_text(host_, rank == host_.rank() ? kept_.substr(at, kPiece) : "", rank);
        if (host_.rank() == 0) put(piece);
      }
    }
    if (host_.rank() == 0) flush_or_throw();
  }

 private:
  // The reason why an image has no scores.
  std::string problem_of(std::int64_t image) const {
    try {
      images_.probe(image);
    } catch (const Error& error) {
      return error.what();
    }
    return "cannot be decoded as an image";
  }
  void put(const std::string& text) {
    if (host_.rank() != 0)
      kept_ += text;
    else if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size())
      flush_or_throw();
  }
  // A file name may contain control characters that a terminal would interpret.
  static std::string in_csv(const std::string& name) { return csv_field(printable(name)); }
  // Equivalent JSON without the control characters that nlohmann leaves: DEL and U+0080 to U+009F.
  static std::string without_controls(const std::string& json) {
    std::string escaped;
    for (std::size_t i = 0; i < json.size(); ++i) {
      const auto byte = static_cast<unsigned char>(json[i]);
      const auto next = static_cast<unsigned char>(i + 1 < json.size() ? json[i + 1] : 0);
      const bool two_bytes = byte == 0xc2 && next < 0xa0;
      if (byte == 0x7f || two_bytes)
        escaped += fmt::format("\\u{:04x}", two_bytes ? next : byte);
      else
        escaped += json[i];
      if (two_bytes) ++i;
    }
    return escaped;
  }
  // The classes with the largest probabilities, the class that evaluations count first. Equal ones, such as
  // those of large logits, are ordered by logit.
  std::vector<std::size_t> best(const Predictor::Scores& scores) const {
    std::vector<std::size_t> order(scores.probabilities.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto top = std::min<std::size_t>(static_cast<std::size_t>(flags_.top), order.size());
    const auto is_counted = [&](std::size_t label) {
      return static_cast<std::int64_t>(label) == scores.counted;
    };
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top), order.end(),
                      [&](std::size_t a, std::size_t b) {
                        if (is_counted(a) != is_counted(b)) return is_counted(a);
                        if (scores.probabilities[a] != scores.probabilities[b])
                          return scores.probabilities[a] > scores.probabilities[b];
                        return scores.logits[a] != scores.logits[b] ? scores.logits[a] > scores.logits[b]
                                                                    : a < b;
                      });
    order.resize(top);
    return order;
  }

  // error: the reason why the image has no class; null if it has one.
  void put_csv(const std::string& path, const Predictor::Scores& scores, const char* error) {
    if (error != nullptr) return put(fmt::format("{},,,{}\n", in_csv(path), flags_.logits ? "," : ""));
    for (const std::size_t label : best(scores))
      put(fmt::format("{},{},{},{:.6g}{}\n", in_csv(path), in_csv(classes_[label]), label,
                      scores.probabilities[label],
                      flags_.logits ? fmt::format(",{}", scores.logits[label]) : ""));
  }
  // A line with the shares of the classes that the mask has, in the order of the classes.
  void put_mask(std::int64_t image, const Predictor::Scores& scores, const char* error) {
    const auto place = static_cast<std::size_t>(image);
    nlohmann::ordered_json line{{"file", paths_[place]}};
    if (error != nullptr) {
      if (flags_.csv) return put(fmt::format("{},,,,\n", in_csv(paths_[place])));
      line["error"] = error;
      return put(without_controls(dumped(line)) + '\n');
    }
    const std::string mask = masks_[place].string();
    write_mask(mask, facts_.image, scores.mask);
    line["mask"] = mask;
    line["classes"] = nlohmann::ordered_json::array();
    for (std::size_t label = 0; label < classes_.size(); ++label) {
      const float share = scores.probabilities[label];
      if (share == 0) continue;
      if (flags_.csv)
        put(fmt::format("{},{},{},{},{:.6g}\n", in_csv(paths_[place]), in_csv(mask), in_csv(classes_[label]),
                        label, share));
      line["classes"].push_back({{"class", classes_[label]}, {"label", label}, {"share", share}});
    }
    if (!flags_.csv) put(without_controls(dumped(line)) + '\n');
  }
  void put_json(const std::string& path, const Predictor::Scores& scores, const char* error) {
    nlohmann::ordered_json line{{"file", path}};
    if (error != nullptr) {
      line["error"] = error;
    } else {
      const std::vector<std::size_t> order = best(scores);
      const auto json_of = [&](std::size_t label) {
        nlohmann::ordered_json one{
            {"class", classes_[label]}, {"label", label}, {"probability", scores.probabilities[label]}};
        if (flags_.logits) one["logit"] = scores.logits[label];
        return one;
      };
      line.update(json_of(order.front()));
      if (order.size() > 1)
        for (const std::size_t label : order) line["top"].push_back(json_of(label));
    }
    put(without_controls(dumped(line)) + '\n');
  }

  const std::vector<std::string>& paths_;
  const Dataset& images_;
  const ExportFacts& facts_;
  const std::vector<std::string>& classes_;
  const std::vector<std::filesystem::path>& masks_;
  const PredictFlags& flags_;
  Communicator& host_;
  std::string kept_;
  std::int64_t undecoded_ = 0, not_finite_ = 0;
};

// Resizes images to a square input. Any other input has the size of the training images, because data.resize
// makes images square; images of another size are then damaged.
std::unique_ptr<Dataset> open_images(const std::vector<std::string>& paths, const ExportFacts& facts,
                                     const Config& config) {
  const ImageShape& input = facts.image;
  if (input.type != DType::u8)
    throw ConfigError("the network was trained on rows of a table, not on images; use lockstep eval");
  if (input.channels != 1 && input.channels != 3)
    throw ConfigError(
        fmt::format("the network takes images with {} channels, but lockstep predict reads images with 1 or "
                    "3; use lockstep eval",
                    input.channels));
  const bool square = input.height == input.width;
  std::unique_ptr<Dataset> images = open_image_list(paths, input,
                                                    {.exif = config.dataset.images.exif_orientation,
                                                     .classes = facts.classes,
                                                     .any_size = square,
                                                     .unreadable_is_damaged = true,
                                                     .labels_of_pixels = facts.masks});
  if (!square) return images;
  return resized(std::move(images),
                 {.size = input.height, .center_share = config.dataset.resize.center_share});
}

// Collective. All ranks need the same list, because each predicts a part of it.
void require_same_images(Communicator& host, const std::vector<std::string>& paths) {
  const Difference found = find_difference(
      host,
      fmt::format("{} images ({:08x})", paths.size(), crc32c(fmt::format("{}", fmt::join(paths, "\n")))));
  if (found.ranks.empty()) return;
  throw_agreed(
      ConfigError(fmt::format("{} found {}, rank 0 found {}: ranks share one list of images; put the "
                              "images on storage that all ranks read",
                              named_ranks(found.ranks), found.text, found.reference)));
}

// Collective. Logs the totals of all ranks; throws an agreed Error if images have no class.
void tell_end(std::size_t images, const Predictor& predictor, const Printer& printer, Communicator& host) {
  struct Share {
    double seconds, busy_seconds;
    std::int64_t undecoded, not_finite;
  };
  const std::vector<Share> shares =
      gather_values(host, Share{predictor.seconds(), predictor.busy() * predictor.seconds(),
                                printer.undecoded(), printer.not_finite()});
  Share all{0, 0, 0, 0};
  for (const Share& each : shares) {
    all.seconds = std::max(all.seconds, each.seconds);
    all.busy_seconds += each.busy_seconds;
    all.undecoded += each.undecoded;
    all.not_finite += each.not_finite;
  }
  log::info("{} images in {:.2f} s: {}, busy {:.0f} %", images, all.seconds,
            per_second(static_cast<double>(images) / all.seconds, "images"),
            100 * all.busy_seconds / (static_cast<double>(shares.size()) * all.seconds));
  if (all.not_finite > 0)
    throw_agreed(Error(exit_code::failed, fmt::format("{} of {} images have no class: {}; use other weights",
                                                      all.not_finite, images, kNotFinite)));
  if (all.undecoded > 0)
    throw_agreed(DataError(fmt::format("{} of {} images cannot be read", all.undecoded, images)));
}

void check_mask_flags(const PredictFlags& flags, const ExportFacts& facts) {
  if (facts.masks && flags.masks.empty())
    throw UsageError("the network has a class for each pixel: give the folder for masks, --masks FOLDER");
  if (!facts.masks && !flags.masks.empty())
    throw UsageError(
        fmt::format("--masks {}: the network has one class for each image, not for each pixel", flags.masks));
  if (facts.masks && (flags.logits || flags.top > 1))
    throw UsageError("--logits and --top: a network with a class for each pixel only writes masks");
}

int predict(const PredictFlags& flags, const Command& command, World& world, Communicator& host) {
  std::vector<std::string> set;  // as messages show it
  for (const std::string& each : command.overrides) set.push_back(detail::without_secrets(each));
  // Each rank reads the weights and predicts a part of the images.
  require_same_flags(host, fmt::format("\"{}\" --config \"{}\" --set {} --masks \"{}\" --batch {} --top {} "
                                       "--csv {} --logits {}",
                                       flags.weights, flags.config, set, flags.masks, flags.batch, flags.top,
                                       flags.csv, flags.logits));
  const Source source = find_source(flags, command, host);
  const ExportFacts& facts = source.facts;
  Config config;
  std::vector<std::string> paths;
  std::vector<std::filesystem::path> masks;
  std::unique_ptr<Dataset> images;
  run_agreed(host, [&] {
    check_mask_flags(flags, facts);
    paths = image_paths(flags.images);
    const auto batch = std::min<std::int64_t>(flags.batch, std::ssize(paths));  // the rest would be padding
    std::vector<std::string> overrides = facts.settings;
    // No dataset is opened.
    overrides.insert(overrides.end(),
                     {"train.batch=" + std::to_string(batch), "kernels.choose=direct", "data.path=."});
    overrides.insert(overrides.end(), command.overrides.begin(), command.overrides.end());
    config = config_of(overrides, command.registry);
    refuse_auto(config, command.name);
    if (facts.masks) masks = mask_paths(paths, flags.masks);
    images = open_images(paths, facts, config);
  });
  watch_job(world, host, config.timeout_seconds);
  require_same_images(host, paths);
  const DeviceChoice choice = choose_device(config.device, world, host);
  const ThreadChoice threads = choose_threads(config.threads, world, host);
  Predictor predictor(config, command.registry, *images, host,
                      {.device = choice.device,
                       .threads = threads.threads,
                       .loader_threads = std::max(1, threads.node_cores / world.local_size()),
                       .weights = flags.weights,
                       .state = source.saved ? &source.saved->state : nullptr});
  hold_in("predict");
  Printer printer(paths, *images, facts, masks, flags, host);
  predictor.run([&](std::int64_t image, const Predictor::Scores& each) { printer(image, each); });
  printer.finish();
  tell_end(paths.size(), predictor, printer, host);
  return exit_code::done;
}

int run_predict(const Command& command, World& world) {
  const std::unique_ptr<Communicator> host = world.communicator();
  return run_or_abort(world, [&] { return predict(command.own<PredictFlags>(), command, world, *host); });
}

void predict_flags(CLI::App& app, Command& command) {
  auto& flags = command.own<PredictFlags>();
  app.add_option("WEIGHTS", flags.weights,
                 "Trained network: an export of lockstep train --export, a run's folder (its newest "
                 "checkpoint) or a checkpoint's folder")
      ->required();
  app.add_option("IMAGES", flags.images, "JPEG and PNG files, and folders of them")->required();
  app.add_option("--top", flags.top,
                 "Number of classes to print for each image, the most probable first (default: 1)")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  app.add_option("--masks", flags.masks,
                 "For a network with a class for each pixel: folder for the masks, palette PNG images whose "
                 "values are classes")
      ->type_name("FOLDER");
  app.add_flag("--csv", flags.csv, "Print CSV instead of lines of JSON");
  app.add_flag("--logits", flags.logits, "Also print the logit of each class");
  app.add_option("--batch", flags.batch, "Images per batch (default: 64); at most the number of images")
      ->check(CLI::Range(1, 65536))
      ->type_name("N");
  app.add_option(
         "--config", flags.config,
         "For a file of another program (PyTorch's names): the configuration of its network and dataset")
      ->type_name("CONFIG");
  app.add_option("--set", command.overrides, "Override one key of the configuration; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

}  // namespace

extern const CommandEntry predict_command = {
    .name = "predict",
    .description = "Predict the classes of images with a trained network",
    .example =
        "lockstep predict own.safetensors photo.jpg photos/\n"
        "lockstep predict own.safetensors photos/ --top 5 --csv > classes.csv\n"
        "lockstep predict runs/own photos/ --ranks 4 > classes.jsonl\n"
        "lockstep predict shapes.safetensors photos/ --masks masks/",
    .flags = predict_flags,
    .in_world = run_predict};

}  // namespace lockstep
