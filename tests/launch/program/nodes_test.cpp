// SPDX-License-Identifier: Apache-2.0
//
// Ranks on nodes without common memory, with separate host names, networks and /dev/shm: tests/nodes.sh.

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/error.h"
#include "tests/launch/program/fault_run.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/launch/program/trace_check.h"
#include "tests/matches_in.h"
#include "tests/message_of.h"
#include "tests/source_folder.h"

namespace lockstep {
namespace {

constexpr int kCannotMakeNodes = 77;

// `ranks` lists the number of ranks by node, as in "2,1". Some of these tests measure times: their ranks wait
// within MPI as a user's ranks do.
ProgramResult run_nodes(const std::string& rate, int nodes, const std::string& ranks,
                        const std::string& command) {
  return run_shell(fmt::format("env -u OMPI_MCA_mpi_yield_when_idle '{}/tests/nodes.sh' {} {} {} {}",
                               source_folder(), rate, nodes, ranks, command));
}

// Skips the test and prints the reason.
#define REQUIRE_NODES(result) \
  if ((result).exit_code == kCannotMakeNodes) GTEST_SKIP() << (result).output

// The advice of a training of one epoch, from metrics.jsonl.
nlohmann::json advice_of_run(const Workplace& workplace) {
  return last_metrics_of(workplace.path("run")).at("communication").at("advice");
}

// True if a step of rank 0 updates parameters before its own backward pass: with the gradients of the step
// before.
bool updates_before_backward(const nlohmann::json& trace) {
  std::map<int, double> updates, backwards;  // the first of each step
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event["ph"] != "X" || event["pid"] != 0) continue;
    if (event["name"] != "optimizer" && event["name"] != "backward") continue;
    auto& firsts = event["name"] == "optimizer" ? updates : backwards;
    firsts.try_emplace(event["args"]["index"].get<int>(), event["ts"].get<double>());
  }
  return std::ranges::any_of(updates, [&](const auto& update) {
    const auto backward = backwards.find(update.first);
    return backward != backwards.end() && update.second < backward->second;
  });
}

// The bytes that rank 0 sends of a bucket in the last step, divided by those in the first: the least of all
// buckets.
double least_share_sent(const nlohmann::json& trace) {
  std::map<int, double> first, last;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event["ph"] != "s" || event["pid"] != 0) continue;
    const int bucket = event["args"]["bucket"];
    const double bytes = event["args"]["bytes"];
    if (bytes == 0) continue;
    first.try_emplace(bucket, bytes);
    last[bucket] = bytes;
  }
  double least = 1;
  for (const auto& [bucket, bytes] : last) least = std::min(least, bytes / first[bucket]);
  return least;
}

// The gradient bytes that the last of three ranks sends, divided by those of rank 0.
double share_sent_by_last(const nlohmann::json& trace) {
  std::map<int, double> bytes;  // by rank
  for (const nlohmann::json& event : trace.at("traceEvents"))
    if (event["ph"] == "s") bytes[event["pid"].get<int>()] += event["args"]["bytes"].get<double>();
  return bytes[2] / bytes[0];
}

// With "halving" the last of three nodes sends its data once, and the others one and a half times.
TEST(Nodes, DigestEqualsThatOfRanksThatShareMemory) {
  const Workplace workplace("nodes");
  const std::vector<std::string> settings = {"model.name=cnn", "train.steps=4", "kernels.choose=direct"};
  const std::string expected = digest_of(workplace, 3, settings);
  const auto file = workplace.path("of_nodes"), trace = workplace.path("trace.json");
  for (const auto& [nodes, ranks, buckets, way, share] :
       {std::tuple{2, "2,1", "[1, 25, 1]", "auto", 0.0},
        std::tuple{3, "1", "[0.02, 0.3, 0.01]", "halving", 2.0 / 3},
        std::tuple{3, "1", "[1, 1, 1]", "direct", 1.0}}) {
    std::vector<std::string> of_nodes = settings;
    of_nodes.push_back(fmt::format("comm.bucket_mib={}", buckets));
    of_nodes.push_back(fmt::format("comm.between_nodes={}", way));
    const ProgramResult result = run_nodes(
        "1gbit", nodes, ranks,
        workplace.train(of_nodes, fmt::format("--digest {} --trace {}", file.string(), trace.string())));
    REQUIRE_NODES(result);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(text_of(file), expected) << way;
    if (nodes == 3) {
      EXPECT_NEAR(share_sent_by_last(nlohmann::json::parse(text_of(trace))), share, 0.05) << way;
    }
  }
}

// Ranks of one node always compare their calls. On several nodes the trainer does, with comm.check = "step".
TEST(Nodes, MismatchedCollectiveIsFoundAsCommCheckSays) {
  const Workplace workplace("checked_nodes");
  for (const auto& [check, code] :
       {std::pair{"off", exit_code::done}, std::pair{"step", exit_code::failed}}) {
    const ProgramResult result =
        run_nodes("none", 2, "1",
                  workplace.train({"train.steps=8", fmt::format("comm.check={}", check)},
                                  "--inject wrong-op:rank=1,step=5"));
    REQUIRE_NODES(result);
    EXPECT_EQ(result.exit_code, code) << check << ":\n" << result.output;
    EXPECT_EQ(matches_in(result.output, R"(\brank 0\b.*\b1 i32\b.*\bsum\b.*\brank 1\b.*\b1 i32\b.*\bmax\b)"),
              code == exit_code::done ? 0 : 1)
        << check << ":\n"
        << result.output;
  }
}

// A slow link that backward cannot hide. The bits equal those of a training that waits.
// cross_barrier_test.cpp has the other codecs.
TEST(Nodes, CrossBarrierChangesNoBit) {
  const Workplace workplace("crossing_nodes");
  const auto file = workplace.path("of_nodes"), trace = workplace.path("trace.json");
  std::string digests[2];
  for (const bool crosses : {false, true}) {
    const ProgramResult result = run_nodes(
        "50mbit", 2, "1",
        workplace.train({"model.name=cnn", "train.steps=8", "train.threads=1", "comm.codec=int8",
                         "comm.bucket_mib=[0.02, 0.05, 0.02]", fmt::format("comm.cross_barrier={}", crosses)},
                        fmt::format("--digest {} --trace {}", file.string(), trace.string())));
    REQUIRE_NODES(result);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    digests[crosses] = text_of(file);
    EXPECT_EQ(updates_before_backward(expect_trace_of_ranks(trace, 2)), crosses);
    expect_ledger_of_every_epoch(workplace.path("run") / "metrics.jsonl", 2);
  }
  EXPECT_EQ(digests[0], digests[1]);
}

// mpirun's node loses its link. mpirun waits for the other node until the system drops the connection: here a
// few seconds, by default a quarter of an hour.
TEST(Nodes, BrokenLinkEndsTheJobAndNamesRankAndCollective) {
  const ProgramResult result = run_until_fault(kInjectedFault, [](const std::string& limit) {
    const Workplace workplace("link");
    const std::string train =
        workplace.train({"train.epochs=1000000", limit}, "--inject link-down:rank=0,step=5");
    return run_nodes("1gbit", 2, "1",
                     workplace.script("echo 3 > /proc/sys/net/ipv4/tcp_retries2\nexec " + train));
  });
  REQUIRE_NODES(result);
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  for (const char* line : {"rank 1 .*process [0-9]+.*node1", "rank 0 .*all_reduce [0-9]+"})
    EXPECT_GE(matches_in(result.output, line), 1) << line << ": " << result.output;
}

// The stopped rank is alone on its node. A peer that the machine delays may not wait for it yet.
TEST(Nodes, StoppedRankOnAnotherNodeIsNamed) {
  const ProgramResult result = run_until_fault(kInjectedFault, [](const std::string& limit) {
    const Workplace workplace("stopped_node");
    return run_nodes("1gbit", 2, "2,1",
                     workplace.train({"train.epochs=1000000", limit}, "--inject stop:rank=2,step=5"));
  });
  REQUIRE_NODES(result);
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  EXPECT_EQ(matches_in(result.output, "rank 2 .*process [0-9]+.*node1"), 1) << result.output;
  EXPECT_GE(matches_in(result.output, R"(\branks? (0|1)\b[^(\n]*\ball_reduce \d+)"), 1) << result.output;
  EXPECT_GE(count(result.output, "lockstep::Trainer::step()"), 1) << "the stack of rank 0: " << result.output;
}

// Backward ends long before the exchange. advice_test.cpp and CodecWithinTheLimitIsAdvisedOnASlowLink prove
// the cause. Both nodes have the same clock, and the measured offset must show it.
TEST(Nodes, SlowLinkCausesAdvice) {
  const Workplace workplace("slow_link");
  const auto trace = workplace.path("trace.json");
  const ProgramResult result = run_nodes(
      "50mbit", 2, "1",
      workplace.train({"model.name=cnn", "train.steps=6", "train.threads=1"}, "--trace " + trace.string()));
  REQUIRE_NODES(result);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json advice = advice_of_run(workplace);
  ASSERT_TRUE(advice.is_object()) << advice;
  // Other programs may delay a rank for longer than the link takes, or leave communication no core; then the
  // advice names that cause.
  const std::string cause = advice.at("cause");
  EXPECT_TRUE(cause == "slow_wire" || cause == "late_rank" || cause == "no_core") << advice;
  if (cause == "slow_wire") {
    EXPECT_GE(count(result.output, advice["key"].get<std::string>() + "="), 1) << result.output;
  }
  const nlohmann::json clock = expect_trace_of_ranks(trace, 2)["otherData"]["clocks"][1];
  for (const nlohmann::json& offset : clock["offset_ns"])
    EXPECT_LE(std::abs(offset.get<std::int64_t>()), clock["error_ns"].get<std::int64_t>()) << clock;
  EXPECT_GT(clock["error_ns"], 0) << clock;
}

// The decision is one line with its numbers. It obeys the limit and takes effect. The program itself checks
// that the ranks end with equal state.
TEST(Nodes, AutoChoosesAndReportsACodecOnASlowLink) {
  NEEDS_QUIET_CORES();
  const Workplace workplace("auto_codec");
  const auto trace = workplace.path("trace.json");
  for (const std::string limit : {"powersgd", "bf16"}) {
    const ProgramResult result =
        run_nodes("20mbit", 2, "1",
                  workplace.train({"model.name=cnn", "train.steps=24", "train.threads=1", "comm.codec=auto",
                                   "comm.powersgd.start_step=0", "comm.codec_limit=" + limit},
                                  "--trace " + trace.string()));
    REQUIRE_NODES(result);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    const std::size_t begin = result.output.find("comm.codec = \"auto\"");
    ASSERT_NE(begin, std::string::npos) << result.output;
    const std::string line = result.output.substr(begin, result.output.find('\n', begin) - begin);
    EXPECT_EQ(count(result.output, "comm.codec = \"auto\""), 1) << result.output;
    EXPECT_GE(matches_in(line, "[0-9.]+ ms"), 3) << line;
    EXPECT_EQ(matches_in(line, "[0-9.]+ MB/s"), 1) << line;
    EXPECT_LT(least_share_sent(nlohmann::json::parse(text_of(trace))), 0.9) << line;
    if (limit == "bf16") {
      EXPECT_GT(count(line, "bf16"), 0) << line;
      EXPECT_EQ(count(line, "int8") + count(line, "powersgd"), 0) << line;
    } else {
      EXPECT_GT(count(line, "int8") + count(line, "powersgd"), 0) << line;
    }
  }
}

// Sums in shared memory cost almost nothing: no codec is chosen, and the output says so.
TEST(Nodes, SingleNodeChoosesNoCodec) {
  const Workplace workplace("one_node");
  const ProgramResult result =
      run_ranks(2, workplace.train({"train.steps=12", "train.threads=1", "comm.codec=auto"}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(matches_in(result.output, "comm\\.codec = \"auto\".*comm\\.compress_within_node"), 1)
      << result.output;
}

// On this link dense sums take many times as long as a step's compute, so a codec is the best advice. If
// other programs make ranks late, too, half as many exchanges may be advised.
TEST(Nodes, CodecWithinTheLimitIsAdvisedOnASlowLink) {
  NEEDS_QUIET_CORES();
  const Workplace workplace("advised_codec");
  for (const std::string limit : {"int8", "none"}) {
    const ProgramResult result = run_nodes(
        "20mbit", 2, "1",
        workplace.train({"model.name=cnn", "train.steps=6", "train.threads=1", "comm.codec_limit=" + limit}));
    REQUIRE_NODES(result);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    const nlohmann::json advice = advice_of_run(workplace);
    EXPECT_EQ(advice.value("cause", ""), "slow_wire") << advice;
    EXPECT_EQ(advice.value("key", "") == "comm.codec", limit == "int8") << advice;
    EXPECT_EQ(count(result.output, "powersgd"), 0) << result.output;
    EXPECT_EQ(count(result.output, "comm.codec=int8") > 0, limit == "int8") << result.output;
  }
}

// All gradients are in one bucket, sent after backward, on a link that could have carried most of them
// earlier. If other programs delay a rank longer, or leave communication no core, the advice names that
// cause.
TEST(Nodes, LateBucketIsNamed) {
  NEEDS_QUIET_CORES();
  const Workplace workplace("late_bucket", "lockstep", 28);
  const ProgramResult result =
      run_nodes("300mbit", 2, "1",
                workplace.train({"model.name=resnet20", "train.steps=6", "train.threads=1", "train.batch=32",
                                 "comm.bucket_mib=[100, 100, 100]"}));
  REQUIRE_NODES(result);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json advice = advice_of_run(workplace);
  EXPECT_EQ(advice.value("cause", ""), "last_bucket") << advice;
  EXPECT_EQ(advice.value("key", ""), "comm.bucket_mib") << advice;
  EXPECT_GE(count(result.output, "comm.bucket_mib=["), 1) << result.output;
}

// Each rank waits until the files of all ranks of its node exist.
TEST(Nodes, HaveSeparateHostNamesAndSharedMemory) {
  const ProgramResult result = run_nodes(
      "none", 3, "1,2,1",
      "sh -c 'touch /dev/shm/$(hostname)-$$; case $(hostname) in node1) ranks=2;; *) ranks=1;; esac; "
      "until [ $(ls /dev/shm | grep -c ^node) -ge $ranks ]; do sleep 0.02; done; ls /dev/shm'");
  REQUIRE_NODES(result);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count(result.output, "node0-"), 1) << result.output;
  EXPECT_EQ(count(result.output, "node1-"), 4) << "each of its two ranks sees both files: " << result.output;
  EXPECT_EQ(count(result.output, "node2-"), 1) << result.output;
}

TEST(Nodes, ReturnTheExitCodeOfTheirRanks) {
  const ProgramResult result = run_nodes("none", 2, "1", "sh -c 'exit 42'");
  REQUIRE_NODES(result);
  EXPECT_EQ(result.exit_code, 42) << result.output;
}

TEST(Nodes, EndTheirRanksOnSigterm) {
  const Workplace workplace("ended_nodes");
  const std::string started = workplace.path("started").string();
  const ProgramResult result = run_shell(
      fmt::format("'{0}/tests/nodes.sh' none 2 1 sh -c 'echo here >> {1}; sleep 1000.{2}' & script=$!\n"
                  "while [ \"$(wc -l < {1} 2>/dev/null)\" != 2 ]; do\n"
                  "  kill -0 $script 2>/dev/null || {{ wait $script; exit; }}; sleep 0.05\ndone\n"
                  "kill -TERM $script; wait $script; code=$?\n"
                  "while grep -sqzx '1000[.]{2}' /proc/[0-9]*/cmdline; do sleep 0.05; done\n"
                  "(exit $code)",
                  source_folder(), started, getpid()));
  REQUIRE_NODES(result);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.output;
}

// Keeps a core of the node busy for a second, or longer if other programs delay the end. The limit holds for
// any duration.
TEST(Nodes, AreLimitedToTheirCores) {
  const ProgramResult result =
      run_shell(fmt::format("export LOCKSTEP_NODES_CORES=0.3; '{}/tests/nodes.sh' none 1 1 "
                            R"(bash -c 'begin=$(date +%s.%N); timeout 1 bash -c "while :; do :; done"; )"
                            R"(echo; echo from $begin to $(date +%s.%N); times')",
                            source_folder()));
  REQUIRE_NODES(result);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  double begin = 0, end = 0;
  const std::size_t wall = result.output.rfind("\nfrom ");
  ASSERT_NE(wall, std::string::npos) << result.output;
  ASSERT_EQ(std::sscanf(result.output.c_str() + wall, "\nfrom %lf to %lf", &begin, &end), 2) << result.output;
  int minutes = 0, system_minutes = 0;
  double seconds = 0, system_seconds = 0;
  const std::size_t children = result.output.rfind('\n', result.output.size() - 2) + 1;
  ASSERT_EQ(std::sscanf(result.output.c_str() + children, "%dm%lfs %dm%lfs", &minutes, &seconds,
                        &system_minutes, &system_seconds),
            4)
      << result.output;
  EXPECT_LT(seconds + system_seconds, 0.6 * (end - begin)) << result.output;
  EXPECT_GT(seconds, 0);
}

TEST(Nodes, RefuseInvalidArguments) {
  const std::string script = "'" + source_folder() + "/tests/nodes.sh' ";
  for (const auto& [command, line] :
       {std::pair{script + "fast 2 1 true", "nodes.sh: .*RATE.*\"fast\""},
        std::pair{script + "none 0 1 true", "nodes.sh: .*NODES.*\"0\""},
        std::pair{script + "none 2 2,1,1 true", "nodes.sh: .*RANKS_PER_NODE.*\\b3\\b.*\\b2\\b"},
        std::pair{script + "none 2 0 true", "nodes.sh: .*RANKS_PER_NODE.*\"0\""},
        std::pair{script + "none 2 1", "nodes.sh: .*command"},
        std::pair{"export LOCKSTEP_NODES_CORES=0.1; " + script + "none 1 1 true",
                  "nodes.sh: .*LOCKSTEP_NODES_CORES.*\"0\\.1\".*0\\.2"}}) {
    const ProgramResult result = run_shell(command);
    EXPECT_EQ(result.exit_code, 64) << result.output;
    EXPECT_EQ(matches_in(result.output, line), 1) << line << " in\n" << result.output;
  }
}

// Rank 0 may use one core, and rank 1 all, so their default numbers of threads differ.
TEST(Nodes, TuneTriesTheSameSettingsOnNodesWithOtherCores) {
  const Workplace workplace("tune_nodes");
  const std::string ranks = workplace.script(
      fmt::format("[ $OMPI_COMM_WORLD_RANK != 0 ] || limit='{}'\nexec $limit {} tune {} --set "
                  "train.threads=0 --steps 60",
                  on_one_core(), program("lockstep"), workplace.path("config.toml").string()));
  const ProgramResult result = run_nodes("none", 2, "1", ranks);
  REQUIRE_NODES(result);
  EXPECT_EQ(result.exit_code, exit_code::done) << result.output;
}

// Docker creates such a bridge on every machine.
TEST(Nodes, DuplicateBridgeIsNamedWithTheParameterThatAvoidsIt) {
  const Workplace workplace("bridge");
  const std::string ranks = workplace.script(
      "ip link add docker0 type bridge && ip address add 172.17.0.1/16 dev docker0 && ip link set dev "
      "docker0 up\n" +
      workplace.train({"train.steps=4"}));
  setenv("LOCKSTEP_NODES_MPIRUN",
         "--mca btl_tcp_if_include 10.77.0.0/24,172.17.0.0/16 --mca btl tcp,self -x LOCKSTEP_START_SECONDS=5",
         1);
  const ProgramResult result = run_nodes("none", 2, "1", ranks);
  unsetenv("LOCKSTEP_NODES_MPIRUN");
  REQUIRE_NODES(result);
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  expect_parts(result.output,
               {"docker0", "172.17.0.0/16", "bridge", "--mca btl_tcp_if_include 10.77.0.0/24"});
}

// Containers with the same host name but separate shared memory.
TEST(Nodes, RanksWithoutCommonSharedMemoryAreRefused) {
  if (run_shell("unshare --mount mount -t tmpfs own /dev/shm").exit_code != 0)
    GTEST_SKIP() << "needs root, to mount";
  const Workplace workplace("apart");
  const std::string container = workplace.script("mount -t tmpfs own /dev/shm\n" + workplace.train({}));
  expect_failure(run_ranks(2, "unshare --mount " + container), exit_code::config, {" 0, 1 ", "--ipc=host"});
}

TEST(Nodes, RanksOfAnotherBuildAreRefused) {
  const Workplace workplace("builds");
  const std::string ranks = workplace.script(
      "[ $OMPI_COMM_WORLD_RANK != 1 ] || export LOCKSTEP_BUILD_ID=0.0.9-other\n" + workplace.train({}));
  const ProgramResult result = run_ranks(2, ranks);
  EXPECT_EQ(result.exit_code, exit_code::config) << result.output;
  EXPECT_EQ(matches_in(result.output, "rank 1 .*0\\.0\\.9-other.*rank 0 "), 1) << result.output;
}

}  // namespace
}  // namespace lockstep
