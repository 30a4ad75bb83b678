// SPDX-License-Identifier: Apache-2.0
//
// Untrusted files: each is either read completely or refused with DataError or IoError.
#include <cstring>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "core/files/safetensors.h"
#include "tests/core/safetensors_file.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

class Corruption : public SafetensorsTest {
 protected:
  // True if every tensor of the file can be read. Any exception other than DataError and IoError escapes.
  bool reads() const {
    try {
      SafetensorsReader reader(path_);
      for (const SafetensorsEntry& entry : reader.entries()) {
        EXPECT_LE(entry.end, std::filesystem::file_size(path_));
        std::vector<std::byte> data(entry.end - entry.begin);
        reader.read(entry, data);
      }
      return true;
    } catch (const DataError&) {
      return false;
    } catch (const IoError&) {
      return false;
    }
  }
  // The message of the DataError for this file.
  std::string refusal(const std::string& file) const {
    put(file);
    const std::string message = message_of<DataError>([&] { SafetensorsReader reader(path_); });
    EXPECT_NE(message, "") << "accepted: " << file.substr(8, 200);
    return message;
  }
  // Expects a refusal that names the file and the place of a byte, and contains all parts.
  void expect_refusal(const std::string& header, const std::string& data,
                      const std::vector<std::string>& parts = {}) const {
    const std::string message = refusal(file_of(header, data));
    expect_parts(message, {path_.string()});
    EXPECT_TRUE(std::regex_search(message, std::regex(R"(\bbyte \d+)"))) << message;
    expect_parts(message, parts);
  }
  static std::string tensor(const std::string& name, std::uint64_t begin, std::uint64_t end) {
    return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name, end - begin,
                       begin, end);
  }
  std::string small_file() const {
    float values[3] = {1, 2, 3};
    write_safetensors(path_, std::vector<NamedTensor>{{"a", {values, {2, 1}}}, {"b", {values + 2, {}}}},
                      {.metadata = {{"step", "3"}}});
    return content();
  }
};

TEST_F(Corruption, TruncationAtEveryByteIsRefused) {
  const std::string whole = small_file();
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    put(whole.substr(0, bytes));
    EXPECT_FALSE(reads()) << bytes << " of " << whole.size();
  }
  put(whole);
  EXPECT_TRUE(reads());
}

TEST_F(Corruption, AnyFlipInTheHeaderIsRefusedOrReadCleanly) {
  const std::string whole = small_file();
  const std::size_t header_end = whole.size() - 3 * sizeof(float);
  int refused = 0;
  for (std::size_t at = 0; at < header_end; ++at) {
    for (const int mask : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ mask);
      put(flipped);
      EXPECT_NO_THROW(refused += !reads()) << "byte " << at << " mask " << mask;
    }
  }
  EXPECT_GT(refused, static_cast<int>(header_end) * 9 / 2);  // the others stay valid
}

TEST_F(Corruption, AnyFlipOfTheLengthIsRefused) {
  const std::string whole = small_file();
  for (std::size_t at = 0; at < 8; ++at) {
    for (int mask = 1; mask < 256; ++mask) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ mask);
      put(flipped);
      EXPECT_FALSE(reads()) << "byte " << at << " mask " << mask;
    }
  }
}

TEST_F(Corruption, AHeaderLengthIsCheckedAgainstTheFile) {
  for (const std::uint64_t bytes :
       {std::numeric_limits<std::uint64_t>::max(), std::numeric_limits<std::uint64_t>::max() - 7,
        std::uint64_t{1} << 63, std::uint64_t{100'000'001}, std::uint64_t{3}}) {
    const std::string prefix(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    expect_parts(refusal(prefix + "{}"), {path_.string(), fmt::format("{} bytes", bytes)});
  }
  EXPECT_NE(refusal(std::string(8, '\0')).find("JSON"), std::string::npos);  // an empty header
}

TEST_F(Corruption, AHeaderAboveTheLimitIsRefusedEvenIfTheFileContainsIt) {
  const std::uint64_t bytes = 100'000'001;
  put(std::string(reinterpret_cast<const char*>(&bytes), sizeof(bytes)) + "{}");
  std::filesystem::resize_file(path_, 8 + bytes);  // sparse
  expect_parts(message_of<DataError>([&] { SafetensorsReader reader(path_); }),
               {fmt::format("{} bytes", bytes)});
}

TEST_F(Corruption, TensorsMustTileTheData) {
  const auto header = [](const std::string& a, const std::string& b) { return "{" + a + "," + b + "}"; };
  const std::string data(8, 'x');
  // `at`: the byte of the data section where the tiling ends.
  const auto expect_end = [&](const std::string& text, std::size_t at, std::vector<std::string> parts) {
    parts.push_back(fmt::format("byte {}", 8 + text.size() + at));
    expect_refusal(text, data, parts);
  };
  expect_end(header(tensor("a", 0, 4), tensor("b", 5, 8)), 4, {"\"b\""});
  expect_end(header(tensor("a", 0, 4), tensor("b", 3, 8)), 3, {"\"b\""});
  expect_end(header(tensor("a", 0, 8), tensor("b", 0, 8)), 0, {});
  expect_end(header(tensor("a", 1, 4), tensor("b", 4, 8)), 0, {"\"a\""});
  expect_end(header(tensor("a", 0, 4), tensor("b", 4, 7)), 7, {"7 bytes"});
  expect_end(header(tensor("a", 0, 4), tensor("b", 4, 9)), 8, {"9 bytes"});
  expect_refusal("{}", "x", {"byte 10", "0 bytes"});
  put(file_of(header(tensor("b", 4, 8), tensor("a", 0, 4)), data));  // any order in the header
  EXPECT_TRUE(reads());
}

TEST_F(Corruption, KeysAreUnique) {
  expect_refusal("{" + tensor("a", 0, 0) + "," + tensor("a", 0, 0) + "}", "", {"\"a\""});
  expect_refusal(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "",
                 {"\"a\"", "\"dtype\""});
  expect_refusal(R"({"a":{"dtype":"U8","shape":[0],"shape":[0],"data_offsets":[0,0]}})", "",
                 {"\"a\"", "\"shape\""});
  expect_refusal(R"({"__metadata__":{"k":"1","k":"2"}})", "", {"__metadata__", "\"k\""});
  expect_refusal(R"({"__metadata__":{},"__metadata__":{}})", "", {"__metadata__"});
}

TEST_F(Corruption, NumbersAreWholeAndFit) {
  const auto header = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[)" + offsets + "]}}";
  };
  expect_refusal(header("-1,-1", "0,4"), "xxxx");  // the product is 1
  expect_refusal(header("1.0", "0,4"), "xxxx");
  expect_refusal(header("1e0", "0,4"), "xxxx");
  expect_refusal(header("1", "0,4.0"), "xxxx");
  expect_refusal(header("18446744073709551616", "0,0"), "");                // 2^64, which wraps around to 0
  expect_refusal(header("4611686018427387905", "0,4"), "xxxx", {"\"a\""});  // times 4 wraps around to 4
  expect_refusal(header("4294967296,4294967296", "0,0"), "", {"\"a\""});    // wraps around to 0
  expect_refusal(header("0,18446744073709551615", "0,0"), "", {"\"a\""});   // no negative dimension
  expect_refusal(header("1", "4,0"), "xxxx", {"\"a\""});
  expect_refusal(header("2", "0,4"), "xxxx", {"\"a\"", "4 bytes"});
  expect_refusal(header("1", "0"), "xxxx", {"data_offsets"});
  expect_refusal(header("1", "0,4,4"), "xxxx", {"data_offsets"});
  expect_refusal(header("1", ""), "xxxx", {"data_offsets"});
}

TEST_F(Corruption, ShapesHaveAtMostSixDimensions) {
  for (const int rank : {6, 7, 8, 1000}) {
    std::string shape = "1";
    for (int i = 1; i < rank; ++i) shape += ",1";
    const std::string header = R"({"a":{"dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[0,1]}})";
    if (rank == 6) {
      put(file_of(header, "x"));
      EXPECT_TRUE(reads());
    } else {
      expect_refusal(header, "x", {"\"a\""});
    }
  }
}

TEST_F(Corruption, MissingUnknownAndWronglyTypedFieldsAreRefused) {
  expect_refusal(R"({"a":{"dtype":"F33","shape":[],"data_offsets":[0,4]}})", "xxxx", {"\"a\"", "\"F33\""});
  expect_refusal(R"({"a":{"shape":[],"data_offsets":[0,4]}})", "xxxx", {"\"a\""});
  expect_refusal(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", "xxxx", {"\"a\"", "shape"});
  expect_refusal(R"({"a":{"dtype":"F32","shape":[]}})", "", {"\"a\"", "data_offsets"});
  expect_refusal(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"x":"y"}})", "xxxx");
  expect_refusal(R"({"a":{"dtype":["F32"],"shape":[],"data_offsets":[0,4]}})", "xxxx");
  expect_refusal(R"({"a":{"dtype":"F32","shape":4,"data_offsets":[0,4]}})", "xxxx");
  expect_refusal(R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", "xxxx");
  expect_refusal(R"({"a":{"dtype":"F32","shape":null,"data_offsets":[0,4]}})", "xxxx", {"null"});
  expect_refusal(R"({"a":{"dtype":true,"shape":[],"data_offsets":[0,4]}})", "xxxx");
  expect_refusal(R"({"a":"text"})", "");
  expect_refusal(R"({"__metadata__":{"k":1}})", "");
  expect_refusal(R"({"__metadata__":{"k":{"l":"m"}}})", "");
  expect_refusal(R"({"__metadata__":3})", "");
}

TEST_F(Corruption, TheHeaderIsOneJsonObject) {
  expect_refusal("[]", "", {"byte 8", "JSON"});
  expect_refusal(" {}", "", {"byte 8", "JSON"});
  expect_refusal("{", "", {"JSON"});
  expect_refusal("{} {}", "", {"JSON"});
  expect_refusal("{\"\xff\":3}", "", {"JSON"});               // not UTF-8
  expect_refusal(std::string("{}\0{}", 5), "", {"byte 10"});  // the parser would ignore the rest
  expect_refusal(R"({"a":)" + std::string(100'000, '['), "");
  std::string objects = "{";
  for (int i = 0; i < 10'000; ++i) objects += R"("a":{)";
  expect_refusal(objects, "");
}

TEST_F(Corruption, EmptyNamesAndControlCharactersAreRefused) {
  expect_refusal("{" + tensor("", 0, 0) + "}", "");
  expect_refusal("{" + tensor("a\\u0000b", 0, 0) + "}", "");
  expect_refusal("{" + tensor("a\\nb", 0, 0) + "}", "");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // a minute of parsing under a sanitizer
TEST_F(Corruption, MoreThanAMillionTensorsAreRefused) {
  std::string header = "{";
  for (int i = 0; i <= 1'000'000; ++i) {
    if (i > 0) header += ',';
    header += tensor(std::to_string(i), 0, 0);
  }
  expect_refusal(header + "}", "");
}
#endif

// The message does not contain the number that the first 8 bytes would be as a header's length.
TEST_F(Corruption, AFileOfAnotherFormatIsReportedAsNotJson) {
  for (const char* text : {"[model]\nname = \"cnn\"\n", "\x89HDF\r\n\x1a\n...."}) {
    const std::string message = refusal(text);
    expect_parts(message, {path_.string(), "byte 8", "JSON"});
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, text, sizeof(header_bytes));
    EXPECT_EQ(message.find(std::to_string(header_bytes)), std::string::npos) << message;
  }
}

// A zip archive, and the older pickle format. The message suggests a separate name for the converted file.
TEST_F(Corruption, AFileOfTorchSaveIsRefusedWithTheConversionCommand) {
  for (const char* text : {"PK\3\4 an archive of PyTorch's", "\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19."}) {
    expect_parts(refusal(text), {"torch.save", "save_file(", "torch.load(\"" + path_.string() + "\""});
  }
}

}  // namespace
}  // namespace lockstep
