// SPDX-License-Identifier: Apache-2.0
//
// ImageNames: which files a folder of images has, one folder for each class, as torchvision's ImageFolder
// reads them. It looks at names alone, and holds nothing else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// Whether a file of this name is read as an image: .jpg, .jpeg or .png, in any case.
bool is_image_name(const std::filesystem::path& name);

class ImageNames {
 public:
  // The files of a split that end in .jpg, .jpeg or .png, in any case: those of train/CLASS/ and test/CLASS/,
  // or val/CLASS/ where there is no test/. The classes are the folders under train/, sorted bytewise, for
  // both splits; files are sorted by class, then by name. Folders within a CLASS and other files are left
  // out; where these are images, a warning says how many. Throws IoError for a missing folder; DataError for
  // a class without images in train/, a class of the other split that train/ has not, and no images at all.
  ImageNames(const std::filesystem::path& folder, Split split);

  std::int64_t size() const { return static_cast<std::int64_t>(ends_.size()); }
  const std::vector<std::string>& classes() const { return classes_; }
  // How many of each class.
  std::vector<std::int64_t> class_counts() const;
  std::int32_t label(std::int64_t index) const;
  std::string path(std::int64_t index) const;
  // The first image of train/, whichever split this is of.
  const std::string& first_of_training() const { return first_of_training_; }
  // Of all names, and so of labels.
  std::uint64_t hash() const;
  std::size_t memory_bytes() const;

 private:
  void add_test_images();
  void add_class(const std::vector<std::string>& names);

  std::filesystem::path folder_;  // of the split
  std::vector<std::string> classes_;
  std::string names_;                     // of all files, one after the other
  std::vector<std::size_t> ends_;         // in names_
  std::vector<std::int64_t> class_ends_;  // in files
  std::string first_of_training_;
};

}  // namespace lockstep
