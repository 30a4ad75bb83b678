// SPDX-License-Identifier: Apache-2.0
//
// lockstep-hdf5: reads images and labels of HDF5 files with the HDF5 library for another process. See
// data/hdf5/hdf5_protocol.h.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include <sys/resource.h>

#include "data/hdf5/hdf5_arrays.h"
#include "data/hdf5/hdf5_file.h"
#include "data/hdf5/hdf5_protocol.h"

namespace lockstep {
namespace {

bool are_channels(hsize_t side) { return side == 1 || side == 3 || side == 4; }

// The images and labels of a split, converted to the form of the answers.
class Images {
 public:
  explicit Images(const SplitArrays& arrays)
      : images_(arrays.images.file, arrays.images.array), labels_(arrays.labels.file, arrays.labels.array) {
    facts_.word = arrays.word;
    facts_.other_word = arrays.other_word;
    find_shape();
    hsize_t count = 1;
    for (const hsize_t side : labels_.shape()) count *= side;
    const hsize_t samples = images_.shape()[0];
    if (labels_.shape().empty() || labels_.shape()[0] != samples || count != samples)
      throw Hdf5Error(labels_.name_and_shape() + ", expected one label for each of " +
                      std::to_string(samples) + " images");
    if (!labels_.has_type(H5T_INTEGER) && !labels_.has_type(H5T_FLOAT))
      throw Hdf5Error("\"" + labels_.name() + "\" does not contain numbers");
  }

  const Hdf5Facts& facts() const { return facts_; }

  // image: [H, W, C].
  void read(std::int64_t index, std::vector<std::uint8_t>& image) {
    if (index < 0 || index >= facts_.samples) throw Hdf5Error("there is no sample " + std::to_string(index));
    planes_.resize(pixels_);
    std::uint8_t* stored = channels_first_ ? planes_.data() : image.data();
    if (are_bytes_) {
      images_.read_one(index, H5T_NATIVE_UINT8, stored);
    } else {
      read_numbers(index);
      const float factor = 255.0f / static_cast<float>(facts_.largest);
      for (std::size_t i = 0; i < pixels_; ++i) {
        const float value = wide_[i] * factor;
        if (!(value > -0.5f && value < 255.5f))
          throw Hdf5Error("\"" + images_.name() + "\", image " + std::to_string(index) + " contains " +
                          std::to_string(wide_[i]) + "; expected pixels from 0 to " +
                          std::to_string(facts_.largest) + ", as in the first images");
        stored[i] = static_cast<std::uint8_t>(value + 0.5f);
      }
    }
    if (!channels_first_) return;
    const auto channels = static_cast<std::size_t>(facts_.channels), plane = pixels_ / channels;
    for (std::size_t c = 0; c < channels; ++c)
      for (std::size_t i = 0; i < plane; ++i) image[i * channels + c] = planes_[c * plane + i];
  }

  std::vector<std::int32_t> all_labels() const {
    std::vector<double> numbers(static_cast<std::size_t>(facts_.samples));
    labels_.read_all(H5T_NATIVE_DOUBLE, numbers.data());
    std::vector<std::int32_t> whole;
    for (const double number : numbers) {
      if (!(number == std::floor(number) && std::abs(number) <= std::numeric_limits<std::int32_t>::max()))
        throw Hdf5Error("\"" + labels_.name() + "\" contains " + std::to_string(number) +
                        ", which is not a whole number");
      whole.push_back(static_cast<std::int32_t>(number));
    }
    return whole;
  }

 private:
  void find_shape() {
    const std::vector<hsize_t>& shape = images_.shape();
    are_bytes_ = images_.has_type(H5T_INTEGER, 1) && images_.is_unsigned();
    if (!are_bytes_ && !images_.has_type(H5T_INTEGER) && !images_.has_type(H5T_FLOAT))
      throw Hdf5Error("\"" + images_.name() + "\" does not contain numbers");
    channels_first_ = shape.size() == 4 && !are_channels(shape[3]) && are_channels(shape[1]);
    const bool is_color = shape.size() == 4 && (channels_first_ || are_channels(shape[3]));
    if (shape.size() != 3 && !is_color)
      throw Hdf5Error(images_.name_and_shape() +
                      ", expected N x height x width, N x height x width x channels or N x channels x height "
                      "x width, with 1, 3 or 4 channels");
    for (const hsize_t side : shape) {
      if (side == 0 || side > std::numeric_limits<std::int32_t>::max())
        throw Hdf5Error(images_.name_and_shape() + ", which is empty or too large");
    }
    const auto side = [&](std::size_t at) { return static_cast<std::int64_t>(shape[at]); };
    facts_.samples = side(0);
    facts_.height = side(channels_first_ ? 2 : 1);
    facts_.width = side(channels_first_ ? 3 : 2);
    facts_.channels = shape.size() == 3 ? 1 : side(channels_first_ ? 1 : 3);
    constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;  // kMostImageBytes of data/dataset.h
    if (facts_.height * facts_.width > kMostPixels)
      throw Hdf5Error(images_.name_and_shape() + ": the limit is 2^28 pixels per image");
    pixels_ = static_cast<std::size_t>(facts_.height * facts_.width * facts_.channels);
    if (!are_bytes_) find_largest();
  }

  // Floating-point pixels are from 0 to 1 or from 0 to 255, which is guessed from at most 16 samples;
  // integers are from 0 to 255. A largest value just above 1 is probably of pixels from 0 to 1 that were
  // resampled, which would become black. Fails only if none of the samples can be read.
  void find_largest() {
    const std::int64_t looked = std::min<std::int64_t>(16, facts_.samples);
    float most = 0;
    bool any = false;
    for (std::int64_t i = 0; i < looked; ++i) {
      try {
        read_numbers(i * (facts_.samples - 1) / std::max<std::int64_t>(looked - 1, 1));
      } catch (const Hdf5Error&) {  // reported when the sample is read
        if (i + 1 == looked && !any) throw;
        continue;
      }
      any = true;
      most = std::max(most, *std::max_element(wide_.begin(), wide_.end()));
    }
    if (most > 1 && most < 2 && images_.has_type(H5T_FLOAT))
      throw Hdf5Error("\"" + images_.name() + "\" has floating-point pixels of at most " +
                      std::to_string(most) + "; expected are 0 to 1 or 0 to 255: clip them to 0 to 1");
    facts_.guessed = images_.has_type(H5T_FLOAT) ? 1 : 0;
    facts_.largest = most <= 1 && facts_.guessed == 1 ? 1 : 255;
  }

  void read_numbers(std::int64_t index) {
    wide_.resize(pixels_);
    images_.read_one(index, H5T_NATIVE_FLOAT, wide_.data());
  }

  Hdf5Array images_, labels_;
  Hdf5Facts facts_;
  bool are_bytes_ = false, channels_first_ = false;
  std::size_t pixels_ = 0;
  std::vector<std::uint8_t> planes_;  // one image, [C, H, W]
  std::vector<float> wide_;           // one image as stored, before conversion to bytes
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

// The parts of a list such as "train,training".
std::vector<std::string> listed_words(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream parts(list);
  for (std::string word; std::getline(parts, word, ',');) words.push_back(word);
  return words;
}

void serve(const ArrayRequest& request, const std::vector<const char*>& paths) {
  const std::vector<Hdf5File> files(paths.begin(), paths.end());
  Images images(arrays_of(files, request));
  const std::vector<std::int32_t> labels = images.all_labels();
  answer_success();
  const Hdf5Facts facts = images.facts();
  write_all(&facts, sizeof(facts));
  write_all(labels.data(), labels.size() * sizeof(std::int32_t));
  std::fflush(stdout);
  std::vector<std::uint8_t> image(static_cast<std::size_t>(facts.height * facts.width * facts.channels));
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
    const lockstep::ArrayRequest request{.words = lockstep::listed_words(argv[1]),
                                         .others = lockstep::listed_words(argv[2]),
                                         .shared = argv[3][0] == '1',
                                         .images = argv[4],
                                         .labels = argv[5]};
    lockstep::serve(request, {argv + 6, argv + argc});
  } catch (const std::bad_alloc&) {
    lockstep::answer_failure("reading the file needs more than " +
                             std::to_string(lockstep::kMostHdf5Memory >> 30) +
                             " GiB of memory, which is the limit");
  } catch (const lockstep::Hdf5FileInUse& error) {
    lockstep::answer_failure(error.what(), lockstep::Hdf5Failure::in_use);
  } catch (const lockstep::Hdf5NoLabels& error) {
    lockstep::answer_failure(error.what(), lockstep::Hdf5Failure::unlabelled);
  } catch (const std::exception& error) {
    lockstep::answer_failure(error.what());
  }
  std::fflush(stdout);
  return 0;
}
