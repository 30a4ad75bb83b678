// SPDX-License-Identifier: Apache-2.0
//
// Untrusted files: each is either read completely or refused with DataError or IoError.
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "core/safetensors.h"
#include "tests/core/safetensors_file.h"

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
    try {
      const SafetensorsReader reader(path_);
    } catch (const DataError& error) {
      return error.what();
    }
    ADD_FAILURE() << "accepted: " << file.substr(8, 200);
    return {};
  }
  void expect_refusal(const std::string& header, const std::string& data, const std::string& reason) const {
    const std::string message = refusal(file_of(header, data));
    EXPECT_NE(message.find(path_.string()), std::string::npos) << message;
    EXPECT_NE(message.find("at byte "), std::string::npos) << message;
    EXPECT_NE(message.find(reason), std::string::npos) << message << "\nexpected: " << reason;
  }
  static std::string tensor(const std::string& name, std::uint64_t begin, std::uint64_t end) {
    return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name, end - begin,
                       begin, end);
  }
  std::string small_file() const {
    float values[3] = {1, 2, 3};
    write_safetensors(path_, std::vector<NamedTensor>{{"a", {values, {2, 1}}}, {"b", {values + 2, {}}}},
                      {{"step", "3"}});
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

TEST_F(Corruption, AHeaderLengthIsNotBelieved) {
  for (const std::uint64_t bytes :
       {std::numeric_limits<std::uint64_t>::max(), std::numeric_limits<std::uint64_t>::max() - 7,
        std::uint64_t{1} << 63, std::uint64_t{100'000'001}, std::uint64_t{3}}) {
    const std::string prefix(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    EXPECT_NE(refusal(prefix + "{}").find("header"), std::string::npos) << bytes;
  }
  EXPECT_NE(refusal(std::string(8, '\0')).find("JSON"), std::string::npos);  // an empty header
}

TEST_F(Corruption, AHeaderAboveTheLimitIsRefusedThoughTheFileHasIt) {
  const std::uint64_t bytes = 100'000'001;
  put(std::string(reinterpret_cast<const char*>(&bytes), sizeof(bytes)) + "{}");
  std::filesystem::resize_file(path_, 8 + bytes);  // sparse
  EXPECT_FALSE(reads());
}

TEST_F(Corruption, TensorsMustTileTheData) {
  const auto header = [](const std::string& a, const std::string& b) { return "{" + a + "," + b + "}"; };
  const std::string data(8, 'x');
  expect_refusal(header(tensor("a", 0, 4), tensor("b", 5, 8)), data, "\"b\" begins at 5");
  expect_refusal(header(tensor("a", 0, 4), tensor("b", 3, 8)), data, "\"b\" begins at 3");
  expect_refusal(header(tensor("a", 0, 8), tensor("b", 0, 8)), data, "begins at 0");
  expect_refusal(header(tensor("a", 1, 4), tensor("b", 4, 8)), data, "\"a\" begins at 1");
  expect_refusal(header(tensor("a", 0, 4), tensor("b", 4, 7)), data, "7 bytes of data, the file has 8");
  expect_refusal(header(tensor("a", 0, 4), tensor("b", 4, 9)), data, "9 bytes of data, the file has 8");
  expect_refusal("{}", "x", "0 bytes of data, the file has 1");
  put(file_of(header(tensor("b", 4, 8), tensor("a", 0, 4)), data));  // any order in the header
  EXPECT_TRUE(reads());
}

TEST_F(Corruption, KeysAreUnique) {
  expect_refusal("{" + tensor("a", 0, 0) + "," + tensor("a", 0, 0) + "}", "", "\"a\"");
  expect_refusal(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "",
                 "two fields \"dtype\"");
  expect_refusal(R"({"a":{"dtype":"U8","shape":[0],"shape":[0],"data_offsets":[0,0]}})", "",
                 "two fields \"shape\"");
  expect_refusal(R"({"__metadata__":{"k":"1","k":"2"}})", "", "two fields \"k\"");
  expect_refusal(R"({"__metadata__":{},"__metadata__":{}})", "", "__metadata__");
}

TEST_F(Corruption, NumbersAreWholeAndFit) {
  const auto header = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[)" + offsets + "]}}";
  };
  expect_refusal(header("-1", "0,4"), "xxxx", "negative");
  expect_refusal(header("1.0", "0,4"), "xxxx", "not whole");
  expect_refusal(header("1e0", "0,4"), "xxxx", "not whole");
  expect_refusal(header("1", "0,4.0"), "xxxx", "not whole");
  expect_refusal(header("18446744073709551616", "0,4"), "xxxx", "not whole");  // 2^64
  expect_refusal(header("4611686018427387905", "0,4"), "xxxx", "too large");   // times 4 wraps around to 4
  expect_refusal(header("4294967296,4294967296", "0,0"), "", "too large");     // wraps around to 0
  expect_refusal(header("0,18446744073709551615", "0,0"), "", "too large");    // no negative dimension
  expect_refusal(header("1", "4,0"), "xxxx", "shape needs 4");
  expect_refusal(header("2", "0,4"), "xxxx", "shape needs 8");
  expect_refusal(header("1", "0"), "xxxx", "data_offsets");
  expect_refusal(header("1", "0,4,4"), "xxxx", "data_offsets");
  expect_refusal(header("1", ""), "xxxx", "data_offsets");
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
      expect_refusal(header, "x", "dimensions");
    }
  }
}

TEST_F(Corruption, NothingElseStandsInTheHeader) {
  expect_refusal(R"({"a":{"dtype":"F33","shape":[],"data_offsets":[0,4]}})", "xxxx", "unknown type \"F33\"");
  expect_refusal(R"({"a":{"shape":[],"data_offsets":[0,4]}})", "xxxx", "unknown type");
  expect_refusal(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", "xxxx", "needs dtype, shape");
  expect_refusal(R"({"a":{"dtype":"F32","shape":[]}})", "", "needs dtype, shape");
  expect_refusal(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"x":"y"}})", "xxxx", "text");
  expect_refusal(R"({"a":{"dtype":["F32"],"shape":[],"data_offsets":[0,4]}})", "xxxx", "list");
  expect_refusal(R"({"a":{"dtype":"F32","shape":4,"data_offsets":[0,4]}})", "xxxx", "number");
  expect_refusal(R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", "xxxx", "text");
  expect_refusal(R"({"a":{"dtype":"F32","shape":null,"data_offsets":[0,4]}})", "xxxx", "null");
  expect_refusal(R"({"a":{"dtype":true,"shape":[],"data_offsets":[0,4]}})", "xxxx", "truth value");
  expect_refusal(R"({"a":"text"})", "", "text");
  expect_refusal(R"({"__metadata__":{"k":1}})", "", "number");
  expect_refusal(R"({"__metadata__":{"k":{"l":"m"}}})", "", "object");
  expect_refusal(R"({"__metadata__":3})", "", "number");
}

TEST_F(Corruption, TheHeaderIsOneJsonObject) {
  expect_refusal("[]", "", "at byte 8: not a safetensors file");
  expect_refusal(" {}", "", "at byte 8: not a safetensors file");
  expect_refusal("{", "", "not JSON at byte");
  expect_refusal("{} {}", "", "not JSON at byte");
  expect_refusal("{\"\xff\":3}", "", "not JSON at byte");             // not UTF-8
  expect_refusal(std::string("{}\0{}", 5), "", "at byte 10: a NUL");  // the rest would be ignored
  expect_refusal(R"({"a":)" + std::string(100'000, '['), "", "list");
  std::string objects = "{";
  for (int i = 0; i < 10'000; ++i) objects += R"("a":{)";
  expect_refusal(objects, "", "object");
}

TEST_F(Corruption, OddNamesAreRefused) {
  expect_refusal("{" + tensor("", 0, 0) + "}", "", "odd name");
  expect_refusal("{" + tensor("a\\u0000b", 0, 0) + "}", "", "odd name");
  expect_refusal("{" + tensor("a\\nb", 0, 0) + "}", "", "odd name");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // a minute of parsing under a sanitizer
TEST_F(Corruption, MoreThanAMillionTensorsAreRefused) {
  std::string header = "{";
  for (int i = 0; i <= 1'000'000; ++i) {
    if (i > 0) header += ',';
    header += tensor(std::to_string(i), 0, 0);
  }
  expect_refusal(header + "}", "", "too many tensors");
}
#endif

// The message does not read "a header of 746872295945891163 bytes".
TEST_F(Corruption, AFileOfAnotherKindIsCalledThat) {
  for (const char* text : {"[model]\nname = \"cnn\"\n", "\x89HDF\r\n\x1a\n...."}) {
    EXPECT_EQ(refusal(text),
              path_.string() + ": at byte 8: not a safetensors file: those have a JSON object here");
  }
}

// A zip archive, and the older pickle format. The message suggests a separate name for the converted file.
TEST_F(Corruption, WhatTorchSaveWroteIsToldHowToConvert) {
  for (const char* text : {"PK\3\4 an archive of PyTorch's", "\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19."}) {
    const std::string told = refusal(text);
    EXPECT_TRUE(told.starts_with(path_.string() + ": a file of torch.save")) << told;
    EXPECT_NE(told.find("save_file("), std::string::npos) << told;
    EXPECT_NE(told.find("torch.load(\"" + path_.string() + "\""), std::string::npos) << told;
  }
}

}  // namespace
}  // namespace lockstep
