// SPDX-License-Identifier: Apache-2.0
//
// How fast can a loader deliver samples, and which stage limits it? Measures the training set of a
// configuration in shuffled order, stage by stage and in turns:
//
//   files    read the files one after the other in 1 MiB pieces: speed of the disk or the page cache
//   copy     copy as many bytes as the images have, from random places of memory as large as the set (at most
//            1 GiB): speed of memory
//   stored   read image files without decoding, if the set does not store pixels
//   decode   decode such files from random places of memory (at most 1 GiB) with libjpeg-turbo alone, into a
//            batch, if all of them are JPEG
//   read     the dataset's read(), which decodes, by several threads
//   loader   batches of the loader
//   kept     the same for preloaded images (data.loader = "preload"), if the set decodes images and they fit
//            into a quarter of the free memory
//   augment  crop, flip and normalise a batch on the compute threads
//
// Before a cold turn it asks the system to drop the files from the page cache, which keeps data that is not
// written to disk yet.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <future>
#include <thread>

#include <fcntl.h>
#include <turbojpeg.h>
#include <unistd.h>

#include "benchmarks/measure.h"
#include "core/error.h"
#include "core/timeline.h"
#include "data/batch_loader.h"
#include "data/sample_order.h"
#include "data/sets/preloaded.h"
#include "kernels/backend.h"
#include "launch/program/config/config.h"

namespace lockstep {
namespace {

struct LoaderBenchOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::vector<int> threads = {1, 2};
  std::int64_t samples = 20000;
  int turns = 5;
  bool cold = false;
  std::string json;
};

// A timed stage: processes `samples` samples, from position `first` of the order, which moves every turn.
struct Stage {
  std::string name;
  int threads = 1;
  std::function<void(std::int64_t first, std::int64_t samples)> run;
};

double seconds_of(const std::function<void()>& work) {
  const std::int64_t begin = now_ns();
  work();
  return seconds_since(begin);
}

// All regular files in a folder and its subfolders.
std::vector<std::filesystem::path> regular_files(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error))
    if (entry.is_regular_file(error)) files.push_back(entry.path());
  return files;
}

class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path) : value_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (value_ < 0) throw IoError(fmt::format("{}: cannot be read", path.string()));
  }
  ~OpenFile() { close(value_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

void forget(const std::vector<std::filesystem::path>& files) {
  for (const auto& path : files) posix_fadvise(OpenFile(path).get(), 0, 0, POSIX_FADV_DONTNEED);
}

std::uint64_t read_all(const std::vector<std::filesystem::path>& files) {
  static std::vector<char> piece(std::size_t{1} << 20);
  std::uint64_t bytes = 0;
  for (const auto& path : files) {
    const OpenFile file(path);
    for (ssize_t got = 0; (got = read(file.get(), piece.data(), piece.size())) > 0;)
      bytes += static_cast<std::uint64_t>(got);
  }
  return bytes;
}

// Images are copied or decoded into batches of this size, as in a loader.
constexpr std::int64_t kBatch = 64;

// Divides the samples evenly among threads. Throws what a thread throws.
void in_threads(int threads, std::int64_t samples,
                const std::function<void(std::int64_t begin, std::int64_t end)>& work) {
  std::vector<std::future<void>> all;
  for (int i = 0; i < threads; ++i)
    all.push_back(
        std::async(std::launch::async, [&, i] { work(samples * i / threads, samples * (i + 1) / threads); }));
  for (std::future<void>& thread : all) thread.get();
}

// Source memory as large as the images, at most 1 GiB, and a batch as target.
class CopiedImages {
 public:
  CopiedImages(std::int64_t images, std::int64_t bytes)
      : bytes_(bytes),
        places_(std::clamp<std::int64_t>((std::int64_t{1} << 30) / bytes, 1, images)),
        from_(static_cast<std::size_t>(places_ * bytes), 1),
        to_(static_cast<std::size_t>(bytes * kBatch)) {}

  // Copies images one after another into a batch, as a loader does.
  void copy(std::int64_t first, std::int64_t samples) {
    const SampleOrder order(places_, 1, static_cast<std::uint64_t>(first));
    for (std::int64_t i = 0; i < samples; ++i)
      std::copy_n(from_.begin() + order(i % places_) * bytes_, bytes_, to_.begin() + i % kBatch * bytes_);
  }

 private:
  std::int64_t bytes_, places_;
  std::vector<std::uint8_t> from_, to_;
};

// The set's image files, concatenated in memory, about 1 GiB at most. The files after the first one that is
// no JPEG are omitted.
class StoredImages {
 public:
  explicit StoredImages(const Dataset& dataset) : shape_(dataset.image_shape()) {
    const std::unique_ptr<void, int (*)(void*)> decompressor(tjInitDecompress(), &tjDestroy);
    std::vector<std::uint8_t> image;
    for (std::int64_t i = 0; all_jpeg_ && i < dataset.size() && images_.size() < std::size_t{1} << 30; ++i) {
      dataset.read_stored(i, image);
      int width = 0, height = 0, subsampling = 0, colours = 0;
      all_jpeg_ = tjDecompressHeader3(decompressor.get(), image.data(), image.size(), &width, &height,
                                      &subsampling, &colours) == 0;
      images_.insert(images_.end(), image.begin(), image.end());
      ends_.push_back(images_.size());
    }
  }

  bool all_jpeg() const { return all_jpeg_; }
  // Uses one decompressor for all images: the library's own speed.
  void decode(std::int64_t first, std::int64_t samples) const {
    const SampleOrder order(std::ssize(ends_), 1, static_cast<std::uint64_t>(first));
    const std::unique_ptr<void, int (*)(void*)> decompressor(tjInitDecompress(), &tjDestroy);
    // Unaligned: at multiples of 32 the library writes past the caches, which is slower for small images.
    constexpr std::size_t kAlignment = 32;
    std::vector<std::uint8_t> memory(static_cast<std::size_t>(shape_.bytes() * kBatch) + kAlignment);
    std::uint8_t* pixels =
        memory.data() + (reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment == 0 ? 1 : 0);
    for (std::int64_t i = 0; i < samples; ++i) {
      const auto at = static_cast<std::size_t>(order(i % std::ssize(ends_)));
      const std::size_t begin = at == 0 ? 0 : ends_[at - 1];
      tjDecompress2(decompressor.get(), images_.data() + begin, ends_[at] - begin,
                    pixels + i % kBatch * shape_.bytes(), static_cast<int>(shape_.width), 0,
                    static_cast<int>(shape_.height), shape_.channels == 1 ? TJPF_GRAY : TJPF_RGB,
                    TJFLAG_ACCURATEDCT);
    }
  }

 private:
  ImageShape shape_;
  bool all_jpeg_ = true;
  std::vector<std::uint8_t> images_;
  std::vector<std::size_t> ends_;
};

class LoaderBench {
 public:
  LoaderBench(const LoaderBenchOptions& options, const Config& config)
      : options_(options), config_(config), dataset_(open_dataset(config.dataset, Split::train)) {
    if (dataset_->decodes() && !dataset_->draws() && kept_bytes() <= available_memory(Device{}) / 4) keep();
    if (std::ranges::find(dataset_formats(), config.dataset.format, &DatasetFormat::name)->has_files)
      files_ = regular_files(config.dataset.path);
    add_stages();
  }

  nlohmann::json run() {
    const ImageShape shape = dataset_->image_shape();
    fmt::print("{} samples of {}x{}x{}, {}; {} a turn, {} turns, {}\n", dataset_->size(), shape.height,
               shape.width, shape.channels, config_.dataset.format, options_.samples, options_.turns,
               options_.cold ? "cold" : "warm");
    std::vector<std::vector<double>> rates(stages_.size());
    std::vector<double> megabytes;                        // of files, per second
    for (int turn = -1; turn < options_.turns; ++turn) {  // one to warm up
      if (!files_.empty()) {
        if (options_.cold) forget(files_);
        std::uint64_t bytes = 0;
        const double seconds = seconds_of([&] { bytes = read_all(files_); });
        if (turn >= 0) megabytes.push_back(static_cast<double>(bytes) * 1e-6 / seconds);
      }
      for (std::size_t i = 0; i < stages_.size(); ++i) {
        if (options_.cold) forget(files_);
        const double seconds =
            seconds_of([&] { stages_[i].run((turn + 1) * options_.samples, options_.samples); });
        if (turn >= 0) rates[i].push_back(static_cast<double>(options_.samples) / seconds);
      }
    }
    return report(rates, megabytes);
  }

 private:
  void add_stages() {
    copied_ = std::make_unique<CopiedImages>(dataset_->size(), dataset_->image_shape().bytes());
    stages_.push_back(
        {"copy", 1, [this](std::int64_t first, std::int64_t samples) { copied_->copy(first, samples); }});
    if (dataset_->coding() != ImageCoding::pixels) {
      stages_.push_back({"stored", 1, [this](std::int64_t first, std::int64_t samples) {
                           std::vector<std::uint8_t> bytes;
                           for_each(first, 0, samples,
                                    [&](std::int64_t index) { dataset_->read_stored(index, bytes); });
                         }});
      stored_ = std::make_unique<StoredImages>(*dataset_);
      if (stored_->all_jpeg()) {
        stages_.push_back({"decode", 1, [this](std::int64_t first, std::int64_t samples) {
                             stored_->decode(first, samples);
                           }});
      }
    }
    for (const int threads : options_.threads) {
      stages_.push_back(
          {"read", threads, [this, threads](std::int64_t first, std::int64_t samples) {
             in_threads(threads, samples, [&](std::int64_t begin, std::int64_t end) {
               std::vector<std::uint8_t> image(static_cast<std::size_t>(dataset_->image_shape().bytes()));
               for_each(first, begin, end, [&](std::int64_t index) { dataset_->read(index, image); });
             });
           }});
      add_loader("loader", *dataset_, threads);
      if (kept_) add_loader("kept", *kept_, threads);
    }
    add_augment();
  }

  std::size_t kept_bytes() const { return PreloadMemory::bytes_of_place(*dataset_, 1); }

  // Preloads all images, as after an epoch.
  void keep() {
    auto memory = std::make_shared<Buffer>(kept_bytes(), Device{});
    PreloadMemory place{.places = {memory->data()}, .owner = memory};
    kept_ = preloaded(dataset_, std::move(place));
    decode_now(*kept_, {.threads = options_.threads.back()});
  }

  void add_loader(const char* name, const Dataset& dataset, int threads) {
    LoaderOptions loader = config_.loader;
    loader.threads = threads;
    loaders_.push_back(std::make_unique<BatchLoader>(dataset, Shard{}, loader));
    stages_.push_back(
        {name, threads, [this, &batches = *loaders_.back()](std::int64_t first, std::int64_t samples) {
           // Also drops batches that were filled during other stages.
           batches.seek(0, first / config_.loader.batch);
           for (std::int64_t i = 0; i < samples; i += config_.loader.batch) batches.next();
         }});
  }

  void add_augment() {
    const ImageShape shape = dataset_->image_shape();
    const std::int64_t batch = config_.loader.batch;
    kernel_ = backend_for(Device{}).image_input({.batch = batch,
                                                 .height = shape.height,
                                                 .width = shape.width,
                                                 .channels = shape.channels,
                                                 .augmentation = config_.network.augmentation});
    stream_ = std::make_unique<Stream>(Device{}, StreamUse::compute);
    images_.resize(static_cast<std::size_t>(batch * shape.bytes()));
    output_ = Buffer(kernel_->output().bytes(), Device{});
    for (std::int64_t i = 0; i < batch; ++i)
      ids_.push_back({.epoch = 0, .index = static_cast<std::int32_t>(i)});
    stages_.push_back({"augment", static_cast<int>(std::thread::hardware_concurrency()),
                       [this, batch](std::int64_t, std::int64_t samples) {
                         for (std::int64_t i = 0; i < samples; i += batch)
                           kernel_->run(*stream_, images_.data(), output_.data(), ids_.data());
                         stream_->synchronize();
                       }});
  }

  // Calls work(sample) for positions [first + begin, first + end) of the order.
  template <typename Work>
  void for_each(std::int64_t first, std::int64_t begin, std::int64_t end, Work work) const {
    const SampleOrder order(dataset_->size(), 1, 0);
    for (std::int64_t i = begin; i < end; ++i) work(order((first + i) % dataset_->size()));
  }

  nlohmann::json report(const std::vector<std::vector<double>>& rates,
                        const std::vector<double>& megabytes) const {
    const double image_megabytes = static_cast<double>(dataset_->image_shape().bytes()) * 1e-6;
    const auto ratios_to = [&](const std::string& stage, const std::vector<double>& of) -> nlohmann::json {
      for (std::size_t i = 0; i < stages_.size(); ++i) {
        if (stages_[i].name != stage) continue;
        std::vector<double> ratios;
        for (std::size_t turn = 0; turn < of.size(); ++turn) ratios.push_back(of[turn] / rates[i][turn]);
        const Spread spread = spread_of(ratios);
        return {{"median", spread.typical}, {"least", spread.least}, {"most", spread.most}};
      }
      return nullptr;
    };
    nlohmann::json rows = nlohmann::json::array();
    fmt::print("{:<8} {:>7} {:>12} {:>10} {:>9} {:>10}   {}\n", "stage", "threads", "samples/s", "MB/s",
               "of copy", "of decode", "from .. to");
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const Spread rate = spread_of(rates[i]);
      const nlohmann::json of_copy = ratios_to("copy", rates[i]), of_decode = ratios_to("decode", rates[i]);
      const auto percent = [](const nlohmann::json& ratio) {
        return ratio.is_null() ? std::string("-")
                               : fmt::format("{:.0f} %", 100 * ratio["median"].get<double>());
      };
      fmt::print("{:<8} {:>7} {:>12.0f} {:>10.0f} {:>9} {:>10}   {:.0f} .. {:.0f}\n", stages_[i].name,
                 stages_[i].threads, rate.typical, rate.typical * image_megabytes, percent(of_copy),
                 percent(of_decode), rate.least, rate.most);
      rows.push_back({{"stage", stages_[i].name},
                      {"threads", stages_[i].threads},
                      {"samples_per_second", rate.typical},
                      {"samples_per_second_spread", {rate.least, rate.most}},
                      {"of_copy", of_copy},
                      {"of_decode", of_decode}});
    }
    nlohmann::json result = {
        {"format", config_.dataset.format},
        {"samples", dataset_->size()},
        {"image",
         {dataset_->image_shape().height, dataset_->image_shape().width, dataset_->image_shape().channels}},
        {"batch", config_.loader.batch},
        {"cache", options_.cold ? "cold" : "warm"},
        {"turns", options_.turns},
        {"rows", rows}};
    if (!megabytes.empty()) {
      const Spread files = spread_of(megabytes);
      fmt::print("reading files without decoding: {:.0f} MB/s, {:.0f} .. {:.0f}\n", files.typical,
                 files.least, files.most);
      result["files_megabytes_per_second"] = {
          {"median", files.typical}, {"least", files.least}, {"most", files.most}};
    }
    return result;
  }

  const LoaderBenchOptions& options_;
  const Config& config_;
  std::shared_ptr<Dataset> dataset_;
  std::unique_ptr<Dataset> kept_;
  std::vector<std::filesystem::path> files_;
  std::unique_ptr<CopiedImages> copied_;
  std::unique_ptr<StoredImages> stored_;
  std::vector<std::unique_ptr<BatchLoader>> loaders_;
  std::unique_ptr<ImageInputKernel> kernel_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::uint8_t> images_;
  std::vector<SampleId> ids_;
  Buffer output_;
  std::vector<Stage> stages_;
};

int run(LoaderBenchOptions options) {
  const Config config = load_config(options.config, options.overrides);
  const std::int64_t batch = config.loader.batch;
  options.samples = (options.samples + batch - 1) / batch * batch;  // as many as the loader's batches hold
  LoaderBench bench(options, config);
  const nlohmann::json result = bench.run();
  write_json(options.json,
             {{"benchmark", "loader_bench"}, {"machine", describe_machine()}, {"result", result}});
  return exit_code::done;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::LoaderBenchOptions options;
  lockstep::BenchProgram program(
      "loader_bench",
      "Measures how fast the training set of a configuration can be read, stage by stage and in turns: "
      "reading the files; copying as many bytes in memory (\"of copy\" is relative to this); for encoded "
      "images, reading them without decoding, and decoding JPEG by libjpeg-turbo alone (\"of decode\" is "
      "relative to this); the dataset's read(); the loader's batches; and augmentation by all cores. MB/s "
      "count decoded images.");
  program.configuration(options.config,
                        "a preset or a TOML file, of which only [data] and train.batch are used",
                        options.overrides);
  program.within("--threads", options.threads, 1, 64, "numbers of loader threads");
  program.positive("--samples", options.samples, "samples in a turn of a stage, rounded up to whole batches");
  program.positive("--turns", options.turns, "turns of each stage; medians are reported");
  program.flag("--cold", options.cold, "drop the files from the page cache before each stage");
  program.json(options.json);
  return program.run(argc, argv, [&] { return lockstep::run(options); });
}
