// SPDX-License-Identifier: Apache-2.0
//
// Files and arrays of the HDF5 library, for the program lockstep-hdf5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <hdf5.h>

namespace lockstep {

// Its message does not name the file, which lockstep-hdf5's parent process adds.
struct Hdf5Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Another program has a file open for writing.
struct Hdf5FileInUse : Hdf5Error {
  using Hdf5Error::Hdf5Error;
};

// Owns an HDF5 identifier.
class Hdf5Handle {
 public:
  Hdf5Handle(hid_t id, herr_t (*close_id)(hid_t)) : id_(id), close_(close_id) {}
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;
  hid_t id() const { return id_; }
  bool valid() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

// A file that is open for reading.
struct Hdf5File {
  Hdf5Handle handle;
  std::vector<std::string> arrays;  // their paths, at most 10,000

  // Throws Hdf5FileInUse, and Hdf5Error for a file that is no HDF5 file or damaged. The library locks the
  // file, unless the file system cannot or the user sets HDF5_USE_FILE_LOCKING=FALSE.
  explicit Hdf5File(const char* path);
};

// An array ("dataset" in HDF5) whose numbers are all in its file.
class Hdf5Array {
 public:
  // Does not follow links to other files. Throws Hdf5Error if the file has no such array, or if a part of it
  // was never written or lies in another file.
  Hdf5Array(hid_t file, std::string name);

  const std::string& name() const { return name_; }
  const std::vector<hsize_t>& shape() const { return shape_; }
  // "images" has shape 2 x 3 x 5
  std::string name_and_shape() const;
  // bytes: of a number; 0: any.
  bool has_type(H5T_class_t kind, std::size_t bytes = 0) const;
  bool is_unsigned() const;

  // Convert the numbers to the type. Throw Hdf5Error for numbers that cannot be read.
  void read_all(hid_t type, void* to) const;
  // One element of the first dimension.
  void read_one(std::int64_t index, hid_t type, void* to) const;

 private:
  bool is_written(hid_t created) const;

  std::string name_;
  Hdf5Handle set_;
  Hdf5Handle space_;
  std::vector<hsize_t> shape_;
};

}  // namespace lockstep
