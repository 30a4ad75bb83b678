// SPDX-License-Identifier: Apache-2.0
//
// The whole text of the errors that users meet most often. All other tests assert facts of a message, so only
// this table changes when messages are reworded.
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

struct Golden {
  std::string arguments;  // of lockstep; DIR is the test's folder
  int exit_code;
  std::string message;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

TEST(GoldenMessages, AreWhatUsersRead) {
  const Workplace workplace("golden");
  std::ofstream(workplace.path("key.toml")) << "data.path = \"data\"\n[optimizer]\nlr = 0.1\n";
  std::ofstream(workplace.path("value.toml")) << "data.path = \"data\"\n[optimizer]\nname = \"adam\"\n";
  const Golden goldens[] = {
      {"trian", exit_code::usage, "unknown command trian; did you mean train?"},
      {"train", exit_code::usage, "CONFIG is required; see lockstep help"},
      {"train DIR/config.toml --exprot x", exit_code::usage, "unknown flag --exprot; did you mean --export?"},
      {"train DIR/config.toml --batch-size 3", exit_code::usage,
       "unknown flag --batch-size; did you mean the configuration's key train.batch? Set it with --set "
       "train.batch=..."},
      {"train fashion_mnist_cn", exit_code::config,
       "unknown preset fashion_mnist_cn; did you mean fashion_mnist_cnn? Presets: cifar10_resnet18, "
       "cifar10_resnet18_finetune, cifar10_resnet20, dense_binary, fashion_mnist_cnn, fashion_mnist_mlp, "
       "fashion_mnist_resnet20, imagenet_resnet50, shapes_unet; a file is given as PATH.toml"},
      {"train DIR/none.toml", exit_code::io,
       "cannot read the configuration DIR/none.toml: No such file or directory"},
      {"train DIR/key.toml", exit_code::config,
       "DIR/key.toml:3: unknown key optimizer.lr; did you mean optimizer.learning_rate?"},
      {"train DIR/value.toml", exit_code::config,
       "DIR/value.toml:3: optimizer.name = \"adam\": allowed are sgd, adamw, lars; did you mean adamw?"},
      {"train DIR/config.toml --set train.batch=0", exit_code::config,
       "train.batch = 0: allowed are integers from 1 to 1048576, or \"auto\""},
      {"train DIR/config.toml --set optimizer.learning_rate=fast", exit_code::config,
       "optimizer.learning_rate = \"fast\": a number > 0 and <= 1e+30 is expected"},
      {"train DIR/config.toml --set comm.topology=ring --set train.staleness=1", exit_code::config,
       "comm.topology = \"ring\": allowed only with train.staleness = 0, because no gradients are exchanged"},
      {"train DIR/config.toml --set data.path=/nowhere", exit_code::io,
       "/nowhere/train-images-idx3-ubyte: not found, with or without .gz; data.path must name a folder with "
       "images and labels in IDX format, such as /usr/share/datasets/fashion-mnist after apt-get install "
       "dataset-fashion-mnist"},
      {"train DIR/config.toml --set train.batch=600", exit_code::config,
       "the dataset has 512 samples, fewer than one global batch of 600 (1 rank x batch 600 x accumulation "
       "1); lower train.batch or train.accumulation, or start fewer ranks"},
      {"train DIR/config.toml --init /nowhere", exit_code::io,
       "/nowhere: cannot be read: No such file or directory"},
      {"train DIR/config.toml --resume /nowhere", exit_code::io,
       "--resume /nowhere: no such folder; allowed are auto, never, and the folder of a checkpoint or a run"},
      {"train DIR/config.toml --resume-with train.bach --resume auto", exit_code::usage,
       "--resume-with train.bach: unknown key; did you mean train.batch?"},
      {"eval DIR/config.toml", exit_code::usage,
       "lockstep eval needs exactly one of --init FILE, for an export, and --resume FOLDER, for a "
       "checkpoint"},
      {"report /nowhere", exit_code::io,
       "/nowhere has no metrics.jsonl; name the folder of a run (its run.dir)"},
      {"sweep /nowhere.toml", exit_code::io,
       "cannot read the sweep file /nowhere.toml: No such file or directory; expected a TOML file (see "
       "lockstep help sweep)"}};
  const std::string folder = workplace.path("config.toml").parent_path().string();
  for (const Golden& golden : goldens) {
    const ProgramResult result =
        run_shell(program("lockstep") + " " + replaced(golden.arguments, "DIR", folder));
    EXPECT_EQ(result.exit_code, golden.exit_code) << golden.arguments;
    EXPECT_EQ(replaced(result.output, folder, "DIR"), "lockstep: " + golden.message + "\n");
  }
}

// A rank that gets SIGTERM does not know whether a peer has failed: then nothing is saved.
TEST(GoldenMessages, StopRequestDoesNotPromiseToSave) {
  const Workplace workplace("golden_stop");
  const std::string held = workplace.path("held").string(), log = workplace.path("log").string();
  const ProgramResult result = run_shell(
      fmt::format("LOCKSTEP_HOLD=step:0:{0} {1} > {2} 2>&1 & run=$!\n{3}kill -TERM $run\n{4}rm {0}\n"
                  "wait $run\ncode=$?\ncat {2}\nexit $code",
                  held, workplace.train({"train.epochs=100000"}), log, wait_until("[ -e " + held + " ]"),
                  wait_until("grep -q SIGTERM " + log)));
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  EXPECT_EQ(
      lines_naming(result.output, "asks to stop"),
      "lockstep: rank 0: SIGTERM asks to stop; the trained state is saved at the end of a step, unless a "
      "rank has failed or the job is killed before; the process ends within 60 s (see "
      "run.grace_seconds)\n");
}

}  // namespace
}  // namespace lockstep
