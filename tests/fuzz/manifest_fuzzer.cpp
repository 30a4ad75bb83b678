// SPDX-License-Identifier: Apache-2.0
//
// manifest.json of a checkpoint: the input itself, or a manifest with the input's fields and correct hashes.
#include "core/error.h"
#include "launch/program/config/config.h"
#include "launch/train/checkpoint/manifest.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

// The files of every accepted manifest must be in its folder.
void check(const Manifest& manifest, std::string_view text) {
  require(to_text(manifest) == text, "the text of a manifest must read back unchanged");
  require(manifest.ranks >= 1 && static_cast<std::int64_t>(manifest.files.size()) == manifest.ranks + 1,
          "expected one file for each rank and one shared file");
  for (const ShardFile& file : manifest.files)
    require(file.name.find('/') == std::string::npos, "files must have names, not paths");
}

Manifest chosen_by(Parts& parts) {
  Manifest manifest;
  manifest.lockstep = parts.text();
  manifest.steps = parts.byte() - 1;
  manifest.epochs = parts.byte();
  manifest.partial_line = (parts.byte() & 1) != 0;
  manifest.ranks = parts.byte() & 7;
  manifest.global_batch = parts.byte();
  manifest.device = parts.text();
  manifest.data = parts.text();
  manifest.kernels = parts.text();
  manifest.config = parts.text();
  if (const int accuracy = parts.byte(); accuracy > 0) manifest.test_accuracy = 1.0 / accuracy;
  for (std::int64_t i = 0; i <= manifest.ranks; ++i) {
    const std::string_view name = parts.text();
    const std::string own = i == 0 ? shared_shard() : rank_shard(i - 1);
    manifest.files.push_back(
        {name.empty() ? own : std::string(name), parts.byte(), std::string(parts.text())});
  }
  return manifest;
}

std::string sound() {
  Manifest manifest{.lockstep = "0.1.0",
                    .steps = 40,
                    .epochs = 1,
                    .ranks = 2,
                    .global_batch = 16,
                    .device = "cpu",
                    .data = "512 images",
                    .kernels = "{}",
                    .config = "[train]\nbatch = 8\n",
                    .test_accuracy = 0.5,
                    .files = {}};
  for (const std::string& name : {shared_shard(), rank_shard(0), rank_shard(1)})
    manifest.files.push_back({name, 1000, std::string(32, 'a')});
  return to_text(manifest);
}

}  // namespace

void try_input(std::string_view input) {
  Parts parts(input);
  const bool made = (parts.byte() & 1) != 0;
  const std::string text = made ? to_text(chosen_by(parts)) : std::string(parts.rest());
  const Manifest manifest = manifest_from(text, "manifest.json");
  check(manifest, text);
  differences(manifest.config, "[train]\nbatch = 9\n");
}

std::vector<std::string> seeds() {
  const std::string as_it_comes(1, '\0'), made(1, '\1');
  const auto text = [](std::string_view text) { return Parts::of_text(text); };
  std::string chosen = made + text("0.1.0") + "\x29\x01\x01\x01\x10" + text("cpu") + text("512 images") +
                       text("{}") + text("[train]\nbatch = 8\n") + "\x02";
  for (int i = 0; i < 2; ++i) chosen += text("") + "\x10" + text("0123456789abcdef0123456789abcdef");
  std::string huge = sound();
  huge.replace(huge.find("1000"), 4, "1e300");
  return {as_it_comes + sound(),
          as_it_comes + huge,
          as_it_comes + std::string(2000, '['),
          as_it_comes + "{\"format\": \"lockstep checkpoint\"}",
          chosen,
          made};
}

}  // namespace lockstep::fuzz
