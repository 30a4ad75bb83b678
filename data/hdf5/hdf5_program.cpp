// SPDX-License-Identifier: Apache-2.0
//
// lockstep-hdf5: images and labels of an HDF5 file, by the HDF5 library, for whoever asks. See
// data/hdf5/hdf5_protocol.h.

#include <algorithm>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <hdf5.h>

#include "data/hdf5/hdf5_protocol.h"

namespace lockstep {
namespace {

// Chunks that were read, and unpacked.
constexpr std::size_t kChunkCacheBytes = std::size_t{64} << 20;

// Closes an identifier of the library.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
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

// What the library says went wrong, in its innermost function.
std::string reason() {
  std::string text = "the HDF5 library does not say why";
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

// A dataset whose numbers are in this file.
class Numbers {
 public:
  Numbers(hid_t file, std::string name)
      : name_(std::move(name)), set_(open(file, name_)), space_(H5Dget_space(set_.id()), H5Sclose) {
    const int rank = H5Sget_simple_extent_ndims(space_.id());
    if (rank < 0) fail("\"" + name_ + "\" is no array");
    shape_.resize(static_cast<std::size_t>(rank));
    H5Sget_simple_extent_dims(space_.id(), shape_.data(), nullptr);
    const Handle created(H5Dget_create_plist(set_.id()), H5Pclose);
    if (H5Pget_layout(created.id()) == H5D_VIRTUAL || H5Pget_external_count(created.id()) > 0)
      fail("\"" + name_ + "\" has its numbers in other files, which are not looked into");
    // Else a file of a few bytes could claim any number of samples.
    if (!is_written(created.id()))
      fail("\"" + name_ + "\" is " + shape_text(shape_) + ", of which some was never written");
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
  // One of the first dimension.
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
  // A link that leads to another file is not followed.
  static Handle open(hid_t file, const std::string& name) {
    const Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
    const auto refuse = [](const char*, const char*, const char*, const char*, unsigned*, hid_t,
                           void*) -> herr_t { return -1; };
    H5Pset_elink_cb(access.id(), refuse, nullptr);
    H5Pset_chunk_cache(access.id(), H5D_CHUNK_CACHE_NSLOTS_DEFAULT, kChunkCacheBytes,
                       H5D_CHUNK_CACHE_W0_DEFAULT);
    Handle set(H5Dopen2(file, name.c_str(), access.id()), H5Dclose);
    if (!set.valid()) fail("there is no array \"" + name + "\" in it (" + reason() + ")");
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

// What is asked for, or the first that is there of those that others use.
std::string name_of(hid_t file, const std::string& wanted, std::initializer_list<const char*> usual,
                    const char* key) {
  if (wanted != "auto") return wanted;
  std::string names;
  for (const char* name : usual) {
    if (H5Lexists(file, name, H5P_DEFAULT) > 0) return name;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  fail(std::string("it has none of the arrays ") + names + "; name it with " + key);
}

Handle open_file(const char* path) {
  Handle file(H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (!file.valid()) fail("not an HDF5 file, or damaged: " + reason());
  return file;
}

bool are_channels(hsize_t side) { return side == 1 || side == 3 || side == 4; }

struct Images {
  Images(const char* path, const char* images_name, const char* labels_name)
      : file(open_file(path)),
        images(file.id(),
               name_of(file.id(), images_name, {"images", "image", "x", "X", "data"}, "data.hdf5.images")),
        labels(file.id(), name_of(file.id(), labels_name, {"labels", "label", "y", "Y", "targets"},
                                  "data.hdf5.labels")) {
    find_shape();
    hsize_t count = 1;
    for (const hsize_t side : labels.shape()) count *= side;
    if (labels.shape().empty() || labels.shape()[0] != images.shape()[0] || count != images.shape()[0])
      fail("\"" + labels.name() + "\" is " + shape_text(labels.shape()) + ", expected a label for each of " +
           std::to_string(images.shape()[0]) + " images");
    if (!labels.has_type(H5T_INTEGER)) fail("\"" + labels.name() + "\" holds no whole numbers");
  }

  void find_shape() {
    const std::vector<hsize_t>& shape = images.shape();
    if (!images.has_type(H5T_INTEGER, 1) || !images.is_unsigned())
      fail("\"" + images.name() + "\" holds no numbers from 0 to 255 in one byte (uint8)");
    channels_first = shape.size() == 4 && !are_channels(shape[3]) && are_channels(shape[1]);
    const bool is_color = shape.size() == 4 && (channels_first || are_channels(shape[3]));
    if (shape.size() != 3 && !is_color)
      fail("\"" + images.name() + "\" is " + shape_text(shape) +
           ", expected N x height x width, N x height x width x channels or N x channels x height x width, "
           "of 1, 3 or 4 "
           "channels");
    for (const hsize_t side : shape) {
      if (side == 0 || side > std::numeric_limits<std::int32_t>::max())
        fail("\"" + images.name() + "\" is " + shape_text(shape));
    }
    const auto side = [&](std::size_t at) { return static_cast<std::int64_t>(shape[at]); };
    facts.samples = side(0);
    facts.height = side(channels_first ? 2 : 1);
    facts.width = side(channels_first ? 3 : 2);
    facts.channels = shape.size() == 3 ? 1 : side(channels_first ? 1 : 3);
  }

  // [H, W, C].
  void read(std::int64_t index, std::vector<std::uint8_t>& image) {
    if (index < 0 || index >= facts.samples) fail("there is no sample " + std::to_string(index));
    if (!channels_first) return images.read_one(index, H5T_NATIVE_UINT8, image.data());
    const auto channels = static_cast<std::size_t>(facts.channels);
    const auto pixels = static_cast<std::size_t>(facts.height * facts.width);
    planes.resize(channels * pixels);
    images.read_one(index, H5T_NATIVE_UINT8, planes.data());
    for (std::size_t c = 0; c < channels; ++c)
      for (std::size_t i = 0; i < pixels; ++i) image[i * channels + c] = planes[c * pixels + i];
  }

  Handle file;
  Numbers images, labels;
  Hdf5Facts facts;
  bool channels_first = false;
  std::vector<std::uint8_t> planes;  // of one image
};

void write_all(const void* data, std::size_t bytes) {
  if (std::fwrite(data, 1, bytes, stdout) != bytes) std::exit(1);  // nobody listens any more
}

void answer_failure(const std::string& message) {
  const Hdf5Answer answer{.failed = 1, .message_bytes = static_cast<std::uint32_t>(message.size())};
  write_all(&answer, sizeof(answer));
  write_all(message.data(), message.size());
}

void answer_success() {
  const Hdf5Answer answer;
  write_all(&answer, sizeof(answer));
}

void serve(const char* path, const char* images_name, const char* labels_name) {
  Images images(path, images_name, labels_name);
  std::vector<std::int32_t> labels(static_cast<std::size_t>(images.facts.samples));
  images.labels.read_all(H5T_NATIVE_INT32, labels.data());
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
  if (argc != 4) {
    std::fprintf(stderr, "lockstep-hdf5 FILE IMAGES LABELS: reads for lockstep, which starts it\n");
    return 64;
  }
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // it is told by us
  try {
    lockstep::serve(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    lockstep::answer_failure(error.what());
    std::fflush(stdout);
  }
  return 0;
}
