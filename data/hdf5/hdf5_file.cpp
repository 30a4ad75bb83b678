// SPDX-License-Identifier: Apache-2.0
#include "data/hdf5/hdf5_file.h"

#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace lockstep {
namespace {

// Cache of chunks that were read and unpacked.
constexpr std::size_t kChunkCacheBytes = std::size_t{64} << 20;

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

// Locks and unlocks the file as a reader does. Returns errno, or 0 if the file could be locked.
int lock_error(const char* path) {
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return 0;
  const int error = flock(descriptor, LOCK_SH | LOCK_NB) == 0 ? 0 : errno;
  close(descriptor);
  return error;
}

Hdf5Handle open_file(const char* path) {
  Hdf5Handle file(H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (file.valid()) return file;
  const std::string why = reason();
  const int error = lock_error(path);
  if (error == 0) throw Hdf5Error("not an HDF5 file, or damaged: " + why);
  if (error == EWOULDBLOCK)
    throw Hdf5FileInUse(std::string("another program has ") + path +
                        " open for writing; close it there, then start again");
  // The file system cannot lock files, such as NFS without a lock service.
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
#if H5_VERSION_GE(1, 12, 1) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
  H5Pset_file_locking(access.id(), false, true);
#else
  setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);
#endif
  Hdf5Handle unlocked(H5Fopen(path, H5F_ACC_RDONLY, access.id()), H5Fclose);
  if (!unlocked.valid()) throw Hdf5Error("not an HDF5 file, or damaged: " + reason());
  return unlocked;
}

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

Hdf5Handle open_array(hid_t file, const std::string& name) {
  const Hdf5Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
  const auto refuse = [](const char*, const char*, const char*, const char*, unsigned*, hid_t,
                         void*) -> herr_t { return -1; };
  H5Pset_elink_cb(access.id(), refuse, nullptr);
  H5Pset_chunk_cache(access.id(), H5D_CHUNK_CACHE_NSLOTS_DEFAULT, kChunkCacheBytes,
                     H5D_CHUNK_CACHE_W0_DEFAULT);
  Hdf5Handle set(H5Dopen2(file, name.c_str(), access.id()), H5Dclose);
  if (!set.valid()) throw Hdf5Error("the file has no array \"" + name + "\" (" + reason() + ")");
  return set;
}

}  // namespace

Hdf5File::Hdf5File(const char* path) : handle(open_file(path)), arrays(arrays_in(handle.id())) {}

Hdf5Array::Hdf5Array(hid_t file, std::string name)
    : name_(std::move(name)), set_(open_array(file, name_)), space_(H5Dget_space(set_.id()), H5Sclose) {
  const int rank = H5Sget_simple_extent_ndims(space_.id());
  if (rank < 0) throw Hdf5Error("\"" + name_ + "\" is not an array");
  shape_.resize(static_cast<std::size_t>(rank));
  H5Sget_simple_extent_dims(space_.id(), shape_.data(), nullptr);
  const Hdf5Handle created(H5Dget_create_plist(set_.id()), H5Pclose);
  if (H5Pget_layout(created.id()) == H5D_VIRTUAL || H5Pget_external_count(created.id()) > 0)
    throw Hdf5Error("\"" + name_ + "\" has its numbers in other files, which are not read");
  // Otherwise a file of a few bytes could claim any number of samples.
  if (!is_written(created.id())) throw Hdf5Error(name_and_shape() + ", of which a part was never written");
}

std::string Hdf5Array::name_and_shape() const {
  std::string sides;
  for (const hsize_t side : shape_) sides += (sides.empty() ? "" : " x ") + std::to_string(side);
  return "\"" + name_ + "\" has shape " + (sides.empty() ? "a single number" : sides);
}

bool Hdf5Array::has_type(H5T_class_t kind, std::size_t bytes) const {
  const Hdf5Handle type(H5Dget_type(set_.id()), H5Tclose);
  return H5Tget_class(type.id()) == kind && (bytes == 0 || H5Tget_size(type.id()) == bytes);
}

bool Hdf5Array::is_unsigned() const {
  const Hdf5Handle type(H5Dget_type(set_.id()), H5Tclose);
  return H5Tget_sign(type.id()) == H5T_SGN_NONE;
}

void Hdf5Array::read_all(hid_t type, void* to) const {
  if (H5Dread(set_.id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, to) < 0)
    throw Hdf5Error("\"" + name_ + "\": " + reason());
}

void Hdf5Array::read_one(std::int64_t index, hid_t type, void* to) const {
  std::vector<hsize_t> begin(shape_.size()), count = shape_;
  begin[0] = static_cast<hsize_t>(index);
  count[0] = 1;
  const Hdf5Handle from(H5Scopy(space_.id()), H5Sclose);
  const Hdf5Handle into(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), H5Sclose);
  if (H5Sselect_hyperslab(from.id(), H5S_SELECT_SET, begin.data(), nullptr, count.data(), nullptr) < 0 ||
      H5Dread(set_.id(), type, into.id(), from.id(), H5P_DEFAULT, to) < 0)
    throw Hdf5Error("\"" + name_ + "\", number " + std::to_string(index) + ": " + reason());
}

bool Hdf5Array::is_written(hid_t created) const {
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

}  // namespace lockstep
