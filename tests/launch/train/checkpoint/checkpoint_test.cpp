// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints on disk: a complete one is read exactly, and any other is refused.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/file_text.h"
#include "launch/train/checkpoint/other_ranks.h"
#include "launch/train/checkpoint/saved_training.h"
#include "launch/train/checkpoint/shard.h"
#include "launch/train/checkpoint/store.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

StateCopy shared_state() {
  return {.tensors = {{"conv.weight", StateScope::replicated, {2, 3}, {1, -2, 3.5f, 0, 1e-40f, -0.0f}}},
          .values = {{"train.steps", StateScope::replicated, std::int64_t{-1} << 62},
                     {"optimizer.loss_scale", StateScope::replicated, 0x1p-1070}}};
}

StateCopy state_of(int rank) {
  const auto value = static_cast<float>(rank + 1);
  return {.tensors = {{"conv.weight.residual", StateScope::per_rank, {2}, {value, -value}}},
          .values = {{"epoch.loss", StateScope::per_rank, std::numeric_limits<double>::quiet_NaN()},
                     {"epoch.samples", StateScope::per_rank, std::int64_t{rank}}}};
}

class Checkpoint : public testing::Test {
 protected:
  Manifest manifest_of(std::int64_t steps) const {
    return {.lockstep = "0.1.0",
            .steps = steps,
            .epochs = 1,
            .ranks = 2,
            .global_batch = 16,
            .device = "cpu",
            .data = "ten images",
            .kernels = "{}",
            .config = "[train]\nbatch = 8\n",
            .test_accuracy = {},
            .files = {}};
  }
  fs::path save(std::int64_t steps, std::optional<double> accuracy = {}) const {
    const CheckpointStore store(run_);
    store.make_partial(steps);
    Manifest manifest = manifest_of(steps);
    manifest.test_accuracy = accuracy;
    const fs::path folder = store.partial(steps);
    manifest.files.push_back(write_shard(folder, shared_shard(), shared_state()));
    for (const int rank : {0, 1})
      manifest.files.push_back(write_shard(folder, rank_shard(rank), state_of(rank)));
    return store.commit(manifest);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : CheckpointStore(run_).entries())
      found.push_back(entry.folder.filename().string());
    return found;
  }

  const TemporaryFolder temporary_{"checkpoint"};
  const fs::path run_ = temporary_.path();
};

// Reads everything that a resumed program reads.
void read_all(const fs::path& folder) {
  const Manifest manifest = whole_manifest(folder);
  for (int rank = 0; rank < 2; ++rank) state_for(folder, manifest, rank, 2);
}

// Writes a new file: when a truncated one is closed, some file systems write its bytes to the disk at once.
void overwrite(const fs::path& path, const std::string& bytes) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST_F(Checkpoint, IsReadBitForBit) {
  const fs::path folder = save(40, 0.1);
  EXPECT_EQ(folder.filename(), "step-000000040");
  const Manifest manifest = whole_manifest(folder);
  EXPECT_EQ(manifest.steps, 40);
  EXPECT_EQ(manifest.test_accuracy, 0.1);
  EXPECT_EQ(manifest.config, manifest_of(40).config);
  const StateCopy read = state_for(folder, manifest, 1, 2).state;
  ASSERT_EQ(read.tensors.size(), 2u);
  EXPECT_EQ(read.tensors[0], shared_state().tensors[0]);
  EXPECT_TRUE(std::signbit(read.tensors[0].values[5]));
  EXPECT_EQ(read.tensors[1], state_of(1).tensors[0]);
  ASSERT_EQ(read.values.size(), 4u);
  for (const StateCopy::Value& value : shared_state().values)
    EXPECT_EQ(std::ranges::count(read.values, value), 1);
  EXPECT_EQ(std::ranges::count(read.values, state_of(1).values[1]), 1);
  EXPECT_EQ(std::ranges::count_if(read.values,
                                  [](const auto& value) {
                                    const auto* number = std::get_if<double>(&value.value);
                                    return value.name == "epoch.loss" && number != nullptr &&
                                           std::isnan(*number);
                                  }),
            1);
  EXPECT_FALSE(fs::exists(CheckpointStore(run_).partial(40)));
}

TEST_F(Checkpoint, EveryTruncationAndEveryFlippedByteIsRefused) {
  const fs::path folder = save(7);
  std::size_t damages = 0;
  std::vector<fs::path> files = {folder / Manifest::kFileName};
  for (const ShardFile& file : read_manifest(folder).files) files.push_back(folder / file.name);
  for (const fs::path& file : files) {
    const std::string whole = file_text(file);
    for (std::size_t at = 0; at < whole.size(); ++at) {
      overwrite(file, whole.substr(0, at));
      EXPECT_THROW(read_all(folder), DataError) << file << " of " << at << " bytes";
      for (const int flip : {0x01, 0x20, 0xff}) {
        std::string flipped = whole;
        flipped[at] = static_cast<char>(flipped[at] ^ flip);
        overwrite(file, flipped);
        EXPECT_THROW(read_all(folder), DataError) << file << ", byte " << at << ", " << flip;
        ++damages;
      }
    }
    overwrite(file, whole + " ");
    EXPECT_THROW(read_all(folder), DataError) << file;
    overwrite(file, whole);
    EXPECT_NO_THROW(read_all(folder));
    fs::remove(file);
    EXPECT_THROW(read_all(folder), DataError) << file;
    overwrite(file, whole);
  }
  EXPECT_GT(damages, 3000u);
}

std::string edited(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  CHECK(at != std::string::npos, "{}", from);
  return text.replace(at, from.size(), to);
}

TEST_F(Checkpoint, ManifestsCannotPointOutsideTheFolder) {
  const fs::path folder = save(7);
  const std::string text = file_text(folder / Manifest::kFileName);
  const auto refused = [&](const std::string& from, const std::string& to) {
    const std::string message =
        message_of<DataError>([&] { manifest_from(edited(text, from, to), "a/file"); });
    expect_parts(message, {"a/file"});
    return message;
  };
  expect_parts(refused("rank-00001.safetensors", "../../etc/passwd"), {"rank-00001.safetensors"});
  expect_parts(refused("\"ranks\": 2", "\"ranks\": 99999999999"), {"\"ranks\""});
  expect_parts(refused("\"ranks\": 2", "\"ranks\": 3"), {"3 files", "3 ranks"});
  expect_parts(refused("\"steps\": 7", "\"steps\": -7"), {"\"steps\""});
  expect_parts(refused("\"steps\": 7", "\"steps\": 7.5"), {"\"steps\""});
  const std::string bytes = fmt::format("\"bytes\": {}", read_manifest(folder).files[1].bytes);
  for (const char* odd : {"1e300", "-1", "7.5", "18446744073709551615", "\"7\""})
    expect_parts(refused(bytes, fmt::format("\"bytes\": {}", odd)), {"\"bytes\""});
  expect_parts(refused("\"version\": 1", "\"version\": 2"), {"version 2"});
  expect_parts(refused("\"steps\": 7", "\"steps\": 8"), {"hash"});
  const std::string nested = message_of<DataError>([] { manifest_from(std::string(100000, '['), "a/file"); });
  expect_parts(nested, {"a/file"});
  EXPECT_EQ(nested.find("json.exception"), std::string::npos)
      << "the nesting is refused before the parser fails: " << nested;
  // Links in the checkpoint's folder are refused, too.
  const fs::path shard = folder / shared_shard();
  const fs::path elsewhere = run_ / "elsewhere";
  fs::rename(shard, elsewhere);
  fs::create_symlink(elsewhere, shard);
  expect_parts(message_of<DataError>([&] { read_all(folder); }), {shard.string()});
}

// Messages quote these strings, and terminals show the messages.
TEST_F(Checkpoint, ManifestsWithControlCharactersAreRefused) {
  for (const char* odd : {"\x1b]0;title\x07", "two\nlines", "\x7f",
                          "\xc2\x9b"
                          "2J"}) {
    for (const auto& [name, field] :
         {std::pair{"\"lockstep\"", &Manifest::lockstep}, std::pair{"\"device\"", &Manifest::device},
          std::pair{"\"data\"", &Manifest::data}, std::pair{"\"kernels\"", &Manifest::kernels}}) {
      Manifest manifest = manifest_of(7);
      manifest.files = read_manifest(save(7)).files;
      manifest_from(to_text(manifest), "m");
      manifest.*field = odd;
      const std::string message = message_of<DataError>([&] { manifest_from(to_text(manifest), "m"); });
      expect_parts(message, {name});
      EXPECT_EQ(message.find(odd), std::string::npos) << message;
    }
  }
}

TEST_F(Checkpoint, IsNotWrittenThroughALink) {
  const CheckpointStore store(run_);
  save(10);
  const fs::path elsewhere = run_ / "elsewhere";
  fs::create_directories(elsewhere);
  fs::create_directory_symlink(elsewhere, store.partial(20));
  expect_parts(message_of<IoError>([&] { store.make_partial(20); }), {store.partial(20).string()});
  EXPECT_TRUE(fs::is_empty(elsewhere));

  const fs::path precious = run_ / "precious";
  overwrite(precious, "kept");
  store.make_partial(30);
  fs::create_symlink(precious, store.partial(30) / shared_shard());
  read_all(save(30));
  EXPECT_EQ(file_text(precious), "kept");
}

TEST_F(Checkpoint, IsNotWrittenIfTheRunFolderIsGone) {
  const CheckpointStore store(run_ / "gone");
  expect_parts(message_of<IoError>([&] { store.make_partial(20); }), {(run_ / "gone").string(), "run.dir"});
  EXPECT_FALSE(fs::exists(run_ / "gone"));
}

TEST_F(Checkpoint, SizesAreComparedBeforeAnythingIsRead) {
  const fs::path folder = save(7);
  ShardFile file = read_manifest(folder).files[0];
  const std::string bytes = fmt::format("{} bytes", file.bytes);
  file.bytes = std::uint64_t{1} << 60;
  expect_parts(message_of<DataError>([&] { read_shard(folder, file); }),
               {(folder / file.name).string(), bytes, std::to_string(file.bytes)});
}

// On another number of ranks. The range alone would need 8 TiB.
TEST_F(Checkpoint, ElementsBeyondTheSizeOfItsFilesAreRefused) {
  const fs::path folder = save(7);
  Manifest manifest = read_manifest(folder);
  EXPECT_EQ(state_for(folder, manifest, 0, 1).exchange.size(), 1u);
  StateCopy state = state_of(1);
  state.tensors[0].name = "conv.weight.residual[1099511627774:1099511627776]";
  manifest.files[2] = write_shard(folder, rank_shard(1), state);
  expect_parts(message_of<DataError>([&] { state_for(folder, manifest, 0, 1); }),
               {(folder / rank_shard(1)).string(), state.tensors[0].name});
}

TEST_F(Checkpoint, NewestAndBestAreKept) {
  const CheckpointStore store(run_);
  for (const auto& [steps, accuracy] : {std::pair{10, 0.5}, {20, 0.9}, {30, 0.9}, {40, 0.7}}) {
    save(steps, accuracy);
    store.prune(2);
  }
  save(50);
  store.prune(2);
  EXPECT_EQ(names(), (std::vector<std::string>{"step-000000050", "step-000000040", "step-000000030"}));
  // A damaged checkpoint does not count towards `keep`, and stays for inspection.
  overwrite(store.folder() / "step-000000050" / shared_shard(), "");
  save(60);
  store.prune(2);
  EXPECT_EQ(names(), (std::vector<std::string>{"step-000000060", "step-000000050", "step-000000040",
                                               "step-000000030"}));
  EXPECT_EQ(save(60).filename(), "step-000000060.2") << "a step may have two checkpoints";
  store.prune(1);
  EXPECT_EQ(names(), (std::vector<std::string>{"step-000000060.2", "step-000000050", "step-000000030"}));
}

TEST_F(Checkpoint, LaterCheckpointsAreSetAside) {
  const CheckpointStore store(run_);
  EXPECT_EQ(store.set_aside({}), fs::path());
  for (const int steps : {10, 20, 30}) save(steps);
  const fs::path aside = store.set_aside(store.folder() / "step-000000020");
  EXPECT_EQ(aside, run_ / "checkpoints.1");
  EXPECT_EQ(names(), (std::vector<std::string>{"step-000000020", "step-000000010"}));
  EXPECT_NO_THROW(read_all(aside / "step-000000030"));
  store.make_partial(40);
  EXPECT_EQ(store.set_aside({}), run_ / "checkpoints.2");
  EXPECT_FALSE(fs::exists(run_ / "checkpoints.2" / store.partial(40).filename()))
      << "no run removes it there";
  EXPECT_TRUE(names().empty());
  EXPECT_NO_THROW(read_all(run_ / "checkpoints.2" / "step-000000010"));
}

TEST_F(Checkpoint, OnlyLaterCheckpointsThanARenamedOneAreSetAside) {
  const CheckpointStore store(run_);
  for (const int steps : {10, 20, 30}) save(steps);
  const fs::path renamed = store.folder() / "good";
  fs::rename(store.folder() / "step-000000020", renamed);
  EXPECT_TRUE(fs::exists(store.set_aside(renamed) / "step-000000030"));
  EXPECT_EQ(names(), std::vector<std::string>{"step-000000010"});
  EXPECT_NO_THROW(read_all(renamed));
}

// Nothing can be renamed from one disk to another.
TEST_F(Checkpoint, ThoseOnAnotherDiskAreSetAsideThere) {
  const fs::path memory = "/dev/shm";
  struct stat here = {}, there = {};
  if (stat(run_.c_str(), &here) != 0 || stat(memory.c_str(), &there) != 0 || here.st_dev == there.st_dev ||
      access(memory.c_str(), W_OK) != 0)
    GTEST_SKIP() << "the temporary folder and " << memory << " are not two file systems to write to";
  const TemporaryFolder disk("checkpoint", memory);
  const CheckpointStore store(run_);
  fs::create_directory_symlink(disk.path(), store.folder());
  for (const int steps : {10, 20, 30}) save(steps);
  EXPECT_NO_THROW(read_all(store.set_aside(store.folder() / "step-000000020") / "step-000000030"));
  EXPECT_EQ(names(), (std::vector<std::string>{"step-000000020", "step-000000010"}));
  EXPECT_NO_THROW(read_all(store.set_aside({}) / "step-000000010"));
  EXPECT_TRUE(names().empty());
  EXPECT_TRUE(fs::is_symlink(store.folder())) << "later checkpoints are saved on the same disk";
}

// A shell completes the name of a folder with a slash.
TEST_F(Checkpoint, IsFoundByANameThatEndsWithASlash) {
  const fs::path folder = save(10);
  const CheckpointCandidates found = checkpoints_of(folder / "", "asked");
  EXPECT_TRUE(found.named);
  ASSERT_EQ(found.folders.size(), 1u);
  EXPECT_EQ(found.folders[0], folder) << "without the slash, its parent is the folder of the checkpoints";
  const CheckpointStore store(run_);
  store.make_partial(20);
  expect_parts(message_of<DataError>([&] { checkpoints_of(store.partial(20) / "", "asked"); }),
               {"asked", Manifest::kFileName});
}

// A link to itself, for example, is not an empty folder.
TEST_F(Checkpoint, AFolderThatCannotBeListedIsAnError) {
  const CheckpointStore store(run_);
  EXPECT_TRUE(store.entries().empty());
  fs::create_directory_symlink(store.folder(), store.folder());
  expect_parts(message_of<IoError>([&] { store.entries(); }), {store.folder().string()});
  EXPECT_THROW(store.set_aside({}), IoError);
  EXPECT_NO_THROW(store.remove_partials());
  EXPECT_NO_THROW(store.prune(1));
}

TEST_F(Checkpoint, UnfinishedCheckpointsAreIgnoredAndRemoved) {
  const CheckpointStore store(run_);
  save(10);
  store.make_partial(20);
  write_shard(store.partial(20), shared_shard(), shared_state());
  EXPECT_EQ(names(), std::vector<std::string>{"step-000000010"});
  Manifest manifest = manifest_of(20);
  manifest.files = read_manifest(store.folder() / "step-000000010").files;
  expect_parts(message_of<IoError>([&] { store.commit(manifest); }), {"rank-00000", "run.dir"});
  store.remove_partials();
  EXPECT_FALSE(fs::exists(store.partial(20)));
  EXPECT_EQ(names(), std::vector<std::string>{"step-000000010"});
}

}  // namespace
}  // namespace lockstep
