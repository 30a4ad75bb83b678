// SPDX-License-Identifier: Apache-2.0
//
// lockstep-hdf5: reads images and labels of HDF5 files with the HDF5 library for another process. See
// data/hdf5/hdf5_protocol.h.

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <hdf5.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include "data/formats/split_words.h"
#include "data/hdf5/hdf5_protocol.h"

namespace lockstep {
namespace {

// Cache of chunks that were read and unpacked.
constexpr std::size_t kChunkCacheBytes = std::size_t{64} << 20;

// Owns an HDF5 identifier.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close_id)(hid_t)) : id_(id), close_(close_id) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  hid_t id() const { return id_; }
  bool valid() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

// The library's error message, from its innermost function.
std::string reason() {
  std::string text = "the HDF5 library gives no reason";
  const auto take = [](unsigned n, const H5E_error2_t* error, void* into) -> herr_t {
    if (n == 0 && error->desc != nullptr) *static_cast<std::string*>(into) = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take, &text);
  return text;
}

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

std::string shape_text(const std::vector<hsize_t>& shape) {
  std::string text;
  for (const hsize_t side : shape) text += (text.empty() ? "" : " x ") + std::to_string(side);
  return text.empty() ? "a single number" : text;
}

// An HDF5 dataset whose numbers are all in this file.
class Numbers {
 public:
  Numbers(hid_t file, std::string name)
      : name_(std::move(name)), set_(open(file, name_)), space_(H5Dget_space(set_.id()), H5Sclose) {
    const int rank = H5Sget_simple_extent_ndims(space_.id());
    if (rank < 0) fail("\"" + name_ + "\" is not an array");
    shape_.resize(static_cast<std::size_t>(rank));
    H5Sget_simple_extent_dims(space_.id(), shape_.data(), nullptr);
    const Handle created(H5Dget_create_plist(set_.id()), H5Pclose);
    if (H5Pget_layout(created.id()) == H5D_VIRTUAL || H5Pget_external_count(created.id()) > 0)
      fail("\"" + name_ + "\" has its numbers in other files, which are not read");
    // Otherwise a file of a few bytes could claim any number of samples.
    if (!is_written(created.id()))
      fail("\"" + name_ + "\" has shape " + shape_text(shape_) + ", of which a part was never written");
  }

  const std::string& name() const { return name_; }
  const std::vector<hsize_t>& shape() const { return shape_; }
  bool has_type(H5T_class_t kind, std::size_t bytes = 0) const {
    const Handle type(H5Dget_type(set_.id()), H5Tclose);
    return H5Tget_class(type.id()) == kind && (bytes == 0 || H5Tget_size(type.id()) == bytes);
  }
  bool is_unsigned() const {
    const Handle type(H5Dget_type(set_.id()), H5Tclose);
    return H5Tget_sign(type.id()) == H5T_SGN_NONE;
  }
  void read_all(hid_t type, void* to) const {
    if (H5Dread(set_.id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, to) < 0)
      fail("\"" + name_ + "\": " + reason());
  }
  // Reads one element of the first dimension.
  void read_one(std::int64_t index, hid_t type, void* to) const {
    std::vector<hsize_t> begin(shape_.size()), count = shape_;
    begin[0] = static_cast<hsize_t>(index);
    count[0] = 1;
    const Handle from(H5Scopy(space_.id()), H5Sclose);
    const Handle into(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), H5Sclose);
    if (H5Sselect_hyperslab(from.id(), H5S_SELECT_SET, begin.data(), nullptr, count.data(), nullptr) < 0 ||
        H5Dread(set_.id(), type, into.id(), from.id(), H5P_DEFAULT, to) < 0)
      fail("\"" + name_ + "\", number " + std::to_string(index) + ": " + reason());
  }

 private:
  // Does not follow links to other files.
  static Handle open(hid_t file, const std::string& name) {
    const Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
    const auto refuse = [](const char*, const char*, const char*, const char*, unsigned*, hid_t,
                           void*) -> herr_t { return -1; };
    H5Pset_elink_cb(access.id(), refuse, nullptr);
    H5Pset_chunk_cache(access.id(), H5D_CHUNK_CACHE_NSLOTS_DEFAULT, kChunkCacheBytes,
                       H5D_CHUNK_CACHE_W0_DEFAULT);
    Handle set(H5Dopen2(file, name.c_str(), access.id()), H5Dclose);
    if (!set.valid()) fail("the file has no array \"" + name + "\" (" + reason() + ")");
    return set;
  }

  bool is_written(hid_t created) const {
    if (H5Pget_layout(created) != H5D_CHUNKED) {
      H5D_space_status_t status = H5D_SPACE_STATUS_ERROR;
      return H5Dget_space_status(set_.id(), &status) >= 0 && status == H5D_SPACE_STATUS_ALLOCATED;
    }
    std::vector<hsize_t> chunk(shape_.size());
    hsize_t chunks = 0, expected = 1;
    if (H5Pget_chunk(created, static_cast<int>(chunk.size()), chunk.data()) < 0 ||
        H5Dget_num_chunks(set_.id(), space_.id(), &chunks) < 0)
      return false;
    for (std::size_t i = 0; i < shape_.size(); ++i) expected *= (shape_[i] + chunk[i] - 1) / chunk[i];
    return chunks == expected;
  }

  std::string name_;
  Handle set_;
  Handle space_;
  std::vector<hsize_t> shape_;
};

// The arguments of the program.
struct Request {
  std::vector<std::string> words, others;  // of the wanted split, and of the other splits
  bool shared = false;
  std::string images, labels;
};

// The paths of the arrays in a file, at most 10,000.
std::vector<std::string> arrays_in(hid_t file) {
  constexpr std::size_t kMost = 10000;
  std::vector<std::string> names;
#if H5_VERSION_GE(1, 12, 0)
  using Info = H5O_info2_t;
#else
  using Info = H5O_info_t;
#endif
  const auto take = [](hid_t, const char* name, const Info* info, void* into) -> herr_t {
    auto& found = *static_cast<std::vector<std::string>*>(into);
    if (info->type == H5O_TYPE_DATASET) found.emplace_back(name);
    return found.size() < kMost ? 0 : 1;
  };
#if H5_VERSION_GE(1, 12, 0)
  H5Ovisit3(file, H5_INDEX_NAME, H5_ITER_INC, take, &names, H5O_INFO_BASIC);
#else
  H5Ovisit2(file, H5_INDEX_NAME, H5_ITER_INC, take, &names, H5O_INFO_BASIC);
#endif
  return names;
}

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// A word of the split. needed: an array of unknown name must contain it; otherwise it may also have no word.
struct SplitWord {
  std::string text;
  bool needed = true;
};

// Rank of a name, 0 is best; none if it does not match. usual: names in order of preference.
std::optional<std::size_t> rank_of(const std::string& name, const std::vector<std::string>& usual,
                                   const Request& request, const SplitWord& word) {
  bool is_wanted = false, is_of_split = false;
  std::vector<std::string> rest;
  for (const std::string& each : words_in(name)) {
    if (has(request.words, each)) {
      is_of_split = true;
      is_wanted = is_wanted || each == word.text;
    } else if (has(request.others, each)) {
      return std::nullopt;
    } else {
      rest.push_back(each);
    }
  }
  if (!is_wanted && (word.needed || is_of_split)) return std::nullopt;
  // "train_set_x", "data/train/x"
  while (rest.size() > 1 && (rest.front() == "set" || rest.front() == "data")) rest.erase(rest.begin());
  if (rest.size() > 1 && rest.back() == "set") rest.pop_back();
  const auto found = rest.size() == 1 ? std::find(usual.begin(), usual.end(), rest[0]) : usual.end();
  if (found == usual.end()) return std::nullopt;
  return (is_wanted ? 0 : usual.size()) + static_cast<std::size_t>(found - usual.begin());
}

struct OpenFile {
  Handle handle;
  std::vector<std::string> arrays;
};

struct Place {
  hid_t file;
  std::string array;
  bool operator==(const Place&) const = default;
};

// An array to find: by its name, or, if that is "auto", by its usual names in order of preference.
struct Wanted {
  std::string name;
  std::vector<std::string> usual;
  const char* key;  // that sets the name
};

// Finds the array that is named for the word of the split, or, for "auto", the one with the best rank.
std::optional<Place> place_of(const std::vector<OpenFile>& files, const Wanted& wanted,
                              const Request& request, const SplitWord& word) {
  std::optional<std::size_t> best;
  Place found{};
  bool twice = false;
  const auto offer = [&](hid_t file, const std::string& name, std::size_t rank) {
    if (best && rank > *best) return;
    twice = best == rank && found.file != file;
    best = rank;
    found = {file, name};
  };
  constexpr std::string_view kSplit = "{split}";
  std::string named = wanted.name;
  if (const std::size_t at = named.find(kSplit); at != std::string::npos)
    named.replace(at, kSplit.size(), word.text);
  for (const OpenFile& file : files) {
    if (wanted.name != "auto") {
      if (H5Lexists(file.handle.id(), named.c_str(), H5P_DEFAULT) > 0) offer(file.handle.id(), named, 0);
      continue;
    }
    for (const std::string& name : file.arrays)
      if (const auto rank = rank_of(name, wanted.usual, request, word)) offer(file.handle.id(), name, *rank);
  }
  if (twice)
    fail("two files have an array \"" + found.array + "\"; only one file of images per split is allowed");
  if (!best) return std::nullopt;
  return found;
}

[[noreturn]] void fail_missing(const std::vector<OpenFile>& files, const Wanted& wanted,
                               const Request& request) {
  std::string there;
  for (const OpenFile& file : files)
    for (const std::string& name : file.arrays) there += (there.empty() ? "" : ", ") + name;
  fail("it has " + (there.empty() ? "no arrays" : "the arrays " + there) + "; " +
       (wanted.name == "auto" ? "none has a usual name (" + wanted.usual[0] + ", " + wanted.usual[1] +
                                    ", ...)" + (request.shared ? ", combined with a word of the split" : "") +
                                    "; name the array with " + wanted.key
                              : std::string(wanted.key) + " = \"" + wanted.name +
                                    "\" is not among them; {split} is replaced by a word of the split"));
}

// The arrays of a split. word, other_word: as in Hdf5Facts.
struct Arrays {
  Place images, labels;
  std::int64_t word = -1, other_word = -1;
};

// The first word of the split with other images; -1: none.
std::int64_t word_of_others(const std::vector<OpenFile>& files, const Wanted& images, const Request& request,
                            const Place& used) {
  for (std::size_t i = 0; i < request.words.size(); ++i) {
    const auto place = place_of(files, images, request, {.text = request.words[i]});
    if (place && *place != used) return static_cast<std::int64_t>(i);
  }
  return -1;
}

// Finds the images and the labels of the first word of the split that has both. If the files hold only this
// split, their names may also have no word, or different words.
Arrays arrays_of(const std::vector<OpenFile>& files, const Request& request) {
  const Wanted images{
      .name = request.images, .usual = {"images", "image", "x", "img", "data"}, .key = "data.hdf5.images"};
  const Wanted labels{.name = request.labels,
                      .usual = {"labels", "label", "y", "targets", "target"},
                      .key = "data.hdf5.labels"};
  std::optional<Place> some_images, some_labels;
  for (const bool needed : {true, false}) {
    if (!needed && request.shared) break;
    for (std::size_t i = 0; i < request.words.size(); ++i) {
      const SplitWord word{.text = request.words[i], .needed = needed};
      const std::optional<Place> found_images = place_of(files, images, request, word);
      const std::optional<Place> found_labels = place_of(files, labels, request, word);
      if (found_images && found_labels)
        return {.images = *found_images,
                .labels = *found_labels,
                .word = static_cast<std::int64_t>(i),
                .other_word = request.shared ? word_of_others(files, images, request, *found_images) : -1};
      if (!some_images) some_images = found_images;
      if (!some_labels) some_labels = found_labels;
    }
  }
  if (!some_images) fail_missing(files, images, request);
  if (!some_labels) fail_missing(files, labels, request);
  if (!request.shared) return {.images = *some_images, .labels = *some_labels};
  fail("\"" + some_images->array + "\" and \"" + some_labels->array +
       "\" have different words of the split; rename them so that the images and the labels of a split have "
       "the same word");
}

// Another program has a file open for writing.
struct FileInUse : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Locks and unlocks the file as a reader does. Returns errno, or 0 if the file could be locked.
int lock_error(const char* path) {
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return 0;
  const int error = flock(descriptor, LOCK_SH | LOCK_NB) == 0 ? 0 : errno;
  close(descriptor);
  return error;
}

// The library locks the file, unless the user sets HDF5_USE_FILE_LOCKING=FALSE.
Handle open_file(const char* path) {
  Handle file(H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (file.valid()) return file;
  const std::string why = reason();
  const int error = lock_error(path);
  if (error == 0) fail("not an HDF5 file, or damaged: " + why);
  if (error == EWOULDBLOCK)
    throw FileInUse(std::string("another program has ") + path +
                    " open for writing; close it there, then start again");
  // The file system cannot lock files, such as NFS without a lock service.
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
#if H5_VERSION_GE(1, 12, 1) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
  H5Pset_file_locking(access.id(), false, true);
#else
  setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);
#endif
  Handle unlocked(H5Fopen(path, H5F_ACC_RDONLY, access.id()), H5Fclose);
  if (!unlocked.valid()) fail("not an HDF5 file, or damaged: " + reason());
  return unlocked;
}

bool are_channels(hsize_t side) { return side == 1 || side == 3 || side == 4; }

struct Images {
  Images(const std::vector<const char*>& paths, const Request& request)
      : files(open_files(paths)),
        arrays(arrays_of(files, request)),
        images(arrays.images.file, arrays.images.array),
        labels(arrays.labels.file, arrays.labels.array) {
    facts.word = arrays.word;
    facts.other_word = arrays.other_word;
    find_shape();
    hsize_t count = 1;
    for (const hsize_t side : labels.shape()) count *= side;
    if (labels.shape().empty() || labels.shape()[0] != images.shape()[0] || count != images.shape()[0])
      fail("\"" + labels.name() + "\" has shape " + shape_text(labels.shape()) +
           ", expected one label for each of " + std::to_string(images.shape()[0]) + " images");
    if (!labels.has_type(H5T_INTEGER) && !labels.has_type(H5T_FLOAT))
      fail("\"" + labels.name() + "\" does not contain numbers");
  }

  void find_shape() {
    const std::vector<hsize_t>& shape = images.shape();
    are_bytes = images.has_type(H5T_INTEGER, 1) && images.is_unsigned();
    if (!are_bytes && !images.has_type(H5T_INTEGER) && !images.has_type(H5T_FLOAT))
      fail("\"" + images.name() + "\" does not contain numbers");
    channels_first = shape.size() == 4 && !are_channels(shape[3]) && are_channels(shape[1]);
    const bool is_color = shape.size() == 4 && (channels_first || are_channels(shape[3]));
    if (shape.size() != 3 && !is_color)
      fail("\"" + images.name() + "\" has shape " + shape_text(shape) +
           ", expected N x height x width, N x height x width x channels or N x channels x height x width, "
           "with 1, 3 or 4 channels");
    for (const hsize_t side : shape) {
      if (side == 0 || side > std::numeric_limits<std::int32_t>::max())
        fail("\"" + images.name() + "\" has shape " + shape_text(shape) + ", which is empty or too large");
    }
    const auto side = [&](std::size_t at) { return static_cast<std::int64_t>(shape[at]); };
    facts.samples = side(0);
    facts.height = side(channels_first ? 2 : 1);
    facts.width = side(channels_first ? 3 : 2);
    facts.channels = shape.size() == 3 ? 1 : side(channels_first ? 1 : 3);
    constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;  // kMostImageBytes of data/dataset.h
    if (facts.height * facts.width > kMostPixels)
      fail("\"" + images.name() + "\" has shape " + shape_text(shape) +
           ": the limit is 2^28 pixels per image");
    pixels = static_cast<std::size_t>(facts.height * facts.width * facts.channels);
    if (!are_bytes) find_largest();
  }

  // Floating-point pixels are from 0 to 1 or from 0 to 255, which is guessed from at most 16 samples;
  // integers are from 0 to 255. A largest value just above 1 is probably of pixels from 0 to 1 that were
  // resampled, which would become black. Fails only if none of the samples can be read.
  void find_largest() {
    const std::int64_t looked = std::min<std::int64_t>(16, facts.samples);
    float most = 0;
    bool any = false;
    for (std::int64_t i = 0; i < looked; ++i) {
      try {
        read_numbers(i * (facts.samples - 1) / std::max<std::int64_t>(looked - 1, 1));
      } catch (const std::runtime_error&) {  // reported when the sample is read
        if (i + 1 == looked && !any) throw;
        continue;
      }
      any = true;
      most = std::max(most, *std::max_element(wide.begin(), wide.end()));
    }
    if (most > 1 && most < 2 && images.has_type(H5T_FLOAT))
      fail("\"" + images.name() + "\" has floating-point pixels of at most " + std::to_string(most) +
           "; expected are 0 to 1 or 0 to 255: clip them to 0 to 1");
    facts.guessed = images.has_type(H5T_FLOAT) ? 1 : 0;
    facts.largest = most <= 1 && facts.guessed == 1 ? 1 : 255;
  }

  void read_numbers(std::int64_t index) {
    wide.resize(pixels);
    images.read_one(index, H5T_NATIVE_FLOAT, wide.data());
  }

  // image: [H, W, C].
  void read(std::int64_t index, std::vector<std::uint8_t>& image) {
    if (index < 0 || index >= facts.samples) fail("there is no sample " + std::to_string(index));
    planes.resize(pixels);
    std::uint8_t* stored = channels_first ? planes.data() : image.data();
    if (are_bytes) {
      images.read_one(index, H5T_NATIVE_UINT8, stored);
    } else {
      read_numbers(index);
      const float factor = 255.0f / static_cast<float>(facts.largest);
      for (std::size_t i = 0; i < pixels; ++i) {
        const float value = wide[i] * factor;
        if (!(value > -0.5f && value < 255.5f))
          fail("\"" + images.name() + "\", image " + std::to_string(index) + " contains " +
               std::to_string(wide[i]) + "; expected pixels from 0 to " + std::to_string(facts.largest) +
               ", as in the first images");
        stored[i] = static_cast<std::uint8_t>(value + 0.5f);
      }
    }
    if (!channels_first) return;
    const auto channels = static_cast<std::size_t>(facts.channels), plane = pixels / channels;
    for (std::size_t c = 0; c < channels; ++c)
      for (std::size_t i = 0; i < plane; ++i) image[i * channels + c] = planes[c * plane + i];
  }

  std::vector<std::int32_t> all_labels() const {
    std::vector<double> numbers(static_cast<std::size_t>(facts.samples));
    labels.read_all(H5T_NATIVE_DOUBLE, numbers.data());
    std::vector<std::int32_t> whole;
    for (const double number : numbers) {
      if (!(number == std::floor(number) && std::abs(number) <= std::numeric_limits<std::int32_t>::max()))
        fail("\"" + labels.name() + "\" contains " + std::to_string(number) +
             ", which is not a whole number");
      whole.push_back(static_cast<std::int32_t>(number));
    }
    return whole;
  }

  std::vector<OpenFile> files;
  Arrays arrays;
  Numbers images, labels;
  Hdf5Facts facts;

 private:
  static std::vector<OpenFile> open_files(const std::vector<const char*>& paths) {
    std::vector<OpenFile> opened;
    for (const char* path : paths) {
      Handle file = open_file(path);
      std::vector<std::string> names = arrays_in(file.id());
      opened.push_back({.handle = std::move(file), .arrays = std::move(names)});
    }
    return opened;
  }

  bool are_bytes = false, channels_first = false;
  std::size_t pixels = 0;
  std::vector<std::uint8_t> planes;  // one image, [C, H, W]
  std::vector<float> wide;           // one image as stored, before conversion to bytes
};

void write_all(const void* data, std::size_t bytes) {
  if (std::fwrite(data, 1, bytes, stdout) != bytes) std::exit(1);  // the reader is gone
}

void answer_failure(const std::string& message, Hdf5Failure failure = Hdf5Failure::damaged) {
  const Hdf5Answer answer{.failure = failure, .message_bytes = static_cast<std::uint32_t>(message.size())};
  write_all(&answer, sizeof(answer));
  write_all(message.data(), message.size());
}

// A damaged file may request any amount of memory. Not with sanitizers, which map far more than they use.
void limit_memory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const rlimit limit{.rlim_cur = kMostHdf5Memory, .rlim_max = kMostHdf5Memory};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

void answer_success() {
  const Hdf5Answer answer;
  write_all(&answer, sizeof(answer));
}

void serve(const Request& request, const std::vector<const char*>& paths) {
  Images images(paths, request);
  const std::vector<std::int32_t> labels = images.all_labels();
  answer_success();
  write_all(&images.facts, sizeof(images.facts));
  write_all(labels.data(), labels.size() * sizeof(std::int32_t));
  std::fflush(stdout);
  std::vector<std::uint8_t> image(
      static_cast<std::size_t>(images.facts.height * images.facts.width * images.facts.channels));
  for (std::int64_t index = 0; std::fread(&index, sizeof(index), 1, stdin) == 1;) {
    try {
      images.read(index, image);
      answer_success();
      write_all(image.data(), image.size());
    } catch (const std::exception& error) {
      answer_failure(error.what());
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::limit_memory();
  if (argc < 7) {
    std::fprintf(stderr,
                 "lockstep-hdf5 reads HDF5 files for lockstep, which starts it; do not start it yourself\n");
    return 64;
  }
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors go into answers, not to stderr
  try {
    const lockstep::Request request{.words = lockstep::words_in(argv[1]),
                                    .others = lockstep::words_in(argv[2]),
                                    .shared = argv[3][0] == '1',
                                    .images = argv[4],
                                    .labels = argv[5]};
    lockstep::serve(request, {argv + 6, argv + argc});
  } catch (const std::bad_alloc&) {
    lockstep::answer_failure("reading the file needs more than " +
                             std::to_string(lockstep::kMostHdf5Memory >> 30) +
                             " GiB of memory, which is the limit");
    std::fflush(stdout);
  } catch (const lockstep::FileInUse& error) {
    lockstep::answer_failure(error.what(), lockstep::Hdf5Failure::in_use);
    std::fflush(stdout);
  } catch (const std::exception& error) {
    lockstep::answer_failure(error.what());
    std::fflush(stdout);
  }
  return 0;
}
