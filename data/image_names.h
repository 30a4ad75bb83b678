// SPDX-License-Identifier: Apache-2.0
//
// ImageNames: which files a folder of images has, one folder for each class, as torchvision's ImageFolder
// reads them. It looks at names, and at the first bytes of files whose names have no ending.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// Returns true if a file of this name is read as an image: .jpg, .jpeg, .jpe, .jfif or .png, in any case; not
// where the name is hidden or a system's own ("._photo.jpg", "Thumbs.db").
bool is_image_name(const std::filesystem::path& name);

// Returns true for names that are hidden or that systems and programs leave in folders.
bool is_of_a_system(std::string_view name);

class ImageNames {
 public:
  // The images of train/CLASS/ or, to test with, of test/CLASS/ or what options.test_split names. Where it is
  // "auto", the first folder of test, testing, val, valid, validation, dev and eval with an image of a class
  // of train/ is taken; a line says which, where there are several.
  //
  // The classes are the folders under train/, sorted bytewise, for both splits; files are sorted by class,
  // then by name. Files are images by their names, or, without an ending, by their first bytes. Folders
  // within a class are searched unless options.recursive is false. Hidden files and folders, and those of
  // systems
  // (.ipynb_checkpoints, __MACOSX, ._*, Thumbs.db), are no images and no classes. What is left out is told in
  // one line, by kind: a warning where there are images among it.
  //
  // Throws IoError for a missing folder; DataError for a class without images in train/, a class of the other
  // split that train/ has not, and no images at all.
  ImageNames(const DatasetOptions& options, Split split);

  std::int64_t size() const { return static_cast<std::int64_t>(ends_.size()); }
  const std::vector<std::string>& classes() const { return classes_; }
  // How many of each class.
  std::vector<std::int64_t> class_counts() const;
  std::int32_t label(std::int64_t index) const;
  std::string path(std::int64_t index) const;
  // At most 256 images of train/, the first among them, whichever split this is of: what all have in common
  // is told by them. Of at most 32 classes, evenly apart.
  const std::vector<std::string>& some_of_training() const { return some_of_training_; }
  // Of all names, and so of labels.
  std::uint64_t hash() const;
  std::size_t memory_bytes() const;

 private:
  void add_class(const std::vector<std::string>& names);

  std::filesystem::path folder_;  // of the split
  std::vector<std::string> classes_;
  std::string names_;                     // of all files within their classes' folders, one after the other
  std::vector<std::size_t> ends_;         // in names_
  std::vector<std::int64_t> class_ends_;  // in files
  std::vector<std::string> some_of_training_;
};

}  // namespace lockstep
