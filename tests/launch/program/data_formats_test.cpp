// SPDX-License-Identifier: Apache-2.0
//
// Data formats in the real program under mpirun: from the files in data.path to a trained network.
#include <algorithm>
#include <regex>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/images/png.h"
#include "tests/data/jpeg_files.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/matches_in.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

std::string train(const TemporaryFolder& folder, const std::vector<std::string>& settings) {
  return fmt::format("{} train cifar10_resnet18 --set 'run.dir={}' --set '{}'", program("lockstep"),
                     (folder.path() / "run").string(), fmt::join(settings, "' --set '"));
}

// The highest test accuracy of the run's epochs.
double best_accuracy(const TemporaryFolder& folder) {
  double best = 0;
  for (const nlohmann::json& line : metrics_of(folder.path() / "run"))
    best = std::max(best, line.at("test_accuracy").get<double>());
  return best;
}

// Expects exit code 78 and an error that names these keys and values. Other than expect_failure() it allows a
// part to occur more than once.
void expect_config_error(const ProgramResult& result, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, exit_code::config) << result.output;
  expect_parts(result.output, parts);
}

// A network that learns in seconds, without an augmentation that hides the signal.
const std::vector<std::string> kSmall = {
    "model.name=mlp",           "train.precision=fp32",        "world.device=cpu",
    "train.batch=20",           "schedule.name=constant",      "train.threads=1",
    "train.epochs=3",           "data.horizontal_flip=false",  "data.crop_padding=0",
    "schedule.warmup_epochs=0", "optimizer.learning_rate=0.01"};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A bright stretch of pixels encodes the class, in files like those of the archive.
TEST(DataFormats, CifarBinaryIsLearned) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, int images) {
    Bytes bytes;
    for (int i = 0; i < images; ++i) {
      const int label = i % 10;
      bytes.push_back(static_cast<std::uint8_t>(label));
      for (int at = 0; at < 3072; ++at)
        bytes.push_back(static_cast<std::uint8_t>((at / 300 == label ? 200 : 20) + (at * 7 + i) % 10));
    }
    folder.write(name, bytes);
  };
  for (int batch = 1; batch <= 5; ++batch) write(fmt::format("data_batch_{}.bin", batch), 100);
  write("test_batch.bin", 40);
  const ProgramResult result =
      run_shell(train(folder, kSmall + std::vector<std::string>{"data.format=cifar_binary", "train.epochs=8",
                                                                "data.path=" + folder.path().string()}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(best_accuracy(folder), 1) << result.output;
}

// Two columns determine the class. Of the other columns one has large values, one is constant, and one holds
// names.
TEST(DataFormats, TablesAreLearned) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, int rows, const std::string& more) {
    std::string text = "name,width,noise,height,constant,species\n" + more;
    for (int i = 0; i < rows; ++i) {
      const int label = i * 7 % 3;
      text += fmt::format("row {},{:.2f},{},{},4.5,{}\n", i, 1e6 + 100 * (label == 0) + i * 37 % 23,
                          i * 31 % 17, 3 - 2 * (label == 1) + 0.01 * (i * 13 % 29),
                          label == 0   ? "adelie"
                          : label == 1 ? "gentoo"
                                       : "chinstrap");
    }
    folder.write("table/" + name, Bytes(text.begin(), text.end()));
  };
  write("train.csv", 200, "one too few,1,2,3,4\n");
  write("test.csv", 50, "");
  const std::string path = (folder.path() / "table").string();
  const auto run = [&](int ranks, const std::vector<std::string>& more) {
    return run_ranks(ranks,
                     train(folder, kSmall +
                                       std::vector<std::string>{"data.format=csv", "data.path=" + path,
                                                                "data.csv.ignore=name", "data.mean=[]",
                                                                "data.deviation=[]", "train.epochs=8"} +
                                       more));
  };
  const ProgramResult result = run(2, {});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json dataset = run_record(folder.path() / "run").at("dataset");
  EXPECT_EQ(dataset.at("training"), 200);
  EXPECT_EQ(dataset.at("test"), 50);
  EXPECT_EQ(dataset.at("classes"), 3);
  EXPECT_EQ(dataset.at("class_names"), nlohmann::json({"adelie", "chinstrap", "gentoo"}));
  for (const char* rarest_and_most_frequent : {R"(\b66\W+chinstrap\b)", R"(\b67\W+adelie\b)"})
    EXPECT_TRUE(std::regex_search(result.output, std::regex(rarest_and_most_frequent))) << result.output;
  EXPECT_EQ(count(result.output, "train.csv:2"), 1) << result.output;
  EXPECT_EQ(count(result.output, "5 cells"), 1) << result.output;
  EXPECT_EQ(best_accuracy(folder), 1) << result.output;

  expect_failure(run(1, {"data.on_error=stop"}), exit_code::data, {"train.csv:2", "5 cells"});
  expect_config_error(run(1, {"data.mean=[0.5]", "data.deviation=[1]"}), {"data.mean = []"});
  expect_config_error(run(1, {"data.mixup=0.5"}), {"data.mixup = 0"});
  expect_config_error(run(1, {"data.resize=16"}), {"data.resize = 16", "data.format = \"csv\""});
}

// JPEG and PNG images of many sizes. The brighter half, upper or lower, encodes the class.
TEST(DataFormats, ImagesOfAnySizeAreLearned) {
  const TemporaryFolder folder;
  for (int i = 0; i < 120; ++i) {
    const ImageShape shape{.height = 20 + i % 7 * 5, .width = 24 + i % 5 * 9, .channels = 3};
    Bytes pixels = noise(shape, static_cast<std::uint32_t>(i));
    for (std::size_t at = 0; at < pixels.size(); ++at) {
      const bool above = at < pixels.size() / 2;
      pixels[at] = static_cast<std::uint8_t>(pixels[at] / 4 + (above == (i % 2 == 0) ? 150 : 30));
    }
    const bool png = i % 3 == 0;
    folder.write(fmt::format("images/{}/{}/{:03}.{}", i < 80 ? "train" : "test",
                             i % 2 == 0 ? "above" : "below", i, png ? "png" : "jpg"),
                 png ? encode_png(shape, pixels) : encode(shape, pixels));
  }
  const std::string path = (folder.path() / "images").string();
  const auto run = [&](int ranks, const std::vector<std::string>& more) {
    return run_ranks(ranks, train(folder, kSmall +
                                              std::vector<std::string>{"data.path=" + path, "data.resize=16",
                                                                       "train.batch=10", "train.epochs=6"} +
                                              more));
  };
  const ProgramResult result = run(2, {"data.random_resized_crop=true", "data.center_crop=0.875"});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json dataset = run_record(folder.path() / "run").at("dataset");
  EXPECT_EQ(dataset.at("training"), 80);
  EXPECT_EQ(dataset.at("test"), 40);
  EXPECT_EQ(dataset.at("classes"), 2);
  // The line of the data names the size that images get and those that they had.
  for (const char* sizes : {R"(16x16x3[^\n]*\b20\D{1,8}50\b)", R"(16x16x3[^\n]*\b24\D{1,8}60\b)"})
    EXPECT_TRUE(std::regex_search(result.output, std::regex(sizes))) << result.output;
  EXPECT_EQ(best_accuracy(folder), 1) << result.output;

  expect_failure(run(1, {"data.resize=0"}), exit_code::data, {"data.verify"});
  expect_failure(run(1, {"data.resize=0", "data.random_resized_crop=true"}), exit_code::config,
                 {"data.random_resized_crop = true", "data.resize"});

  const ProgramResult init =
      run_shell(fmt::format("cd {} && {} init images", folder.path().string(), program("lockstep")));
  ASSERT_EQ(init.exit_code, 0) << init.output;
  const std::string text = text_of(folder.path() / "images.toml");
  EXPECT_EQ(count(text, "\nresize = 32\nrandom_resized_crop = true\n"), 1) << text;
}

// Trains on images that must be decoded, one of which cannot be.
std::string train_photos(const TemporaryFolder& folder, const std::vector<std::string>& more) {
  const ImageShape shape{.height = 20, .width = 24, .channels = 3};
  const bool written = std::filesystem::exists(folder.path() / "images");
  for (int i = 0; i < 60 && !written; ++i)
    folder.write(fmt::format("images/{}/{}/{:03}.jpg", i < 40 ? "train" : "test", i % 2 == 0 ? "a" : "b", i),
                 encode(shape, noise(shape, static_cast<std::uint32_t>(i))));
  if (!written) folder.write("images/train/a/damaged.jpg", {0xff, 0xd8, 0xff, 0xe0});
  const std::vector<std::string> photos = {"data.path=" + (folder.path() / "images").string(),
                                           "data.verify=none", "data.resize=16", "train.batch=8"};
  return train(folder, kSmall + photos + more) + " --digest " + (folder.path() / "digest").string();
}

// Caching decoded images changes no bit of a training.
TEST(DataFormats, CachingDecodedImagesChangesNoBit) {
  const TemporaryFolder folder;
  // Trains two ranks, and returns the bytes that rank 0 holds of the dataset.
  const auto held_bytes = [&](const std::vector<std::string>& more) {
    const ProgramResult result = run_ranks(2, train_photos(folder, more));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return run_record(folder.path() / "run").at("planned_bytes").at("host").at("dataset").get<double>();
  };
  constexpr double kImage = 16 * 16 * 3, kTrain = 41 * kImage, kTest = 20 * kImage;
  constexpr double kRounding = 1024;  // alignment, labels, and an odd number of images on two ranks
  const double names = held_bytes({"data.loader=stream"});  // bytes of a dataset that holds no images
  const std::string expected = text_of(folder.path() / "digest");
  for (const char* loader : {"auto", "preload"}) {
    const double held = held_bytes({fmt::format("data.loader={}", loader)});
    EXPECT_NEAR(held - names, (kTrain + kTest) / 2, kRounding) << loader;
    EXPECT_EQ(text_of(folder.path() / "digest"), expected) << loader;
  }
  EXPECT_NEAR(held_bytes({"data.random_resized_crop=true"}) - names, kTest / 2, kRounding);
  EXPECT_EQ(held_bytes({"train.epochs=1"}), names);
  expect_failure(run_shell(train_photos(folder, {"data.loader=preload", "data.random_resized_crop=true"})),
                 exit_code::config, {"data.loader = \"preload\"", "data.random_resized_crop"});
}

// One image of 61 cannot be decoded.
TEST(DataFormats, ImagesCanBeDecodedBeforeTheFirstStep) {
  const TemporaryFolder folder;
  const std::vector<std::string> two_epochs = {"train.epochs=2"};
  const auto run = [&](int ranks, const std::vector<std::string>& more) {
    return run_ranks(ranks, train_photos(folder, two_epochs + more));
  };
  const ProgramResult during = run(1, {"data.loader=preload"});
  ASSERT_EQ(during.exit_code, 0) << during.output;
  const std::string digest = text_of(folder.path() / "digest");
  for (const auto& [ranks, loader] : {std::pair{1, "preload"}, {1, "auto"}, {1, "device"}, {2, "auto"}}) {
    const ProgramResult before = run(ranks, {"data.preload=before", fmt::format("data.loader={}", loader)});
    EXPECT_EQ(before.exit_code, 0) << before.output;
    EXPECT_EQ(matches_in(before.output, R"(data: [^\n]*\b60 of 61\b[^\n]* s\b)"), 1) << before.output;
    if (ranks > 1) continue;
    EXPECT_EQ(text_of(folder.path() / "digest"), digest) << loader;
  }
  expect_failure(run(2, {"data.preload=before", "data.loader=preload", "data.on_error=stop"}),
                 exit_code::data, {"damaged.jpg"});
  expect_failure(run(1, {"data.preload=before", "data.loader=stream"}), exit_code::config,
                 {"data.preload = \"before\"", "data.loader"});
  const ProgramResult one_epoch = run(1, {"data.preload=before", "train.epochs=1"});
  EXPECT_EQ(one_epoch.exit_code, 0) << one_epoch.output;
  EXPECT_EQ(matches_in(one_epoch.output, R"(data\.preload = "before" has no effect)"), 1) << one_epoch.output;
}

// With nothing to save, the job can be repeated.
TEST(DataFormats, ASignalEndsDecodingBeforeTheFirstStep) {
  const TemporaryFolder folder;
  const std::string held = (folder.path() / "held").string();
  const std::string command =
      train_photos(folder, {"data.preload=before", "data.loader=preload", "train.epochs=2"});
  const ProgramResult result =
      run_shell(fmt::format("LOCKSTEP_HOLD=decode:0:{0} {1} & run=$!\n{2}kill -TERM $run\nwait $run", held,
                            command, wait_until("[ -e " + held + " ]")));
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
}

// The loader's threads augment images that are read again or cached.
TEST(DataFormats, AugmentingOnTheHostChangesNoBit) {
  const TemporaryFolder folder;
  const auto digest = [&](const std::vector<std::string>& more) {
    std::vector<std::string> settings = {
        "train.epochs=2",    "data.crop_padding=2", "data.horizontal_flip=true",
        "data.contrast=0.5", "data.hue=0.1",        "data.cutout=3"};
    settings.insert(settings.end(), more.begin(), more.end());
    const ProgramResult result = run_shell(train_photos(folder, settings));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return text_of(folder.path() / "digest");
  };
  const std::string expected = digest({});
  EXPECT_EQ(digest({"data.augment_on=host", "data.loader=preload"}), expected);
  EXPECT_EQ(digest({"data.augment_on=host", "data.loader=stream", "data.loader_threads=3"}), expected);
  EXPECT_NE(digest({"data.contrast=0"}), expected);
  expect_config_error(run_ranks(1, train_photos(folder, {"data.augment_on=host", "data.loader=device",
                                                         "data.crop_padding=2"})),
                      {"data.loader = \"device\"", "data.augment_on"});
}

TEST(DataFormats, ImagesThatDoNotFitInSharedMemoryAreStreamed) {
  const TemporaryFolder folder;
  const std::string in_little_memory =
      "unshare -m sh -c 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec \"$@\"' sh ";
  if (run_shell(in_little_memory + "true").exit_code != 0)
    GTEST_SKIP() << "needs the right to mount a tmpfs in a namespace";
  const auto run = [&](const std::string& loader) {
    return run_shell(
        in_little_memory + "env OMPI_MCA_btl=tcp,self mpirun --oversubscribe --bind-to none -np 2 " +
        train_photos(folder, {"data.resize=256", "model.mlp.width=16", "train.epochs=2", loader}));
  };
  const ProgramResult streamed = run("data.loader=auto");
  EXPECT_EQ(streamed.exit_code, 0) << streamed.output;
  EXPECT_GE(count(streamed.output, "12.2 MB"), 1) << streamed.output;
  // A rank warns once, about the first memory that it requests and that does not fit. These are the
  // gradients, 13 MiB: the program requests no memory for images, 4 MiB per rank, because it has checked the
  // free space.
  EXPECT_EQ(matches_in(streamed.output, R"(/dev/shm[^\n]*\b13 MiB\b[^\n]*--shm-size)"), 1) << streamed.output;
  EXPECT_EQ(matches_in(streamed.output, R"(/dev/shm[^\n]*\b4 MiB\b)"), 0) << streamed.output;
  expect_failure(run("data.loader=preload"), exit_code::config, {"data.loader = \"preload\"", "12.2 MB"});
}

// More files than a process may open by default: the program raises the limit.
TEST(DataFormats, LimitOfOpenFilesIsRaised) {
  const TemporaryFolder folder;
  for (int shard = 0; shard < 60; ++shard)
    folder.write(fmt::format("photos/{}/a/{:02}.jpg", shard < 40 ? "train" : "test", shard),
                 flat_jpeg({1, 2, 3}));
  const std::string here = "cd " + folder.path().string();
  for (const char* split : {"train", "test"}) {
    const std::string make = fmt::format(
        "{} && for file in photos/{}/a/*.jpg; do name=$(basename $file .jpg); echo 0 >$name.cls; "
        "cp $file . && tar -cf {}-$name.tar $name.jpg $name.cls || exit 1; done",
        here, split, split);
    ASSERT_EQ(run_shell(make).exit_code, 0);
  }
  const ProgramResult packed = run_shell(
      fmt::format("{} && ulimit -Sn 48 && {} pack cifar10_resnet20 records --set data.format=webdataset "
                  "--set data.path=.",
                  here, program("lockstep")));
  ASSERT_EQ(packed.exit_code, 0) << packed.output;
  const ProgramResult inspected = run_shell(
      fmt::format("{} && {} inspect records --json --quick 2>/dev/null", here, program("lockstep")));
  ASSERT_EQ(inspected.exit_code, 0) << inspected.output;
  const nlohmann::json splits = nlohmann::json::parse(inspected.output);
  EXPECT_EQ(splits.at("train").at("samples"), 40);
  EXPECT_EQ(splits.at("test").at("samples"), 20);
}

}  // namespace
}  // namespace lockstep
