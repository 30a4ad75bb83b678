// SPDX-License-Identifier: Apache-2.0
#include "data/hdf5/hdf5_images.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <fmt/ranges.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/log.h"
#include "core/system/job_signals.h"
#include "core/text/text.h"
#include "data/containers/split_files.h"
#include "data/formats/image_names.h"
#include "data/formats/readable_file.h"
#include "data/formats/split_words.h"
#include "data/hdf5/hdf5_protocol.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kLongestOpening{600};

// The files of a split.
struct Hdf5Files {
  std::vector<fs::path> paths;
  std::vector<std::string> words, others;  // of this split, and of the other splits
  bool shared = false;                     // the files may also hold other splits
};

// Reads a split through its own lockstep-hdf5 process, for one thread at a time.
class Hdf5Reader {
 public:
  Hdf5Reader(const Hdf5Files& files, const Hdf5Options& options) : path_(files.paths.front().string()) {
    for (const fs::path& path : files.paths) static_cast<void>(ReadableFile(path));
    start(files, options);
    try {
      take_answer();
      take(&facts_, sizeof(facts_));
      if (facts_.samples < 1 || facts_.samples > std::numeric_limits<std::int32_t>::max() ||
          shape().bytes() < 1)
        fail("the number or size of its images is out of range");
      labels_.resize(static_cast<std::size_t>(facts_.samples));
      take(labels_.data(), labels_.size() * sizeof(std::int32_t));
      wait_at_most(options.longest_answer);
    } catch (...) {
      end();
      throw;
    }
  }
  ~Hdf5Reader() { end(); }
  Hdf5Reader(const Hdf5Reader&) = delete;
  Hdf5Reader& operator=(const Hdf5Reader&) = delete;

  const std::string& path() const { return path_; }
  ImageShape shape() const {
    return {.height = facts_.height, .width = facts_.width, .channels = facts_.channels};
  }
  const std::vector<std::int32_t>& labels() const { return labels_; }
  bool is_scaled() const { return facts_.largest == 1; }
  bool is_guessed() const { return facts_.guessed == 1; }
  const Hdf5Facts& facts() const { return facts_; }

  void read(std::int64_t index, std::span<std::uint8_t> image) const {
    const std::lock_guard lock(mutex_);
    if (send(socket_, &index, sizeof(index), MSG_NOSIGNAL) != sizeof(index)) fail_ended();
    take_answer();
    take(image.data(), image.size());
  }

 private:
  // Starts the program from this executable's folder, or else from PATH.
  void start(const Hdf5Files& files, const Hdf5Options& options) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "{}", std::strerror(errno));
    socket_ = ends[0];
    wait_at_most(kLongestOpening);
    std::error_code ignored;
    std::string program = fs::read_symlink("/proc/self/exe", ignored).parent_path() / kHdf5Program;
    if (!fs::exists(program, ignored)) program = kHdf5Program;
    std::vector<std::string> texts = {program,
                                      fmt::format("{}", fmt::join(files.words, ",")),
                                      fmt::format("{}", fmt::join(files.others, ",")),
                                      files.shared ? "1" : "0",
                                      options.images,
                                      options.labels};
    for (const fs::path& path : files.paths) texts.push_back(path.string());
    std::vector<char*> arguments;
    for (std::string& text : texts) arguments.push_back(text.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t descriptors;
    posix_spawn_file_actions_init(&descriptors);
    posix_spawn_file_actions_adddup2(&descriptors, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&descriptors, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&descriptors, STDERR_FILENO + 1);
    // Job signals go to the whole process group; the program blocks them, since the ranks need it until they
    // have saved a checkpoint.
    const sigset_t of_jobs = job_signals();
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, &of_jobs);
    const int error =
        posix_spawnp(&process_, program.c_str(), &descriptors, &attributes, arguments.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&descriptors);
    close(ends[1]);
    if (error == 0) return;
    close(socket_);
    if (std::getenv("LOCKSTEP_BUNDLE") != nullptr) {
      throw ConfigError(fmt::format(
          "data.format = \"hdf5\" needs the program {}, which bundles do not contain. Convert the files with "
          "lockstep pack on a machine that has it, and train here on those records ({})",
          kHdf5Program, std::strerror(error)));
    }
    throw ConfigError(
        fmt::format("data.format = \"hdf5\" needs the program {}, which is built only with the HDF5 library: "
                    "apt-get install libhdf5-dev, then configure and build again ({})",
                    kHdf5Program, std::strerror(error)));
  }
  void wait_at_most(std::chrono::seconds longest) {
    longest_answer_ = longest;
    const timeval value{.tv_sec = longest.count(), .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof(value));
  }
  void end() {
    close(socket_);
    kill(process_, SIGKILL);  // safe: it only reads
    waitpid(process_, nullptr, 0);
  }

  void take(void* data, std::size_t bytes) const {
    auto* to = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t got = recv(socket_, to, bytes, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) {
        shutdown(socket_, SHUT_RDWR);  // the late answer would be taken for that of the next sample
        fail(fmt::format("no answer in {} s: the file is damaged, or its disk hangs",
                         longest_answer_.count()));
      }
      if (got <= 0) fail_ended();
      to += got;
      bytes -= static_cast<std::size_t>(got);
    }
  }
  void take_answer() const {
    Hdf5Answer answer;
    take(&answer, sizeof(answer));
    if (answer.failure == Hdf5Failure::none) return;
    constexpr std::uint32_t kMostMessageBytes = 1 << 16;
    std::string message(std::min(answer.message_bytes, kMostMessageBytes), '\0');
    take(message.data(), message.size());
    if (answer.failure == Hdf5Failure::in_use) throw IoError(fmt::format("{}: {}", path_, message));
    if (answer.failure == Hdf5Failure::unlabelled)
      throw UnlabelledError(fmt::format("{}: {}", path_, message));
    fail(message);
  }
  [[noreturn]] void fail_ended() const { fail("damaged: the HDF5 library crashed while reading the file"); }
  [[noreturn]] void fail(const std::string& why) const { throw DataError(fmt::format("{}: {}", path_, why)); }

  std::string path_;
  pid_t process_ = 0;
  int socket_ = -1;
  std::chrono::seconds longest_answer_{};
  Hdf5Facts facts_;
  std::vector<std::int32_t> labels_;
  mutable std::mutex mutex_;
};

// The largest label plus 1.
std::int64_t classes_of(const Hdf5Reader& reader) {
  const auto [least, most] = std::ranges::minmax(reader.labels());
  if (least < 0 || most >= kMostLabels) {
    const std::string wrong = fmt::format("{}: labels are from {} to {}; allowed are 0 to {}", reader.path(),
                                          least, most, kMostLabels - 1);
    if (most < 0) throw UnlabelledError(wrong);
    throw DataError(wrong);
  }
  return most + 1;
}

class Hdf5Images final : public Dataset {
 public:
  // classes: of the training split; 0: this is the training split.
  Hdf5Images(std::unique_ptr<Hdf5Reader> reader, std::int64_t classes)
      : reader_(std::move(reader)), shape_(reader_->shape()) {
    if (shape_.bytes() > kMostImageBytes) {
      throw DataError(fmt::format("{}: an image has {} bytes; the limit is {}", reader_->path(),
                                  shape_.bytes(), kMostImageBytes));
    }
    const std::int64_t found = classes_of(*reader_);
    if (classes > 0 && found > classes) {
      throw DataError(fmt::format("{}: label {}, but the largest training label is {}", reader_->path(),
                                  found - 1, classes - 1));
    }
    counts_.resize(static_cast<std::size_t>(std::max(found, classes)));
    for (const std::int32_t label : reader_->labels()) ++counts_[static_cast<std::size_t>(label)];
  }

  std::int64_t size() const override { return std::ssize(reader_->labels()); }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return std::ssize(counts_); }
  std::optional<std::int32_t> label(std::int64_t index) const override {
    return reader_->labels()[static_cast<std::size_t>(index)];
  }
  std::vector<std::int64_t> class_counts() const override { return counts_; }
  // Reading unpacks chunks.
  bool decodes() const override { return true; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    CHECK(index >= 0 && index < size() && static_cast<std::int64_t>(image.size()) == shape_.bytes(),
          "sample {} of {} into {} bytes", index, size(), image.size());
    reader_->read(index, image);
    return reader_->labels()[static_cast<std::size_t>(index)];
  }
  std::size_t memory_bytes() const override { return reader_->labels().capacity() * sizeof(std::int32_t); }
  // Covers all labels and the pixels of some samples.
  std::uint64_t fingerprint() const override {
    const std::vector<std::int32_t>& labels = reader_->labels();
    return XXH3_64bits_withSeed(labels.data(), labels.size() * sizeof(std::int32_t), Dataset::fingerprint());
  }

 private:
  std::unique_ptr<Hdf5Reader> reader_;
  ImageShape shape_;
  std::vector<std::int64_t> counts_;
};

constexpr std::string_view kHdf5Endings[] = {".h5", ".hdf5", ".hdf"};

bool is_hdf5_name(const fs::path& path) {
  return std::ranges::count(kHdf5Endings, lower_case(path.extension().string())) > 0;
}

// The only HDF5 file of the folder, apart from hidden ones; empty if there is not exactly one.
fs::path only_file_in(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (is_hdf5_name(entry->path()) && !is_of_a_system(entry->path().filename().string()))
      found.push_back(entry->path());
  return found.size() == 1 ? found.front() : fs::path();
}

Hdf5Files hdf5_files_of(const DatasetOptions& options, Split split) {
  Hdf5Files files;
  for (const Split each : {Split::train, Split::test}) {
    std::vector<std::string>& words = each == split ? files.words : files.others;
    for (const std::vector<std::string>& group :
         split_words(each, each == split ? options.test_split : "auto"))
      words.insert(words.end(), group.begin(), group.end());
  }
  std::error_code unknown;
  const bool is_file = fs::is_regular_file(options.path, unknown);
  const fs::path only = is_file ? fs::path(options.path) : only_file_in(options.path);
  const bool is_named = has_word(only.stem().string(), files.words);
  const bool is_named_for_others = has_word(only.stem().string(), files.others);
  if (is_file || (!only.empty() && !is_named && !is_named_for_others)) {
    files.paths = {only};
    files.shared = !is_named || is_named_for_others;
    return files;
  }
  constexpr std::string_view kExpected =
      "train.h5 and test.h5, or val.h5 (or .hdf5), or one file with arrays of both";
  const auto lacks_labels = [&](const std::vector<fs::path>& paths) {
    Hdf5Files tried = files;
    tried.paths = paths;
    try {
      return std::ranges::max(Hdf5Reader(tried, options.hdf5).labels()) < 0;
    } catch (const UnlabelledError&) {
      return true;
    }
  };
  files.paths = split_files(options, split, {.mark = ".h", .expected = kExpected, .endings = kHdf5Endings},
                            lacks_labels);
  return files;
}

// Throws ConfigError for a name without {split}, which is one array for both splits of a file.
void require_split_in_names(const Hdf5Options& options, const std::string& file) {
  for (const auto& [key, name] :
       {std::pair("data.hdf5.images", options.images), std::pair("data.hdf5.labels", options.labels)}) {
    if (name == "auto" || name.find("{split}") != std::string::npos) continue;
    throw ConfigError(fmt::format(
        "{}: {} = \"{}\" would be used for training and for testing; put {{split}} into the name, "
        "or set data.validation_share to test with a part of the training samples",
        file, key, name));
  }
}

// Logs the word of the test images if the file has images of several.
void tell_test_split(const Hdf5Reader& reader, const std::vector<std::string>& words) {
  const std::int64_t used = reader.facts().word, other = reader.facts().other_word;
  if (std::min(used, other) < 0 || std::max(used, other) >= std::ssize(words)) return;
  log_test_split(reader.path(), words[static_cast<std::size_t>(used)], words[static_cast<std::size_t>(other)],
                 other < used ? "labels" : "");
}

std::unique_ptr<Hdf5Reader> reader_of(const DatasetOptions& options, Split split) {
  const Hdf5Files files = hdf5_files_of(options, split);
  auto reader = std::make_unique<Hdf5Reader>(files, options.hdf5);
  if (split == Split::test && options.test_split == "auto") tell_test_split(*reader, files.words);
  return reader;
}

}  // namespace

std::unique_ptr<Dataset> open_hdf5(const DatasetOptions& options, Split split) {
  std::optional<log::Quiet> quiet;
  if (split == Split::test) quiet.emplace();  // opening the training split logs about its files
  std::unique_ptr<Hdf5Reader> train = reader_of(options, Split::train);
  quiet.reset();
  if (split == Split::train && train->is_scaled())
    log::info(
        "{}: its pixels are floating-point numbers from 0 to 1 and are converted to whole numbers from 0 to "
        "255",
        train->path());
  if (split == Split::train) return std::make_unique<Hdf5Images>(std::move(train), 0);
  const std::int64_t classes = classes_of(*train);
  std::unique_ptr<Hdf5Reader> test = reader_of(options, Split::test);
  if (test->path() == train->path()) require_split_in_names(options.hdf5, test->path());
  if (test->shape() != train->shape()) {
    throw DataError(
        fmt::format("{}: its images differ in size from those in {}", test->path(), train->path()));
  }
  // Each file's pixels become 0 to 255 by its own range, so only wrong guesses give different pixels.
  if (test->is_scaled() != train->is_scaled() && test->is_guessed() && train->is_guessed()) {
    const auto range = [](const Hdf5Reader& reader) { return reader.is_scaled() ? "0 to 1" : "0 to 255"; };
    throw DataError(fmt::format("{}: its pixels are from {}, but those of {} are from {}", test->path(),
                                range(*test), train->path(), range(*train)));
  }
  return std::make_unique<Hdf5Images>(std::move(test), classes);
}

}  // namespace lockstep
