// SPDX-License-Identifier: Apache-2.0
//
// ImageNames: the image files of a folder with one folder per class, as torchvision's ImageFolder reads them.
// It looks at names, and at the first bytes of files without a suffix.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// Returns true if a file of this name is read as an image: .jpg, .jpeg, .jpe, .jfif or .png, in any case,
// unless the name is hidden or a system's ("._photo.jpg", "Thumbs.db").
bool is_image_name(const std::filesystem::path& name);

// Returns the paths of the images in a folder and its subfolders, sorted; each begins with `folder`. They are
// found as ImageNames finds those of a class, and one log line reports skipped files.
//
// Throws IoError for a folder that cannot be read; DataError for more than 32 levels of folders, which are
// probably a cycle of links.
std::vector<std::string> images_below(const std::filesystem::path& folder);

// Returns true for names that are hidden or that systems and programs leave in folders.
bool is_of_a_system(std::string_view name);

class ImageNames {
 public:
  // Finds the images of train/CLASS/ or, for the test split, of the folder that options.test_split names. If
  // that is "auto", it takes the first folder of test, testing, val, valid, validation, dev and eval that has
  // an image of a class of train/, and logs which if there are several.
  //
  // The classes are the folders under train/, sorted bytewise, for both splits; files are sorted by class,
  // then by name. Files are images by their suffix or, without one, by their first bytes. Folders within a
  // class, also linked ones, are searched unless options.recursive is false. Hidden files and folders, and
  // those of systems (.ipynb_checkpoints, __MACOSX, ._*, Thumbs.db), are neither images nor classes. One log
  // line reports skipped files by kind, also those beside the class folders, as a warning if images are among
  // them.
  //
  // Throws IoError for a missing folder; DataError for a class of train/ without images, a test class that
  // train/ does not have, and a dataset without images.
  ImageNames(const DatasetOptions& options, Split split);

  std::int64_t size() const { return static_cast<std::int64_t>(ends_.size()); }
  const std::vector<std::string>& classes() const { return classes_; }
  // Images of each class.
  std::vector<std::int64_t> class_counts() const;
  std::int32_t label(std::int64_t index) const;
  // The path below the folder of the split: CLASS/.../FILE.
  std::string path_in_split(std::int64_t index) const;
  std::string path(std::int64_t index) const;
  // At most 256 images of train/, including the first, for either split; common_shape() reads their headers.
  // From at most 32 classes, evenly spaced.
  const std::vector<std::string>& some_of_training() const { return some_of_training_; }
  // A hash of all names, and so of all labels.
  std::uint64_t hash() const;
  std::size_t memory_bytes() const;

 private:
  void add_class(const std::vector<std::string>& names);

  std::filesystem::path folder_;  // of the split
  std::vector<std::string> classes_;
  std::string names_;                     // of all files, relative to their class folders, concatenated
  std::vector<std::size_t> ends_;         // of each file's name in names_
  std::vector<std::int64_t> class_ends_;  // of each class, in files
  std::vector<std::string> some_of_training_;
};

}  // namespace lockstep
