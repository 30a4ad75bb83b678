// SPDX-License-Identifier: Apache-2.0
//
// Record files: reading returns what was packed, and an incomplete file is reported by name.
#include "data/records/records.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/files/crc32c.h"
#include "data/formats/image_folder.h"
#include "data/images/png.h"
#include "data/records/pack.h"
#include "data/records/record_layout.h"
#include "data/records/record_writer.h"
#include "tests/data/huge_stacks.h"
#include "tests/data/jpeg_files.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Small noise images, of three classes in turn.
class NoiseDataset : public Dataset {
 public:
  explicit NoiseDataset(std::int64_t size, std::int64_t undecodable = -1, std::int64_t changed = -1)
      : size_(size), undecodable_(undecodable), changed_(changed) {}
  std::int64_t size() const override { return size_; }
  ImageShape image_shape() const override { return {3, 2, 3}; }
  std::int64_t classes() const override { return 3; }
  std::vector<std::string> class_names() const override { return {"cat", "", "dog \xc3\xbc"}; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    if (index == undecodable_) throw DataError("sample seven");
    std::ranges::copy(noise(image_shape(), static_cast<std::uint32_t>(index)), image.begin());
    if (index == changed_) image[5] ^= 1;
    return static_cast<std::int32_t>(index % 3);
  }
  std::uint64_t fingerprint() const override { return static_cast<std::uint64_t>(size_); }

 private:
  std::int64_t size_, undecodable_, changed_;
};

Bytes bytes_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The files' contents by name.
std::map<std::string, Bytes> files_in(const fs::path& folder) {
  std::map<std::string, Bytes> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = bytes_in(entry.path());
  return files;
}

PackProgress pack_train(const Dataset& dataset, const fs::path& folder, const PackOptions& options = {}) {
  return pack({{.name = "train", .dataset = &dataset}}, folder, options);
}

// An image has 18 bytes, so a shard holds 7.
constexpr PackOptions kSevenInAShard{.shard_bytes = 7 * 18};

void expect_same(const Dataset& found, const Dataset& expected) {
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_EQ(found.image_shape(), expected.image_shape());
  EXPECT_EQ(found.classes(), expected.classes());
  EXPECT_EQ(found.class_names(), expected.class_names());
  Bytes image(static_cast<std::size_t>(expected.image_shape().bytes()));
  for (std::int64_t i = 0; i < expected.size(); ++i) {
    const std::int32_t label = expected.read(i, image);
    EXPECT_EQ(read(found, i), image) << i;
    EXPECT_EQ(found.read(i, image), label) << i;
    EXPECT_EQ(found.label(i), label) << i;
  }
}

TEST(Records, RoundTripInAnyNumberOfShards) {
  const NoiseDataset dataset(20);
  for (const std::int64_t in_shard : {1, 7, 20, 1000}) {
    const TemporaryFolder folder;
    const PackProgress progress =
        pack_train(dataset, folder.path() / "r", {.shard_bytes = in_shard * 18, .threads = 3});
    EXPECT_EQ(progress.done, 20);
    const auto records =
        open_dataset({.format = "records", .path = folder.path() / "r", .synthetic = {}}, Split::train);
    expect_same(*records, dataset);
    EXPECT_EQ(records->class_counts(), (std::vector<std::int64_t>{7, 7, 6}));
    EXPECT_FALSE(fs::exists(folder.path() / "r.partial"));
  }
}

TEST(Records, SplitsShareAFolder) {
  const TemporaryFolder folder;
  const NoiseDataset train(5), test(3);
  pack({{.name = "train", .dataset = &train}, {.name = "val", .dataset = &test}}, folder.path() / "r", {});
  EXPECT_EQ(open_records({.path = folder.path() / "r"}, Split::train)->size(), 5);
  EXPECT_EQ(open_records({.path = folder.path() / "r"}, Split::test)->size(), 3);
  EXPECT_EQ(record_files({.path = folder.path() / "r"}, Split::test).front().filename(),
            "val-00000-of-00001.lsr");
}

TEST(Records, AChoiceBetweenTestSplitsIsLogged) {
  const TemporaryFolder folder;
  const NoiseDataset train(5), val(3), test(2);
  pack({{.name = "train", .dataset = &train},
        {.name = "val", .dataset = &val},
        {.name = "test", .dataset = &test}},
       folder.path() / "r", {});
  for (const std::string word : {"auto", "val"}) {
    testing::internal::CaptureStderr();
    const DatasetOptions options{.path = folder.path() / "r", .test_split = word};
    EXPECT_EQ(open_records(options, Split::test)->size(), word == "auto" ? 2 : 3);
    open_records(options, Split::train);
    const std::string log = testing::internal::GetCapturedStderr();
    const std::string named =
        lines_naming(log, "test-00000-of-00001.lsr", "val-00000-of-00001.lsr", "data.test_split");
    EXPECT_EQ(std::ranges::count(named, '\n'), word == "auto" ? 1 : 0) << log;
  }
}

TEST(Records, ValidationShareIsRefusedIfThereAreTestFiles) {
  const TemporaryFolder folder;
  const NoiseDataset train(20), test(3);
  pack_train(train, folder.path() / "train_only");
  pack({{.name = "train", .dataset = &train}, {.name = "val", .dataset = &test}}, folder.path() / "both", {});
  DatasetOptions options{.format = "records", .path = folder.path() / "train_only", .validation_share = 0.5};
  EXPECT_EQ(open_dataset(options, Split::train)->size() + open_dataset(options, Split::test)->size(), 20);
  options.path = (folder.path() / "both").string();
  for (const Split split : {Split::train, Split::test}) {
    expect_parts(message_of<ConfigError>([&] { open_dataset(options, split); }),
                 {"data.validation_share", options.path, "val-00000-of-00001.lsr"});
  }
}

TEST(Records, BytesDoNotDependOnThreads) {
  const NoiseDataset dataset(50);
  std::map<std::string, Bytes> first;
  for (const int threads : {1, 2, 5}) {
    const TemporaryFolder folder;
    PackOptions options = kSevenInAShard;
    options.threads = threads;
    pack_train(dataset, folder.path() / "r", options);
    if (first.empty()) first = files_in(folder.path() / "r");
    EXPECT_EQ(files_in(folder.path() / "r"), first);
  }
  EXPECT_EQ(first.size(), 8u);
}

TEST(Records, FingerprintDependsOnEveryPixel) {
  const auto print_of = [](const Dataset& dataset) {
    const TemporaryFolder folder;
    pack_train(dataset, folder.path() / "r");
    return open_records({.path = folder.path() / "r"}, Split::train)->fingerprint();
  };
  const std::uint64_t print = print_of(NoiseDataset(9));
  EXPECT_EQ(print_of(NoiseDataset(9)), print);
  EXPECT_NE(print_of(NoiseDataset(10)), print);
  EXPECT_NE(print_of(NoiseDataset(9, -1, 4)), print);
}

TEST(Records, ImageFilesAreStoredUnchanged) {
  const TemporaryFolder folder;
  for (const char* name : {"train/a/1.jpg", "train/b/1.jpg", "train/b/2.jpg", "test/a/1.jpg"})
    folder.write(name, encode(kColour, noise(kColour, static_cast<std::uint32_t>(name[8]))));
  const auto images = open_image_folder({.path = folder.path()}, Split::train);
  pack_train(*images, folder.path() / "r", {.coding = ImageCoding::file});
  const auto records = open_records({.path = folder.path() / "r"}, Split::train);
  expect_same(*records, *images);
  Bytes stored;
  EXPECT_EQ(records->read_stored(2, stored), 1);
  EXPECT_EQ(stored, bytes_in(folder.path() / "train/b/2.jpg"));
  DatasetOptions gray{.path = folder.path() / "r", .images = {.channels = 1}};
  const Bytes gray_record = read(*open_records(gray, Split::train), 0);
  gray.path = folder.path().string();
  EXPECT_EQ(gray_record, read(*open_image_folder(gray, Split::train), 0));
  // Packs the records again.
  pack_train(*records, folder.path() / "again", {.coding = ImageCoding::file});
  expect_same(*open_records({.path = folder.path() / "again"}, Split::train), *images);
  pack_train(*records, folder.path() / "pixels");
  expect_same(*open_records({.path = folder.path() / "pixels"}, Split::train), *images);

  expect_parts(message_of<ConfigError>(
                   [&] { pack_train(NoiseDataset(3), folder.path() / "no", {.coding = ImageCoding::file}); }),
               {"train", "pixels", "jpeg"});
}

TEST(Records, PixelsCanBePackedAsJpeg) {
  const TemporaryFolder folder;
  for (const char* name : {"train/a/1.jpg", "train/b/1.jpg"})
    folder.write(name, encode(kColour, flat(kColour, {90, 40, static_cast<std::uint8_t>(name[6])})));
  const auto images =
      open_dataset({.format = "image_folder", .path = folder.path(), .resize = {.size = 16}, .synthetic = {}},
                   Split::train);
  const auto packed = [&](int quality) {
    const std::string name = fmt::format("r{}", quality);
    pack_train(*images, folder.path() / name, {.coding = ImageCoding::file, .jpeg_quality = quality});
    return open_records({.path = folder.path() / name}, Split::train);
  };
  const auto good = packed(95), bad = packed(5);
  EXPECT_EQ(good->image_shape(), (ImageShape{16, 16, 3}));
  const Bytes found = read(*good, 1), expected = read(*images, 1);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 4);
  Bytes large, small;
  good->read_stored(0, large);
  bad->read_stored(0, small);
  EXPECT_LT(small.size(), large.size());
}

TEST(Records, DamagedImagesEndPackingOrAreLeftOut) {
  const TemporaryFolder folder;
  const NoiseDataset dataset(20, 7);
  EXPECT_EQ(message_of<DataError>([&] { pack_train(dataset, folder.path() / "r", kSevenInAShard); }),
            "sample seven");
  EXPECT_FALSE(fs::exists(folder.path() / "r"));
  PackOptions options = kSevenInAShard;
  options.leave_out_damaged = true;
  // The unfinished pack has other options.
  expect_parts(message_of<ConfigError>([&] { pack_train(dataset, folder.path() / "r", options); }),
               {(folder.path() / "r.partial").string()});
  fs::remove_all(folder.path() / "r.partial");
  EXPECT_EQ(pack_train(dataset, folder.path() / "r", options).left_out, 1);
  EXPECT_EQ(open_records({.path = folder.path() / "r"}, Split::train)->size(), 19);
}

// The headers are valid, so that only decoding finds the damage.
TEST(Records, DamagedImageFilesEndPackingOrAreLeftOut) {
  const TemporaryFolder folder;
  const Bytes jpeg = encode(kColour, noise(kColour, 1));
  Bytes png = encode_png(kColour, noise(kColour, 2));
  folder.write("photos/train/a/1.jpg", jpeg);
  folder.write("photos/train/a/2.png", png);
  folder.write("photos/train/b/1.jpg", with_sound_header_only(jpeg));
  png.resize(png.size() / 2);
  folder.write("photos/train/b/2.png", png);
  for (const bool own_sizes : {false, true}) {
    DatasetOptions options{.path = folder.path() / "photos", .resize = {.size = own_sizes ? 8 : 0}};
    const auto images = open_image_folder(options, Split::train);
    PackOptions packing{.coding = ImageCoding::file, .own_sizes = own_sizes};
    expect_parts(message_of<DataError>([&] { pack_train(*images, folder.path() / "r", packing); }),
                 {"train/b/1.jpg"});
    fs::remove_all(folder.path() / "r.partial");
    packing.leave_out_damaged = true;
    EXPECT_EQ(pack_train(*images, folder.path() / "r", packing).left_out, 2);
    options.path = (folder.path() / "r").string();
    EXPECT_EQ(open_records(options, Split::train)->class_counts(), (std::vector<std::int64_t>{2, 0}));
    fs::remove_all(folder.path() / "r");
  }
}

// The state after a killed process: some complete files, one unfinished.
TEST(Records, ResumedPackingGivesTheSameBytes) {
  const TemporaryFolder folder;
  const NoiseDataset dataset(30);
  pack_train(dataset, folder.path() / "whole", kSevenInAShard);
  const std::map<std::string, Bytes> whole = files_in(folder.path() / "whole");
  ASSERT_EQ(whole.size(), 5u);
  for (std::size_t there = 0; there <= whole.size(); ++there) {
    std::size_t written = 0;
    for (const auto& [name, bytes] : whole) {
      if (written++ < there) folder.write("r.partial/" + name, bytes);
      if (written == there + 1)
        folder.write(fmt::format("r.partial/{}{}12ab", name, kPartialMark),
                     Bytes(bytes.begin(), bytes.begin() + 40));
    }
    fs::create_directories(folder.path() / "r.partial");
    EXPECT_THROW(open_records({.path = folder.path() / "r"}, Split::train), IoError);
    if (there < whole.size()) {
      EXPECT_ANY_THROW(open_records({.path = folder.path() / "r.partial"}, Split::train));
    }
    EXPECT_EQ(pack_train(dataset, folder.path() / "r", kSevenInAShard).kept_shards,
              static_cast<std::int64_t>(there));
    EXPECT_EQ(files_in(folder.path() / "r"), whole) << there;
    fs::remove_all(folder.path() / "r");
  }
  // A damaged file is written again.
  Bytes damaged = whole.begin()->second;
  damaged.back() ^= 1;
  folder.write("r.partial/" + whole.begin()->first, damaged);
  EXPECT_EQ(pack_train(dataset, folder.path() / "r", kSevenInAShard).kept_shards, 0);
  EXPECT_EQ(files_in(folder.path() / "r"), whole);
}

TEST(Records, PackingNeedsNoFurtherThreads) {
  const TemporaryFolder folder;
  const NoiseDataset dataset(30);
  pack_train(dataset, folder.path() / "usual", kSevenInAShard);
  const HugeStacks stacks;
  pack_train(dataset, folder.path() / "r", kSevenInAShard);
  EXPECT_EQ(files_in(folder.path() / "r"), files_in(folder.path() / "usual"));
}

TEST(Records, ATrailingSlashOfTheFolderIsIgnored) {
  const TemporaryFolder folder;
  pack_train(NoiseDataset(3), folder.path().string() + "/r//");
  EXPECT_EQ(open_records({.path = folder.path() / "r"}, Split::train)->size(), 3);
}

TEST(Records, PackingKeepsExistingFiles) {
  const TemporaryFolder folder;
  const NoiseDataset dataset(8);
  folder.write("r/mine.txt", {1});
  const std::string existing = message_of<ConfigError>([&] { pack_train(dataset, folder.path() / "r"); });
  expect_parts(existing, {(folder.path() / "r").string()});
  EXPECT_EQ(existing.find("r.partial"), std::string::npos) << existing;
  EXPECT_EQ(files_in(folder.path() / "r").size(), 1u);
  folder.write("s.partial/mine.txt", {1});
  expect_parts(message_of<ConfigError>([&] { pack_train(dataset, folder.path() / "s"); }),
               {(folder.path() / "s.partial/mine.txt").string()});
  EXPECT_EQ(files_in(folder.path() / "s.partial").size(), 1u);
  // An unfinished pack of another dataset, with files of the same names.
  pack_train(NoiseDataset(9), folder.path() / "t", kSevenInAShard);
  fs::rename(folder.path() / "t", folder.path() / "t.partial");
  expect_parts(
      message_of<ConfigError>([&] { pack_train(NoiseDataset(10), folder.path() / "t", kSevenInAShard); }),
      {(folder.path() / "t.partial").string()});
}

class OneFile {
 public:
  OneFile() {
    pack_train(NoiseDataset(3), folder_.path() / "r");
    bytes_ = bytes_in(path());
  }
  fs::path path() const { return folder_.path() / "r/train-00000-of-00001.lsr"; }
  const Bytes& bytes() const { return bytes_; }
  void put(const Bytes& bytes) const { folder_.write("r/train-00000-of-00001.lsr", bytes); }
  // The error message of opening the records and reading all of them.
  std::string complaint() const {
    return message_of<DataError>([&] {
      const auto records = open_records({.path = folder_.path() / "r"}, Split::train);
      for (std::int64_t i = 0; i < records->size(); ++i) read(*records, i);
    });
  }

 private:
  TemporaryFolder folder_;
  Bytes bytes_;
};

std::string byte_text(std::size_t at) { return fmt::format("byte {}", at); }

// Expects that the message names the file and a byte of it.
void expect_place(const std::string& message, const fs::path& path) {
  static const std::regex kPlace(R"(\bbyte \d)");
  expect_parts(message, {path.string()});
  EXPECT_TRUE(std::regex_search(message, kPlace)) << message;
}

TEST(Records, EveryFlippedByteIsNamed) {
  const OneFile file;
  EXPECT_EQ(file.complaint(), "");
  for (std::size_t at = 0; at < file.bytes().size(); ++at) {
    for (const int bit : {0, 7}) {
      Bytes bytes = file.bytes();
      bytes[at] ^= static_cast<std::uint8_t>(1 << bit);
      file.put(bytes);
      SCOPED_TRACE(at);
      expect_place(file.complaint(), file.path());
    }
  }
}

TEST(Records, EveryTruncationAndEveryTailIsNamed) {
  const OneFile file;
  for (std::size_t length = 0; length < file.bytes().size(); ++length) {
    file.put(Bytes(file.bytes().begin(), file.bytes().begin() + static_cast<long>(length)));
    SCOPED_TRACE(length);
    expect_place(file.complaint(), file.path());
  }
  Bytes longer = file.bytes();
  longer.push_back(0);
  file.put(longer);
  expect_parts(file.complaint(), {file.path().string(), byte_text(longer.size() - sizeof(RecordFooter))});
}

TEST(Records, ADamagedImageIsReportedWhenItIsRead) {
  const OneFile file;
  Bytes bytes = file.bytes();
  const NoiseDataset dataset(3);
  const Bytes second = read(dataset, 1);
  const auto at = std::ranges::search(bytes, second).begin();
  const auto offset = static_cast<std::size_t>(at - bytes.begin());
  *at ^= 1;
  file.put(bytes);
  const auto records = open_records({.path = file.path().parent_path()}, Split::train);
  EXPECT_EQ(read(*records, 0), read(dataset, 0));
  for (int turn = 0; turn < 2; ++turn) {
    expect_parts(message_of<DataError>([&] { read(*records, 1); }),
                 {file.path().string(), "record 1", byte_text(offset)});
  }
  EXPECT_EQ(read(*records, 2), read(dataset, 2));
}

// The checksums match, but the values are invalid.
TEST(Records, InvalidValuesAreRefused) {
  const OneFile file;
  const auto changed = [&](const auto& change) {
    Bytes bytes = file.bytes();
    RecordHeader header;
    RecordFooter footer;
    std::memcpy(&header, bytes.data(), sizeof(header));
    std::uint8_t* end = bytes.data() + bytes.size() - sizeof(footer);
    std::memcpy(&footer, end, sizeof(footer));
    auto* table = reinterpret_cast<RecordEntry*>(bytes.data() + footer.table);
    change(header, footer, table);
    header.header_crc = crc32c(checked_part(header));
    std::memcpy(bytes.data(), &header, sizeof(header));
    footer.header_crc = header.header_crc;
    const std::uint64_t images = sizeof(header) + header.name_bytes + 3 * 18;
    footer.table_crc = crc32c({reinterpret_cast<const char*>(bytes.data()) + images,
                               static_cast<std::size_t>(end - bytes.data()) - images});
    footer.footer_crc = crc32c(checked_part(footer));
    std::memcpy(end, &footer, sizeof(footer));
    file.put(bytes);
    return file.complaint();
  };
  using Header = RecordHeader;
  using Footer = RecordFooter;
  EXPECT_EQ(changed([](Header&, Footer&, RecordEntry*) {}), "");
  const std::size_t end = file.bytes().size() - sizeof(Footer);
  Footer footer;
  std::memcpy(&footer, file.bytes().data() + end, sizeof(footer));
  const std::string last_entry = byte_text(footer.table + 2 * sizeof(RecordEntry));
  struct Case {
    void (*change)(Header&, Footer&, RecordEntry*);
    std::vector<std::string> parts;
  };
  const Case cases[] = {
      {[](Header& h, Footer&, RecordEntry*) { h.height = 0; }, {byte_text(0)}},
      {[](Header& h, Footer&, RecordEntry*) { h.width = h.height = ~0u; }, {byte_text(0)}},
      {[](Header& h, Footer&, RecordEntry*) { h.channels = ~0u; }, {byte_text(0)}},
      {[](Header& h, Footer&, RecordEntry*) { h.classes = 0; }, {byte_text(0)}},
      {[](Header& h, Footer&, RecordEntry*) { h.coding = 9; }, {byte_text(0)}},
      {[](Header& h, Footer&, RecordEntry*) { h.own_sizes = 1; }, {byte_text(0)}},
      {[](Header& h, Footer&, RecordEntry*) { h.shard = 1; }, {byte_text(0)}},
      {[](Header&, Footer& f, RecordEntry*) { f.records = ~0ull; }, {byte_text(end)}},
      {[](Header&, Footer& f, RecordEntry*) { f.table = ~0ull - 63; }, {byte_text(end)}},
      {[](Header& h, Footer&, RecordEntry*) { h.version = 2; }, {"version 2"}},
      {[](Header& h, Footer&, RecordEntry*) { h.classes = 4; }, {"3 names", "4 classes"}},
      {[](Header&, Footer&, RecordEntry* t) { t[1].offset = ~0ull - 5; }, {"record 1"}},
      {[](Header&, Footer&, RecordEntry* t) { t[1].bytes = 17; }, {"record 1", "17 bytes"}},
      {[](Header&, Footer&, RecordEntry* t) { t[2].bytes = ~0u; }, {last_entry}},
      {[](Header&, Footer&, RecordEntry* t) { t[1].label = 3; }, {"record 1", "label 3"}},
      {[](Header&, Footer&, RecordEntry* t) { t[1].label = -1; }, {"record 1", "label -1"}}};
  for (const Case& each : cases) {
    SCOPED_TRACE(&each - cases);
    const std::string complaint = changed(each.change);
    expect_place(complaint, file.path());
    expect_parts(complaint, each.parts);
  }
}

TEST(Records, WriterAndReaderAllowTheSameNumberOfClasses) {
  const TemporaryFolder folder;
  RecordSchema schema{.shape = {1, 1, 1}, .classes = kMostLabels, .class_names = {}};
  RecordWriter writer(folder.path() / shard_name("train", 0, 1), schema);
  writer.add(Bytes{5}, kMostLabels - 1);
  writer.finish();
  EXPECT_EQ(open_records({.path = folder.path()}, Split::train)->classes(), kMostLabels);
  schema.classes = std::int64_t{kMostLabels} + 1;
  expect_parts(message_of<ConfigError>([&] { RecordWriter(folder.path() / "more.lsr", schema); }),
               {std::to_string(kMostLabels + 1), std::to_string(kMostLabels)});
}

std::size_t bytes_of_pages(std::size_t pages) {
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// The resident bytes of this process.
std::size_t resident_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;  // the first number is that of all pages
  return bytes_of_pages(pages);
}

// A sparse file: 200 GB of black images; only the table takes space on disk.
TEST(Records, MemoryDoesNotGrowWithTheSet) {
  if (bytes_of_pages(static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES))) > 750'000'000'000)
    GTEST_SKIP() << "this machine has enough memory to map the whole file";
  const TemporaryFolder folder;
  const ImageShape shape{224, 224, 3};
  const Bytes black(static_cast<std::size_t>(shape.bytes()));
  RecordHeader header{.height = 224, .width = 224, .channels = 3, .classes = 1000, .shards = 1};
  std::memcpy(header.magic, kRecordMagic.data(), kRecordMagic.size());
  header.names_crc = crc32c("");
  header.header_crc = crc32c(checked_part(header));
  constexpr std::uint64_t kRecords = 200'000'000'000 / (224 * 224 * 3);
  const std::uint64_t images_end = sizeof(header) + kRecords * black.size();
  RecordFooter footer{.records = kRecords};
  footer.table = (images_end + kTableAlignment - 1) / kTableAlignment * kTableAlignment;
  footer.file_bytes = footer.table + kRecords * sizeof(RecordEntry) + sizeof(footer);
  std::string table(footer.table - images_end, '\0');
  const std::uint32_t black_crc = crc32c({reinterpret_cast<const char*>(black.data()), black.size()});
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    const RecordEntry entry{.offset = sizeof(header) + i * black.size(),
                            .bytes = static_cast<std::uint32_t>(black.size()),
                            .crc = black_crc,
                            .label = static_cast<std::int32_t>(i % 1000)};
    table += bytes_of(entry);
  }
  footer.table_crc = crc32c(table);
  footer.header_crc = header.header_crc;
  std::memcpy(footer.end, kRecordEnd.data(), sizeof(footer.end));
  footer.footer_crc = crc32c(checked_part(footer));

  const fs::path path = folder.path() / shard_name("train", 0, 1);
  {
    std::ofstream file(path, std::ios::binary);
    file << bytes_of(header);
    file.seekp(static_cast<std::streamoff>(images_end));
    file << table << bytes_of(footer);
    if (!file.flush()) GTEST_SKIP() << "this file system does not support sparse files of 200 GB";
  }
  std::string().swap(table);

  const std::size_t before = resident_bytes();
  const auto records = open_records({.path = folder.path()}, Split::train);
  ASSERT_EQ(records->size(), static_cast<std::int64_t>(kRecords));
  Bytes image(black.size());
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {  // 150 MB
    const auto index = static_cast<std::int64_t>(random() % kRecords);
    ASSERT_EQ(records->read(index, image), index % 1000);
  }
  EXPECT_EQ(image, black);
  EXPECT_LT(records->memory_bytes(), std::size_t{1} << 20);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's records of memory are resident, too";
#endif
  // The mapped table of 32 MB, and one bit for each image.
  EXPECT_LT(resident_bytes(), before + (std::size_t{48} << 20));
}

TEST(Records, MissingAndForeignFilesAreNamed) {
  const TemporaryFolder folder;
  const fs::path records = folder.path() / "r";
  expect_parts(message_of<IoError>([&] { open_records({.path = records}, Split::train); }),
               {records.string(), "No such file"});
  fs::create_directories(records);
  expect_parts(message_of<IoError>([&] { open_records({.path = records}, Split::train); }),
               {records.string(), "train-*.lsr", "data.path", "lockstep pack"});
  fs::remove(records);
  const NoiseDataset dataset(20);
  pack_train(dataset, records, kSevenInAShard);
  expect_parts(message_of<IoError>([&] { open_records({.path = records}, Split::test); }),
               {records.string(), "test-*", "val-*.lsr"});
  expect_parts(
      message_of<IoError>([&] { open_records({.path = records, .test_split = "holdout"}, Split::test); }),
      {records.string(), " holdout-*.lsr", "data.test_split"});
  // The shard that is named, and its number or that of all shards.
  const std::vector<std::string> error_without[] = {{shard_name("train", 1, 3), "shard 1 of 3"},
                                                    {shard_name("train", 2, 3), "shard 2 of 3"},
                                                    {shard_name("train", 1, 3), "2 of 3 shards"}};
  for (std::int64_t shard = 0; shard < 3; ++shard) {
    const fs::path one = records / shard_name("train", shard, 3);
    fs::rename(one, folder.path() / "away");
    expect_parts(message_of<DataError>([&] { open_records({.path = records}, Split::train); }),
                 error_without[static_cast<std::size_t>(shard)]);
    fs::rename(folder.path() / "away", one);
  }
  // A second download of the last shard.
  const fs::path last = records / shard_name("train", 2, 3), again = records / "train-00002-of-00003 (1).lsr";
  fs::copy_file(last, again);
  expect_parts(message_of<DataError>([&] { open_records({.path = records}, Split::train); }),
               {last.string(), "shard 2 of 3", "number 3"});
  fs::remove(again);
  // A shard of another set under the name of one of this set.
  pack_train(NoiseDataset(21), folder.path() / "other", kSevenInAShard);
  fs::copy_file(folder.path() / "other" / shard_name("train", 1, 3), records / shard_name("train", 1, 3),
                fs::copy_options::overwrite_existing);
  expect_parts(message_of<DataError>([&] { open_records({.path = records}, Split::train); }),
               {shard_name("train", 0, 3), shard_name("train", 1, 3)});
  // A folder in place of a file.
  fs::remove(records / shard_name("train", 1, 3));
  fs::create_directory(records / shard_name("train", 1, 3));
  expect_parts(message_of<IoError>([&] { open_records({.path = records}, Split::train); }),
               {(records / shard_name("train", 1, 3)).string()});
}

}  // namespace
}  // namespace lockstep
