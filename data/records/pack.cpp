// SPDX-License-Identifier: Apache-2.0
#include "data/records/pack.h"

#include <algorithm>
#include <deque>
#include <future>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/log.h"
#include "data/images/jpeg_decoder.h"
#include "data/records/record_file.h"
#include "data/records/record_writer.h"
#include "data/records/records.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;  // of pixels per task of a thread
constexpr std::int64_t kMostShards = 100000;                 // shard numbers have five digits
// Where the system starts no more threads, get() reads.
constexpr std::launch kReading = std::launch::async | std::launch::deferred;

// One shard to be written, of samples [begin, end).
struct ShardPlan {
  const PackSplit* split = nullptr;
  std::int64_t begin = 0, end = 0;
  RecordSchema schema;
  fs::path path;
};

std::uint64_t source_of(const Dataset& dataset, const PackOptions& options, std::int64_t in_shard) {
  const std::uint64_t parts[] = {dataset.fingerprint(),
                                 static_cast<std::uint64_t>(options.coding) + (options.own_sizes ? 2u : 0u),
                                 static_cast<std::uint64_t>(in_shard),
                                 options.leave_out_damaged ? 1u : 0u,
                                 static_cast<std::uint64_t>(options.jpeg_quality),
                                 XXH3_64bits(options.preparation.data(), options.preparation.size())};
  return XXH3_64bits(parts, sizeof(parts));
}

std::vector<ShardPlan> plan_of(const PackSplit& split, const fs::path& folder, const PackOptions& options) {
  const Dataset& dataset = *split.dataset;
  const std::int64_t channels = dataset.image_shape().channels;
  if (options.jpeg_quality > 0 && channels != 1 && channels != 3)
    throw ConfigError(
        fmt::format("the images of {} have {} channels; JPEG supports 1 or 3", split.name, channels));
  if (options.coding == ImageCoding::file && options.jpeg_quality == 0 &&
      dataset.coding() != options.coding) {
    throw ConfigError(
        fmt::format("the images of {} are not stored as image files; pack them with --as pixels or --as jpeg",
                    split.name));
  }
  if (dataset.has_masks())
    throw ConfigError("record files do not hold masks: train on these images without lockstep pack");
  const std::int64_t in_shard =
      std::max<std::int64_t>(1, options.shard_bytes / dataset.image_shape().bytes());
  const std::int64_t shards = (dataset.size() + in_shard - 1) / in_shard;
  if (shards > kMostShards) {
    throw ConfigError(fmt::format("{} shards of {} images; the limit is {} shards: set a larger --shard-mib",
                                  shards, in_shard, kMostShards));
  }
  const std::uint64_t source = source_of(dataset, options, in_shard);
  std::vector<ShardPlan> plans;
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    plans.push_back({.split = &split,
                     .begin = shard * in_shard,
                     .end = std::min(dataset.size(), (shard + 1) * in_shard),
                     .schema = {.coding = options.coding,
                                .shape = dataset.image_shape(),
                                .own_sizes = options.own_sizes,
                                .classes = dataset.classes(),
                                .class_names = dataset.class_names(),
                                .source = source,
                                .shard = shard,
                                .shards = shards},
                     .path = folder / shard_name(split.name, shard, shards)});
  }
  return plans;
}

// Concatenated images.
struct Piece {
  std::vector<std::uint8_t> bytes;
  std::vector<std::size_t> ends;
  std::vector<std::int32_t> labels;
  std::int64_t left_out = 0;
};

void read_one(const Dataset& dataset, std::int64_t index, const PackOptions& options, Piece& piece,
              std::vector<std::uint8_t>& image) {
  if (options.coding == ImageCoding::file && options.jpeg_quality == 0) {
    OwnSizeImage decoded;  // read_stored() does not detect undecodable images
    dataset.read_own_size(
        index, [](const ImageShape& whole) { return whole; }, decoded);
    piece.labels.push_back(dataset.read_stored(index, image));
  } else {
    image.resize(static_cast<std::size_t>(dataset.image_shape().bytes()));
    piece.labels.push_back(dataset.read(index, image));
    if (options.coding == ImageCoding::file)
      image = encode_jpeg(dataset.image_shape(), image, options.jpeg_quality);
  }
  piece.bytes.insert(piece.bytes.end(), image.begin(), image.end());
  piece.ends.push_back(piece.bytes.size());
}

Piece read_piece(const Dataset& dataset, std::int64_t begin, std::int64_t end, const PackOptions& options) {
  Piece piece;
  std::vector<std::uint8_t> image;
  for (std::int64_t index = begin; index < end; ++index) {
    try {
      read_one(dataset, index, options, piece, image);
    } catch (const DataError& error) {
      if (!options.leave_out_damaged) throw;
      if (piece.left_out++ == 0) log::warning("{}; the image is left out", error.what());
    }
  }
  return piece;
}

class Packing {
 public:
  Packing(const PackOptions& options, const std::function<void(const PackProgress&)>& told_progress)
      : options_(options), told_progress_(told_progress) {}

  PackProgress& progress() { return progress_; }
  void tell() const {
    if (told_progress_) told_progress_(progress_);
  }

  // options_.threads threads read pieces ahead; they are written in order.
  void write(const ShardPlan& plan) {
    const Dataset& dataset = *plan.split->dataset;
    RecordWriter writer(plan.path, plan.schema);
    const std::int64_t in_piece = std::max<std::int64_t>(1, kPieceBytes / dataset.image_shape().bytes());
    std::deque<std::future<Piece>> under_way;
    std::int64_t next = plan.begin, written = 0;
    for (std::int64_t done = plan.begin; done < plan.end;) {
      while (next < plan.end && std::ssize(under_way) <= options_.threads) {
        const std::int64_t end = std::min(plan.end, next + in_piece);
        under_way.push_back(
            std::async(kReading, read_piece, std::cref(dataset), next, end, std::cref(options_)));
        next = end;
      }
      const Piece piece = under_way.front().get();
      under_way.pop_front();
      std::size_t begin = 0;
      for (std::size_t i = 0; i < piece.labels.size(); ++i) {
        writer.add(std::span(piece.bytes).subspan(begin, piece.ends[i] - begin), piece.labels[i]);
        begin = piece.ends[i];
      }
      const std::int64_t samples = static_cast<std::int64_t>(piece.labels.size()) + piece.left_out;
      written += static_cast<std::int64_t>(piece.labels.size());
      done += samples;
      progress_.done += samples;
      progress_.left_out += piece.left_out;
      tell();
    }
    if (written == 0) {
      throw DataError(fmt::format("none of the images {} to {} of {} can be decoded", plan.begin,
                                  plan.end - 1, plan.split->name));
    }
    writer.finish();
  }

  // Returns true if the shard exists from an earlier run. A damaged shard is written again.
  bool keep(const ShardPlan& plan) {
    std::error_code error;
    if (!fs::exists(plan.path, error)) return false;
    std::optional<RecordFile> file;
    try {
      file.emplace(plan.path);
    } catch (const DataError& damage) {
      log::warning("{}; the shard is written again", damage.what());
      return false;
    }
    if (file->header().source != plan.schema.source || file->header().shard != plan.schema.shard) {
      throw ConfigError(fmt::format(
          "{}: left by unfinished packing of another dataset, with other options or by another "
          "version of lockstep; remove the folder, or repeat that command with that version to finish it",
          plan.path.parent_path().string()));
    }
    ++progress_.kept_shards;
    progress_.done += plan.end - plan.begin;
    progress_.left_out += plan.end - plan.begin - file->size();
    return true;
  }

 private:
  const PackOptions& options_;
  const std::function<void(const PackProgress&)>& told_progress_;
  PackProgress progress_;
};

// Removes temporary files of an interrupted run. Throws ConfigError for any other unexpected file.
void remove_begun_files(const fs::path& folder, const std::vector<ShardPlan>& plans) {
  std::set<std::string> expected;
  for (const ShardPlan& plan : plans) expected.insert(plan.path.filename().string());
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const std::size_t end = name.find(kPartialMark);
    if (end != std::string::npos && expected.contains(name.substr(0, end))) {
      fs::remove(entry.path());
    } else if (!expected.contains(name)) {
      throw ConfigError(
          fmt::format("{}: left by unfinished packing of another dataset or with other options, or not part "
                      "of a record set; remove it",
                      entry.path().string()));
    }
  }
}

fs::path without_last_slash(const fs::path& folder) {
  const fs::path normal = folder.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

}  // namespace

PackProgress pack(const std::vector<PackSplit>& splits, const fs::path& wanted, const PackOptions& options,
                  const std::function<void(const PackProgress&)>& told_progress) {
  CHECK(options.threads > 0 && options.shard_bytes > 0, "{} threads, {} bytes", options.threads,
        options.shard_bytes);
  const fs::path folder = without_last_slash(wanted);
  std::error_code error;
  if (fs::exists(folder, error)) {
    throw ConfigError(
        fmt::format("{} already exists and is not changed; name another folder", folder.string()));
  }
  const fs::path partial = folder.string() + ".partial";
  std::vector<ShardPlan> plans;
  Packing packing(options, told_progress);
  for (const PackSplit& split : splits) {
    for (ShardPlan& plan : plan_of(split, partial, options)) plans.push_back(std::move(plan));
    packing.progress().samples += split.dataset->size();
  }
  fs::create_directories(partial, error);
  if (error) throw IoError(fmt::format("{}: cannot be created: {}", partial.string(), error.message()));
  try {
    remove_begun_files(partial, plans);
    for (const ShardPlan& plan : plans) {
      if (!packing.keep(plan)) packing.write(plan);
      packing.tell();
    }
    fs::rename(partial, folder);
  } catch (const fs::filesystem_error& failure) {
    throw IoError(failure.what());
  }
  sync_folder(fs::absolute(folder).parent_path());
  return packing.progress();
}

}  // namespace lockstep
