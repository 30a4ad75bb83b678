// SPDX-License-Identifier: Apache-2.0
//
// Dataset: labelled images with random access, read by many threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

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

// Of an image in a file, and of a file that is one image.
inline constexpr std::int64_t kMostImageBytes = std::int64_t{256} << 20;
// Labels that a file stores as numbers are below it.
inline constexpr std::int32_t kMostLabels = 1 << 20;

// How the bytes of an image are kept.
enum class ImageCoding { pixels, file };

// What random choices depend on, beside the sample.
struct Draw {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
};

// An image in the size that it has, or in a smaller one that it could be decoded in at once.
struct OwnSizeImage {
  std::vector<std::uint8_t> pixels;  // [H, W, C] of shape
  ImageShape shape;
  ImageShape whole;  // the image's own
  // Each pixel of `shape` is the mean of a square of so many by so many of `whole`; squares at the right and
  // the bottom may extend past the image.
  std::int64_t reduction = 1;
};
// How many pixels are wanted of an image of this size, at least, if it has them; channels do not count.
using LeastSize = std::function<ImageShape(const ImageShape& whole)>;

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  virtual ImageShape image_shape() const = 0;
  // Labels are in [0, classes()).
  virtual std::int64_t classes() const = 0;
  // How many samples each class has, where that is known without reading them, and what classes are called,
  // where they have names: classes() of them, or none.
  virtual std::vector<std::int64_t> class_counts() const { return {}; }
  virtual std::vector<std::string> class_names() const { return {}; }
  // What a sample is told apart by: it stays what it is when others are added, where samples have names.
  virtual std::uint64_t key(std::int64_t index) const { return static_cast<std::uint64_t>(index); }
  // Writes the image, [H, W, C] of image_shape()'s type, and returns its label. Thread-safe, and the same at
  // every call. Throws DataError for a sample that cannot be decoded, which a BatchLoader then leaves out of
  // its batch, and IoError for one that cannot be read, which ends the job.
  virtual std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const = 0;
  // The same, for training: what draws at random what it makes of an image does it here.
  virtual std::int32_t read_augmented(std::int64_t index, const Draw& draw,
                                      std::span<std::uint8_t> image) const {
    static_cast<void>(draw);
    return read(index, image);
  }
  // A hint: this thread reads that sample behind the next one. Costs little, or nothing.
  virtual void will_read(std::int64_t index) const { static_cast<void>(index); }
  // Whether that gives another image in each epoch.
  virtual bool draws() const { return false; }
  // Whether read() decodes or resamples, which takes much longer than to copy what it gives.
  virtual bool decodes() const { return coding() == ImageCoding::file; }
  // Whether images have sizes of their own, which read() makes one.
  virtual bool resizes() const { return false; }
  // The size of the image itself, as its header says. Thread-safe; throws what read() throws of a header.
  virtual ImageShape own_shape(std::int64_t index) const {
    static_cast<void>(index);
    return image_shape();
  }
  // As read(), of an image of any size, with image_shape()'s channels. Asks once what is wanted of it.
  virtual std::int32_t read_own_size(std::int64_t index, const LeastSize& least, OwnSizeImage& image) const;
  // How its images lie where it reads them: as pixels, or as a JPEG or PNG file; and such a file, in place of
  // what the vector holds. Returns and throws as read() does, but what cannot be decoded is not found out.
  virtual ImageCoding coding() const { return ImageCoding::pixels; }
  virtual std::int32_t read_stored(std::int64_t index, std::vector<std::uint8_t>& bytes) const;
  // A hash of the stored sample without its label: of the bytes of a file, or of pixels or numbers. Equal
  // for copies of one sample. Thread-safe; throws what read() throws of a sample that cannot be read.
  virtual std::uint64_t content_hash(std::int64_t index) const;
  // Throws what read() would throw, as far as that can be told without decoding the sample. Thread-safe.
  virtual void probe(std::int64_t index) const { static_cast<void>(index); }
  // Whether read() can fail for no sample: what is computed, or was checked when it was opened.
  virtual bool verified() const { return false; }
  // How many samples were damaged so far, and could be decoded all the same.
  virtual std::int64_t damaged() const { return 0; }
  // How many bytes it holds in memory: 0 for one that reads each image when it is asked for.
  virtual std::size_t memory_bytes() const { return 0; }
  // Its images, each of image_shape().bytes() and in order, where they lie in the memory of the device that
  // trains; else empty. read() then also takes an empty image, and only returns the label.
  virtual std::span<const std::byte> on_device() const { return {}; }
  // A hash of what it holds: equal for equal copies on other machines, and quick even where every image is a
  // file. Here of the pixels and labels of some samples; those that know their labels hash them all.
  virtual std::uint64_t fingerprint() const;
};

// "60000 training and 10000 test images of 28x28x1 in 10 classes", or rows of 4 numbers
std::string counted_images(const Dataset& train, const Dataset& test);
// The same, the sizes that images have before they are resized, and how many training images the classes
// have, where that is known: "6000 of each", "from 12 (cat) to 900 (dog) of each".
std::string summary_of(const Dataset& train, const Dataset& test);

// Indices of at most `wanted` of `size` samples, the first and the last among them, evenly apart: what a
// fingerprint looks into.
std::vector<std::int64_t> some_samples(std::int64_t size, std::int64_t wanted);

// Of what data/synthetic.h computes.
struct SyntheticOptions {
  std::int64_t height = 32, width = 32, channels = 3;
  std::int64_t classes = 10;
  std::int64_t train_samples = 50000, test_samples = 10000;
};

// Whether images are turned and mirrored as their EXIF says (data/orientation.h).
enum class ExifOrientation { apply, ignore };
inline constexpr std::string_view kExifOrientationWords[] = {"apply", "ignore"};
constexpr std::span<const std::string_view> words_of(ExifOrientation) { return kExifOrientationWords; }

// Options of JPEG and PNG images, in folders or in larger files.
struct ImageFileOptions {
  // 1 (grayscale) or 3 (RGB), which all images are converted to; 0: what most of the training images have.
  std::int64_t channels = 0;
  ExifOrientation exif_orientation = ExifOrientation::apply;
};

// Of images that are all made the same size (data/resized.h).
struct ResizeOptions {
  std::int64_t size = 0;     // height and width; 0: they are left as they are
  bool random_crop = false;  // to train: a random part of each image
  double center_share = 1;   // otherwise: this share of the shorter side is kept, about the middle
};

// Of a sample that cannot be decoded, or a row that cannot be read: it is left out, or ends the job.
enum class OnError { leave_out, stop };
inline constexpr std::string_view kOnErrorWords[] = {"leave_out", "stop"};
constexpr std::span<const std::string_view> words_of(OnError) { return kOnErrorWords; }

// What becomes of the numbers of a column: nothing; the training set's are made to lie in [0, 1]; or to have
// mean 0 and deviation 1.
enum class ColumnScaling { none, min_max, standard };
inline constexpr std::string_view kColumnScalingWords[] = {"none", "min_max", "standard"};
constexpr std::span<const std::string_view> words_of(ColumnScaling) { return kColumnScalingWords; }

// The delimiter of a table, and whether its first row holds the columns' names; auto: what
// the first rows look like.
enum class CsvDelimiter { auto_, comma, semicolon, tab };
inline constexpr std::string_view kCsvDelimiterWords[] = {"auto", "comma", "semicolon", "tab"};
constexpr std::span<const std::string_view> words_of(CsvDelimiter) { return kCsvDelimiterWords; }
enum class CsvHeader { auto_, yes, no };
inline constexpr std::string_view kCsvHeaderWords[] = {"auto", "yes", "no"};
constexpr std::span<const std::string_view> words_of(CsvHeader) { return kCsvHeaderWords; }

// Of tables (data/csv.h).
struct CsvOptions {
  CsvDelimiter delimiter = CsvDelimiter::auto_;
  CsvHeader header = CsvHeader::auto_;
  // The column of labels, by its name or its number from 1 on; auto: the one called label, labels, class,
  // target or y, in any case, or the last.
  std::string label = "auto";
  // Columns that are no features, by names or numbers with commas between them; none: all others are.
  std::string ignore = "none";
  ColumnScaling scaling = ColumnScaling::standard;
};

// Options of TFRecord files (data/containers/tfrecord.h): the names of their features; auto: the first that
// is there of image/encoded and image, and of image/class/label, label and class.
struct TfRecordOptions {
  std::string image = "auto";
  std::string label = "auto";
};

// Of HDF5 files (data/hdf5/hdf5_images.h): the names of their arrays, such as "group/images", in which
// {split} stands for a word of the split; auto: the first that is there of images, image, x, img and data,
// and of labels, label, y, targets and target, in any case and also beside a word of the split
// ("train_set_x", "X_train").
struct Hdf5Options {
  std::string images = "auto";
  std::string labels = "auto";
};

struct DatasetOptions {
  std::string format = "idx";  // by its name in the table of formats
  std::string path;            // a folder
  // The folder, or the word in files' names, of what is tested with; auto: see data/split_words.h.
  std::string test_split = "auto";
  bool recursive = true;  // of an image folder: folders within those of classes are read, too
  ImageFileOptions images;
  // Above 0: this share of the training images is what is tested with (data/subset.h).
  double validation_share = 0;
  ResizeOptions resize;
  SyntheticOptions synthetic;
  CsvOptions csv;
  TfRecordOptions tfrecord;
  Hdf5Options hdf5;
  OnError on_error = OnError::leave_out;
};

// A row of the table of formats: what data.format may be, and what opens it.
struct DatasetFormat {
  std::string name;
  // Throws IoError for missing files (with the path and what to install), DataError for corrupt ones (file
  // and offset). What is to be resized is resized later: images may differ in size then.
  std::function<std::unique_ptr<Dataset>(const DatasetOptions& options, Split split)> open;
};
// Those that are shipped.
const std::vector<DatasetFormat>& dataset_formats();

// Throws what its format's open does, and ConfigError for a format that the table has not.
std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options, Split split,
                                      const std::vector<DatasetFormat>& formats = dataset_formats());

// The same, without resizing them (data.resize): what is read by read_stored() and read_own_size() has the
// size that it has.
std::unique_ptr<Dataset> open_in_own_sizes(const DatasetOptions& options, Split split,
                                           const std::vector<DatasetFormat>& formats = dataset_formats());

// "180 to 500 high and 160 to 500 wide": of many images some are looked at. Empty where no header can be
// read.
std::string sizes_of_images(const Dataset& images);

}  // namespace lockstep
