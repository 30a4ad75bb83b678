// SPDX-License-Identifier: Apache-2.0
//
// Kernel choices, from a file that any process of the machine may have written or from a checkpoint.
#include "core/error.h"
#include "launch/program/devices/kernel_cache.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

constexpr const char* kIdentity = "fuzz";

}  // namespace

void try_input(std::string_view input) {
  Parts parts(input);
  const bool of_checkpoint = (parts.byte() & 1) != 0;
  const std::string text(parts.rest());
  if (of_checkpoint) {
    KernelChoices choices(ChooseBy::time, "time");
    from_text(text, choices);
    KernelChoices again(ChooseBy::time, "time");
    from_text(to_text(choices), again);
    require(to_text(again) == to_text(choices), "the written choices must read back unchanged");
    return;
  }
  const KernelCache cache(folder() / "cache", kIdentity);
  put(cache.file(), text);
  KernelChoices choices(ChooseBy::time, "time");
  bool planned = false;
  cache.use(choices, [&] {
    planned = true;
    choices.keep("a key of this very run",
                 {.candidate = "direct", .microseconds = 1, .waited = 0, .contests = 1});
  });
  require(planned, "an invalid cache must not prevent planning");
  KernelChoices later(ChooseBy::time, "time");
  cache.use(later, [] {});
  require(later.kept().contains("a key of this very run"), "the cache must contain the new choice");
}

std::vector<std::string> seeds() {
  const std::string choices =
      R"({"conv 3x3":{"kernel":"winograd","microseconds":12.5,"waited":0.25,"contests":2,)"
      R"("first_microseconds":20.5,"chosen_at":1700000000},)"
      R"("linear":{"kernel":"direct","microseconds":1e300,"waited":-1,"contests":1e300}})";
  const std::string file(1, '\0'), checkpoint(1, '\1');
  return {file + R"({"identity":"fuzz","choices":)" + choices + "}", checkpoint + choices,
          file + R"({"identity":"other","choices":[]})", checkpoint + std::string(3000, '['),
          checkpoint + R"({"\u001b[2J":{"kernel":1}})"};
}

}  // namespace lockstep::fuzz
