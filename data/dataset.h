// SPDX-License-Identifier: Apache-2.0
//
// Dataset: labelled images with random access, read by many threads at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/dtype.h"

namespace lockstep {

enum class Split { train, test };

struct ImageShape {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
  DType type = DType::u8;  // or f32, where samples are rows of a table: 1 high, 1 channel

  std::int64_t bytes() const { return height * width * channels * static_cast<std::int64_t>(size_of(type)); }
  bool operator==(const ImageShape&) const = default;
};

// Upper limit of an image file, and of an image's decoded pixels.
inline constexpr std::int64_t kMostImageBytes = std::int64_t{256} << 20;
// Numeric labels of container and HDF5 files must be below this.
inline constexpr std::int32_t kMostLabels = 1 << 20;

// How an image is stored: as raw pixels, or as a JPEG or PNG file.
enum class ImageCoding { pixels, file };

// Seed and epoch of a sample's random augmentation.
struct Draw {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
};

// An image in its own size, or reduced while it was decoded.
struct OwnSizeImage {
  std::vector<std::uint8_t> pixels;  // [H, W, C] of shape
  ImageShape shape;
  ImageShape whole;  // the image's own size
  // Each pixel of `shape` is the mean of reduction x reduction pixels of `whole`. The squares at the right
  // and the bottom may extend past the image.
  std::int64_t reduction = 1;
};
// Maps an image's own size to the least height and width that its decoded pixels should have, if the image
// has them. Channels are ignored.
using LeastSize = std::function<ImageShape(const ImageShape& whole)>;

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  virtual ImageShape image_shape() const = 0;
  // Labels are in [0, classes()).
  virtual std::int64_t classes() const = 0;
  // The label that read() returns, if it is known without reading the sample. None otherwise, and for samples
  // with masks. Thread-safe.
  virtual std::optional<std::int32_t> label(std::int64_t index) const {
    static_cast<void>(index);
    return std::nullopt;
  }
  // Samples of each class and names of the classes, classes() entries each. Empty if the counts are unknown
  // without reading the samples, or if classes have no names. By default, class_counts() counts label().
  virtual std::vector<std::int64_t> class_counts() const;
  virtual std::vector<std::string> class_names() const { return {}; }
  // Identifies the sample. If samples have names, the key does not change when samples are added.
  virtual std::uint64_t key(std::int64_t index) const { return static_cast<std::uint64_t>(index); }
  // Writes the image, [H, W, C] of image_shape()'s type, and returns its label. Thread-safe; every call gives
  // the same result. Throws DataError for a sample that cannot be decoded (by default a BatchLoader leaves it
  // out of its batch), and IoError for one that cannot be read, which ends the job.
  virtual std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const = 0;
  // As read(), for training: applies the dataset's random augmentation, such as a random crop.
  virtual std::int32_t read_augmented(std::int64_t index, const Draw& draw,
                                      std::span<std::uint8_t> image) const {
    static_cast<void>(draw);
    return read(index, image);
  }
  // True if each pixel has a label. read() then returns 0, and read_mask() writes the labels of the image's
  // pixels, [H, W] of image_shape(): classes, or kIgnoredPixel (kernels/pixel_targets.h). Thread-safe; throws
  // what read() throws.
  virtual bool has_masks() const { return false; }
  virtual void read_mask(std::int64_t index, std::span<std::uint8_t> mask) const;
  // The same in the image's own size, which it returns.
  virtual ImageShape read_own_mask(std::int64_t index, std::vector<std::uint8_t>& mask) const;
  // Hint: this thread reads this sample after the next one. Cheap.
  virtual void will_read(std::int64_t index) const { static_cast<void>(index); }
  // Returns true if read_augmented() gives another image in each epoch.
  virtual bool draws() const { return false; }
  // Returns true if read() decodes or resamples, which takes much longer than copying pixels.
  virtual bool decodes() const { return coding() == ImageCoding::file; }
  // Returns true if read() resizes images of different sizes to one size.
  virtual bool resizes() const { return false; }
  // The image's own size, from its header. Thread-safe; throws what read() throws for a damaged header.
  virtual ImageShape own_shape(std::int64_t index) const {
    static_cast<void>(index);
    return image_shape();
  }
  // As read(), but of an image of any size, with image_shape()'s channels. Calls `least` once.
  virtual std::int32_t read_own_size(std::int64_t index, const LeastSize& least, OwnSizeImage& image) const;
  // coding(): how images are stored. read_stored(), for ImageCoding::file only, replaces `bytes` by the image
  // file without decoding it. Returns and throws as read() does, but does not detect undecodable images.
  virtual ImageCoding coding() const { return ImageCoding::pixels; }
  virtual std::int32_t read_stored(std::int64_t index, std::vector<std::uint8_t>& bytes) const;
  // A hash of the stored sample without its label: of a file's bytes, or of pixels or numbers. Copies of a
  // sample have equal hashes. Thread-safe; throws what read() throws for a sample that cannot be read.
  virtual std::uint64_t content_hash(std::int64_t index) const;
  // Throws what read() would throw, as far as that is known without decoding the sample. Thread-safe.
  virtual void probe(std::int64_t index) const { static_cast<void>(index); }
  // Returns true if read() cannot fail: samples are computed, or were checked when the dataset was opened.
  virtual bool verified() const { return false; }
  // Number of samples so far that were damaged but could be decoded.
  virtual std::int64_t damaged() const { return 0; }
  // Bytes that the dataset holds in memory; 0 if it reads each image on demand.
  virtual std::size_t memory_bytes() const { return 0; }
  // The images in order, image_shape().bytes() each, if they are in the training device's memory; else empty.
  // read() then also accepts an empty image, and only returns the label.
  virtual std::span<const std::byte> on_device() const { return {}; }
  // A hash of the content: equal for equal copies on other machines, and quick even if every image is a file.
  // By default it covers pixels and labels of some samples; datasets that know their labels hash all labels.
  // A sample that cannot be decoded counts by its index.
  virtual std::uint64_t fingerprint() const;
};

// "60000 training and 10000 test images of 28x28x1 in 10 classes"; for tables "... rows of 4 numbers ...".
std::string counted_images(const Dataset& train, const Dataset& test);
// The same, plus the images' sizes before resizing, and the training images per class if known: "6000 of
// each", "from 12 (cat) to 900 (dog) of each".
std::string summary_of(const Dataset& train, const Dataset& test);

// Indices of at most `wanted` of `size` samples, evenly spaced, including the first and the last.
// Fingerprints and checks use them.
std::vector<std::int64_t> some_samples(std::int64_t size, std::int64_t wanted);

// Options of data/formats/synthetic.h.
struct SyntheticOptions {
  std::int64_t height = 32, width = 32, channels = 3;
  std::int64_t classes = 10;
  std::int64_t train_samples = 50000, test_samples = 10000;
};

// apply: turn and mirror images and masks as their EXIF orientation says (data/images/orientation.h).
enum class ExifOrientation { apply, ignore };
inline constexpr std::string_view kExifOrientationWords[] = {"apply", "ignore"};
constexpr std::span<const std::string_view> words_of(ExifOrientation) { return kExifOrientationWords; }

// Options of JPEG and PNG images, in folders or in larger files.
struct ImageFileOptions {
  // All images are converted to 1 (grayscale) or 3 (RGB) channels; 0: to what most training images have.
  std::int64_t channels = 0;
  ExifOrientation exif_orientation = ExifOrientation::apply;
};

// Resizes all images to one size (data/images/resized.h).
struct ResizeOptions {
  std::int64_t size = 0;     // height and width; 0: no resizing
  bool random_crop = false;  // for training: take a random part of each image
  double center_share = 1;   // otherwise: share of the shorter side that the center crop keeps
};

// Leave out a sample that cannot be decoded or a table row that cannot be read, or end the job.
enum class OnError { leave_out, stop };
inline constexpr std::string_view kOnErrorWords[] = {"leave_out", "stop"};
constexpr std::span<const std::string_view> words_of(OnError) { return kOnErrorWords; }

// Scaling of a table's columns. min_max: the training rows lie in [0, 1]. standard: they have mean 0 and
// standard deviation 1.
enum class ColumnScaling { none, min_max, standard };
inline constexpr std::string_view kColumnScalingWords[] = {"none", "min_max", "standard"};
constexpr std::span<const std::string_view> words_of(ColumnScaling) { return kColumnScalingWords; }

// The delimiter of a table, and whether its first row holds the column names. auto: guess from the first
// rows.
enum class CsvDelimiter { auto_, comma, semicolon, tab };
inline constexpr std::string_view kCsvDelimiterWords[] = {"auto", "comma", "semicolon", "tab"};
constexpr std::span<const std::string_view> words_of(CsvDelimiter) { return kCsvDelimiterWords; }
enum class CsvHeader { auto_, yes, no };
inline constexpr std::string_view kCsvHeaderWords[] = {"auto", "yes", "no"};
constexpr std::span<const std::string_view> words_of(CsvHeader) { return kCsvHeaderWords; }

// Options of tables (data/formats/csv.h).
struct CsvOptions {
  CsvDelimiter delimiter = CsvDelimiter::auto_;
  CsvHeader header = CsvHeader::auto_;
  // The label column, by name or by number from 1; auto: the column called label, labels, class, target or y,
  // in any case, or else the last.
  std::string label = "auto";
  // Columns that are not features, as comma-separated names or numbers; none: no such columns.
  std::string ignore = "none";
  ColumnScaling scaling = ColumnScaling::standard;
};

// Options of TFRecord files (data/containers/tfrecord.h): names of features. auto: the first that exists of
// image/encoded and image, and of image/class/label, label and class.
struct TfRecordOptions {
  std::string image = "auto";
  std::string label = "auto";
};

// Options of HDF5 files (data/hdf5/hdf5_images.h): array names, such as "group/images"; {split} is replaced
// by a word of the split. auto: the first that exists of images, image, x, img and data, and of labels,
// label, y, targets and target, in any case, also combined with a word of the split ("train_set_x",
// "X_train").
struct Hdf5Options {
  std::string images = "auto";
  std::string labels = "auto";
  std::chrono::seconds longest_answer{600};  // of the reading process, for one sample
};

// Options of images with masks (data/formats/masks.h).
struct MaskOptions {
  std::int64_t classes = 0;         // of pixels; 0: not given
  std::int64_t ignore_index = 255;  // the value of pixels that belong to no class
};

struct DatasetOptions {
  std::string format = "idx";  // DatasetFormat::name
  std::string path;            // a folder
  // Folder, or word in file names, of the test split; auto: see data/formats/split_words.h.
  std::string test_split = "auto";
  bool recursive = true;  // image folders: also read folders inside class folders
  ImageFileOptions images;
  // Above 0: this share of the training samples becomes the test split (data/sets/subset.h). Only opening the
  // training split logs about their files.
  double validation_share = 0;
  ResizeOptions resize;
  SyntheticOptions synthetic;
  CsvOptions csv;
  TfRecordOptions tfrecord;
  Hdf5Options hdf5;
  MaskOptions masks;
  OnError on_error = OnError::leave_out;
};

// A value of data.format, and the function that opens such a dataset.
struct DatasetFormat {
  std::string name;
  // Throws IoError for missing files (with the path and what to install), DataError for corrupt ones (file
  // and offset). Does not resize: with options.resize, images may differ in size.
  std::function<std::unique_ptr<Dataset>(const DatasetOptions& options, Split split)> open;
  bool has_files = true;  // false: samples are computed, and DatasetOptions::path is not read
};
// The formats that Lockstep ships.
const std::vector<DatasetFormat>& dataset_formats();

// Throws what the format's open() throws, and ConfigError for an unknown format or for resizing a table.
std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options, Split split,
                                      const std::vector<DatasetFormat>& formats = dataset_formats());

// The same without resizing (data.resize): read_stored() and read_own_size() give images in their own sizes.
std::unique_ptr<Dataset> open_in_own_sizes(const DatasetOptions& options, Split split,
                                           const std::vector<DatasetFormat>& formats = dataset_formats());

// "180 to 500 high and 160 to 500 wide", from the headers of at most 1000 images. Empty if no header can be
// read.
std::string sizes_of_images(const Dataset& images);

}  // namespace lockstep
