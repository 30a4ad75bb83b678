// SPDX-License-Identifier: Apache-2.0
//
// A training table, plain or gzip, with any options.
#include "core/error.h"
#include "data/formats/csv.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/read_some.h"

namespace lockstep::fuzz {

void try_input(std::string_view input) {
  Parts parts(input);
  const int kinds = parts.byte();
  const std::string_view bytes = parts.rest();
  std::filesystem::remove_all(folder() / "csv");
  put(std::filesystem::path("csv") / "train.csv", bytes);

  DatasetOptions options{.format = "csv", .path = (folder() / "csv").string()};
  options.on_error = (kinds & 1) != 0 ? OnError::stop : OnError::leave_out;
  options.csv.scaling = static_cast<ColumnScaling>((kinds >> 1) % 3);
  if ((kinds & 8) != 0) options.csv.label = "1";
  if ((kinds & 32) != 0) options.csv.header = CsvHeader::no;
  if ((kinds & 64) != 0) options.csv.delimiter = CsvDelimiter::semicolon;
  if ((kinds & 16) != 0) options.csv.ignore = "2";
  const std::unique_ptr<Dataset> dataset = open_csv(options, Split::train);
  read_some(*dataset);
}

std::vector<std::string> seeds() {
  // The first table in gzip.
  const std::string packed(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x33\xd4\x31\xd2\x31\xe0"
      "\x32\xd6\x31\xd1\x31\xe4\x02\x00\x4d\x07\xe8\xbf\x0c\x00\x00\x00",
      32);
  const std::string named = "id,length,species\n1,2.5,cat\n2,-3e4,\"a \"\"dog\"\"\"\n";
  return {std::string("\0", 1) + "1,2,0\n3,4,1\n",
          std::string("\0", 1) + packed,
          "\4" + named,
          "\x0c" + named,
          "\x13" + named,
          std::string("\2") + "1,,0\r\n,4,1\r\n1,2,3\r1,2,3",
          "\x44\xef\xbb\xbfx;y;label\r\n1,5;2;0\r\n-3,25;4;1\r\n",
          "\x20"
          "0,1,2\n5,6,1\n7,8,0\n"};
}

}  // namespace lockstep::fuzz
