// SPDX-License-Identifier: Apache-2.0
//
// Valid files. safetensors_corruption_test.cpp tests invalid ones.
#include "core/files/safetensors.h"

#include <cstring>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "tests/core/file_size_limit.h"
#include "tests/core/safetensors_file.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

TEST_F(SafetensorsTest, RoundTripsEveryTypeShapeAndTheMetadata) {
  std::vector<float> floats(24);
  std::iota(floats.begin(), floats.end(), -3.5f);
  std::vector<Half> halves(6, Half(1.5f));
  std::vector<BFloat16> bfloats(1, BFloat16(-2.0f));
  std::vector<std::uint8_t> bytes = {1, 2, 255};
  std::vector<std::int32_t> integers = {-7, 7};
  const std::vector<NamedTensor> tensors = {
      {"layer1.0.conv1.weight", {floats.data(), {2, 3, 2, 1, 2, 1}, DType::f32}},
      {"half", {halves.data(), {2, 3}, DType::f16}},
      {"scalar", {bfloats.data(), {}, DType::bf16}},
      {"bytes", {bytes.data(), {3}, DType::u8}},
      {"nothing", {nullptr, {4, 0}, DType::f32}},
      {"größe", {integers.data(), {2}, DType::i32}}};
  write_safetensors(path_, tensors, {.metadata = {{"step", "12"}, {"note", "a \"quote\"\n"}}});

  SafetensorsReader reader(path_);
  ASSERT_EQ(reader.entries().size(), tensors.size());
  for (const NamedTensor& named : tensors) {
    const SafetensorsEntry* entry = reader.find(named.name);
    ASSERT_NE(entry, nullptr) << named.name;
    EXPECT_EQ(entry->dtype, named.tensor.dtype);
    EXPECT_EQ(entry->shape, named.tensor.shape);
    std::vector<std::byte> read(named.tensor.bytes());
    reader.read(*entry, read);
    EXPECT_TRUE(read.empty() || std::memcmp(read.data(), named.tensor.data, read.size()) == 0) << named.name;
  }
  EXPECT_EQ(reader.metadata(),
            (std::map<std::string, std::string>{{"step", "12"}, {"note", "a \"quote\"\n"}}));
  EXPECT_EQ(reader.find("absent"), nullptr);
}

TEST_F(SafetensorsTest, RoundTripsNoTensors) {
  write_safetensors(path_, {});
  const SafetensorsReader reader(path_);
  EXPECT_TRUE(reader.entries().empty());
  EXPECT_TRUE(reader.metadata().empty());
}

TEST_F(SafetensorsTest, DataIsAlignedAndEndsTheFile) {
  float value = 1.0f;
  write_safetensors(path_, std::vector<NamedTensor>{{"w", {&value, {1}}}});
  const std::string file = content();
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof(header));
  EXPECT_EQ(header % 8, 0u);
  EXPECT_EQ(file.size(), 8 + header + sizeof(float));
  EXPECT_EQ(file[8], '{');
}

TEST_F(SafetensorsTest, ReadsAFileOfAnotherProgram) {
  const float values[2] = {1.0f, 2.0f};
  put(file_of(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]},)"
              R"("n":{"shape":[1],"data_offsets":[0,8],"dtype":"I64"},)"
              R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}   )",
              std::string(8, '\0') + std::string(reinterpret_cast<const char*>(values), sizeof(values))));
  SafetensorsReader reader(path_);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  float value = 0;
  reader.read(*reader.find("b"), std::as_writable_bytes(std::span(&value, 1)));
  EXPECT_EQ(value, 2.0f);
  const SafetensorsEntry* counter = reader.find("n");
  ASSERT_NE(counter, nullptr);
  EXPECT_EQ(counter->dtype_name, "I64");
  EXPECT_FALSE(counter->dtype.has_value());  // a type that Lockstep lacks
}

// Caches of model hubs consist of symbolic links.
TEST_F(SafetensorsTest, FollowsSymbolicLinks) {
  float value = 1.5f;
  write_safetensors(path_, std::vector<NamedTensor>{{"w", {&value, {1}}}});
  const std::filesystem::path link = folder_ / "link", second = folder_ / "second.safetensors";
  std::filesystem::create_symlink(path_.filename(), link);
  std::filesystem::create_symlink(link, second);
  SafetensorsReader reader(second);
  float read = 0;
  reader.read(*reader.find("w"), std::as_writable_bytes(std::span(&read, 1)));
  EXPECT_EQ(read, 1.5f);
}

TEST_F(SafetensorsTest, ReadsOnlyIntoMemoryOfTheRightSize) {
  float values[2] = {1.0f, 2.0f};
  write_safetensors(path_, std::vector<NamedTensor>{{"w", {values, {1}}}, {"after", {values + 1, {1}}}});
  SafetensorsReader reader(path_);
  for (const std::size_t bytes : {3u, 5u}) {
    std::vector<std::byte> memory(bytes);
    EXPECT_THROW(reader.read(*reader.find("w"), memory), Error) << bytes;
  }
}

TEST_F(SafetensorsTest, AFileThatShrinksWhileItIsReadIsAnIoError) {
  const std::vector<float> values(100'000, 1.0f);
  const Tensor tensor{const_cast<float*>(values.data()), {100'000}};
  write_safetensors(path_, std::vector<NamedTensor>{{"small", {tensor.data, {1}}}, {"w", tensor}});
  SafetensorsReader reader(path_);
  std::filesystem::resize_file(path_, 1000);
  std::vector<std::byte> read(tensor.bytes());
  EXPECT_THROW(reader.read(*reader.find("w"), read), IoError);
  float value = 0;
  reader.read(*reader.find("small"), std::as_writable_bytes(std::span(&value, 1)));  // reads still work
  EXPECT_EQ(value, 1.0f);
}

TEST_F(SafetensorsTest, AnAbsentFileIsAnIoErrorThatNamesIt) {
  expect_parts(message_of<IoError>([&] { SafetensorsReader reader(path_); }),
               {path_.string(), "No such file or directory"});
  EXPECT_THROW(SafetensorsReader{folder_}, IoError);
}

TEST_F(SafetensorsTest, TheWriterRefusesNamesItsReaderWouldRefuse) {
  float value = 1.0f;
  const Tensor tensor{&value, {1}};
  for (const char* name : {"", "__metadata__", "line\nbreak", "\xff"}) {
    EXPECT_THROW(write_safetensors(path_, std::vector<NamedTensor>{{name, tensor}}), Error) << name;
  }
  EXPECT_THROW(write_safetensors(path_, std::vector<NamedTensor>{{"a", tensor}, {"a", tensor}}), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

class OldFile : public SafetensorsTest {
 protected:
  OldFile() {
    write_safetensors(path_, std::vector<NamedTensor>{{"old", {values_.data(), {4}}}});
    before_ = content();
  }
  void write_new(Links links = Links::follow) {
    write_safetensors(path_, std::vector<NamedTensor>{{"new", {values_.data(), {100'000}}}},
                      {.links = links});
  }
  void expect_only_the_old() const {
    EXPECT_EQ(content(), before_);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  }
  std::vector<float> values_ = std::vector<float>(100'000, 1.0f);
  std::string before_;
};

TEST_F(OldFile, IsReplaced) {
  write_new();
  EXPECT_NE(SafetensorsReader(path_).find("new"), nullptr);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(OldFile, IsKeptWhenTheDiskIsFull) {
  {
    const FileSizeLimit limit(4096);
    EXPECT_THROW(write_new(), IoError);
  }
  expect_only_the_old();
}

TEST_F(OldFile, LinkIsReplacedOnceTheNewFileIsComplete) {
  const std::filesystem::path elsewhere = folder_ / "elsewhere";
  std::filesystem::rename(path_, elsewhere);
  std::filesystem::create_symlink(elsewhere, path_);
  {
    const FileSizeLimit limit(4096);
    EXPECT_THROW(write_new(Links::replace), IoError);
  }
  EXPECT_EQ(content(), before_) << "the link stays";
  write_new(Links::replace);
  EXPECT_NE(SafetensorsReader(path_).find("new"), nullptr);
  EXPECT_NE(SafetensorsReader(elsewhere).find("old"), nullptr);
}

}  // namespace
}  // namespace lockstep
