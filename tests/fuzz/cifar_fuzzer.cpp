// SPDX-License-Identifier: Apache-2.0
//
// A file in the binary version of CIFAR-10 or CIFAR-100.
#include "core/error.h"
#include "data/formats/cifar.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/read_some.h"

namespace lockstep::fuzz {
namespace {

constexpr int kHundred = 1, kBoth = 2;

}  // namespace

void try_input(std::string_view input) {
  Parts parts(input);
  const int kinds = parts.byte();
  const std::string_view bytes = parts.rest();
  std::filesystem::remove_all(folder() / "cifar");
  put(std::filesystem::path("cifar") / ((kinds & kHundred) != 0 ? "test.bin" : "test_batch.bin"), bytes);
  if ((kinds & kBoth) != 0) put(std::filesystem::path("cifar") / "train.bin", bytes);

  const std::unique_ptr<Dataset> dataset = open_cifar(folder() / "cifar", Split::test);
  read_some(*dataset);
}

std::vector<std::string> seeds() {
  const std::string pixels(3072, 'x');
  return {std::string("\0\7", 2) + pixels, std::string("\0\7", 2) + pixels + "\1" + pixels,
          std::string("\1\7\x20", 3) + pixels, std::string("\2\7", 2) + pixels,
          std::string("\0\x40", 2) + pixels};
}

}  // namespace lockstep::fuzz
