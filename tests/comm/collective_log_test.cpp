// SPDX-License-Identifier: Apache-2.0
#include "comm/collective_log.h"

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <string>

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/system/file_claim.h"
#include "tests/comm/thread_ranks.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// Expects that the description contains all of `parts` and none of `absent`.
void expect_description(const Collective& collective, const std::vector<std::string>& parts,
                        const std::vector<std::string>& absent) {
  const std::string text = describe(collective);
  expect_parts(text, parts);
  for (const std::string& part : absent)
    EXPECT_EQ(text.find(part), std::string::npos) << part << ": " << text;
}

TEST(Collective, DescriptionContainsOnlyItsRelevantFields) {
  expect_description({.kind = CollectiveKind::all_reduce,
                      .dtype = DType::f32,
                      .count = 4096,
                      .purpose = {.bucket = 2},
                      .sequence = 17},
                     {"all_reduce 17", "4096 fp32", "sum", "bucket 2"}, {"rank", "layer"});
  expect_description({.kind = CollectiveKind::broadcast, .dtype = DType::u8, .root = 3, .count = 5},
                     {"broadcast", "5 u8", "rank 3"}, {"broadcast 0", "sum", "bucket", "layer"});
  expect_description({.kind = CollectiveKind::all_gather, .dtype = DType::i32, .count = 1, .sequence = 2},
                     {"all_gather 2", "1 i32"}, {"rank", "sum", "bucket", "layer"});
  expect_description({.kind = CollectiveKind::all_gather, .count = 1, .purpose = {.layer = 7}, .sequence = 3},
                     {"all_gather 3", "1 u8", "layer 7"}, {"rank", "sum", "bucket"});
  EXPECT_EQ(describe({.kind = CollectiveKind::barrier, .sequence = 9}), "barrier 9");
}

TEST(Collective, IdentityRoundTrips) {
  for (const CollectiveKind kind :
       {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter, CollectiveKind::all_gather,
        CollectiveKind::all_to_all, CollectiveKind::broadcast, CollectiveKind::barrier}) {
    for (const CollectivePurpose& purpose :
         {CollectivePurpose{}, CollectivePurpose{.bucket = 0}, CollectivePurpose{.bucket = 70'000},
          CollectivePurpose{.layer = 0}, CollectivePurpose{.layer = 70'000}}) {
      const Collective collective{.kind = kind,
                                  .dtype = DType::bf16,
                                  .op = ReduceOp::max,
                                  .root = 1'000'000,
                                  .count = std::size_t{1} << 40,
                                  .purpose = purpose,
                                  .sequence = 12};
      EXPECT_EQ(describe(collective_of(identity_of(collective))), describe(collective));
    }
  }
}

TEST(CollectiveLog, RecordsTheTimeOfEachStageOfACollective) {
  constexpr std::size_t kCount = 1000;
  run_thread_ranks(3, [](Communicator& communicator) {
    std::vector<float> data(kCount, 1.0f);
    for (int i = 0; i < 5; ++i) communicator.all_reduce(data.data(), kCount, DType::f32, ReduceOp::sum);
    communicator.barrier();
    communicator.stream().synchronize();
    const std::vector<CollectiveRecord> records = communicator.log().read();
    ASSERT_EQ(records.size(), 6u);
    std::uint64_t sent = 0;
    for (std::size_t i = 0; i < records.size(); ++i) {
      const CollectiveRecord& record = records[i];
      EXPECT_EQ(record.collective.sequence, i + 1);
      EXPECT_EQ(record.collective.kind, i < 5 ? CollectiveKind::all_reduce : CollectiveKind::barrier);
      EXPECT_GT(record.moments.enqueued_ns, 0);
      EXPECT_LE(record.moments.enqueued_ns, record.moments.started_ns);
      EXPECT_LE(record.moments.started_ns, record.moments.met_ns);
      EXPECT_LE(record.moments.met_ns, record.moments.finished_ns);
      sent += record.sent_bytes;
    }
    EXPECT_GT(sent, 0u);
    EXPECT_EQ(sent, communicator.traffic().sent_bytes);
    EXPECT_EQ(communicator.traffic().operations, 6u);
  });
}

// The last rank to enter a collective waits the least.
TEST(CollectiveLog, RanksMeetAfterTheLastRankStarts) {
  std::promise<void> late;
  std::vector<std::vector<CollectiveRecord>> records(2);
  run_thread_ranks(2, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    if (rank == 0) {
      communicator.barrier();
      while (communicator.log().read().front().moments.started_ns == 0) std::this_thread::yield();
      EXPECT_EQ(communicator.log().read().front().moments.met_ns, 0) << "no peer has entered the barrier yet";
      late.set_value();
    } else {
      late.get_future().wait();
      communicator.barrier();
    }
    communicator.stream().synchronize();
    records[rank] = communicator.log().read();
  });
  EXPECT_LE(records[0].front().moments.started_ns, records[1].front().moments.started_ns);
  for (const auto& of_rank : records)
    EXPECT_GE(of_rank.front().moments.met_ns, records[1].front().moments.started_ns);
}

TEST(CollectiveLog, KeepsTheNewestRecords) {
  constexpr std::uint64_t kMore = 37;
  const auto self = make_self_communicator();
  for (std::uint64_t i = 0; i < CollectiveLog::kRecords + kMore; ++i) self->barrier();
  self->stream().synchronize();
  const std::vector<CollectiveRecord> records = self->log().read();
  ASSERT_EQ(records.size(), CollectiveLog::kRecords);
  EXPECT_EQ(records.front().collective.sequence, kMore + 1);
  EXPECT_EQ(records.back().collective.sequence, CollectiveLog::kRecords + kMore);
}

TEST(CollectiveLog, IsRemovedWithItsCommunicator) {
  auto self = make_self_communicator();
  const std::filesystem::path path = self->log().path();
  if (path.empty()) GTEST_SKIP() << "no room in /dev/shm";
  self->barrier();
  const auto file = read_collective_log(path);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->communicator, "self");
  EXPECT_EQ(file->process, getpid());
  self.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THROW(read_collective_log(path), IoError);
}

// Containers may share /dev/shm: processes in two of them can have the same number.
TEST(CollectiveLog, KeepsTheFileOfARunningProcessWithTheSameNumber) {
  const std::string last = make_self_communicator()->log().path();
  if (last.empty()) GTEST_SKIP() << "no room in /dev/shm";
  const std::size_t number = last.rfind('.') + 1;
  const std::filesystem::path next =
      last.substr(0, number) + std::to_string(std::stoi(last.substr(number)) + 1);
  std::filesystem::remove(next);
  const int other = create_locked_file(next, 1, LOCK_SH);
  ASSERT_GE(other, 0);
  {
    const auto mine = make_self_communicator();
    EXPECT_NE(mine->log().path().string(), next.string());
    EXPECT_TRUE(std::filesystem::exists(mine->log().path()));
  }
  EXPECT_TRUE(std::filesystem::exists(next));
  close(other);
  std::filesystem::remove(next);
}

// The log of a process that is killed within a collective stays, with the state of that collective, for an
// hour.
TEST(CollectiveLog, LogOfAKilledProcessRemainsReadable) {
  if (make_self_communicator()->log().path().empty()) GTEST_SKIP() << "no room in /dev/shm";
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto alone = make_thread_communicator(make_thread_hub(2), 1);
    const std::string path = alone->log().path();
    if (write(ends[1], path.data(), path.size()) != std::ssize(path)) _exit(1);
    static float value = 0;
    alone->enqueue({.kind = CollectiveKind::all_reduce,
                    .dtype = DType::f32,
                    .recv = &value,
                    .count = 1,
                    .purpose = {.bucket = 4}});
    while (alone->log().read().front().moments.started_ns == 0) std::this_thread::yield();
    raise(SIGKILL);
  }
  close(ends[1]);
  std::array<char, 4096> text = {};
  const ssize_t length = read(ends[0], text.data(), text.size());
  close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_GT(length, 0);
  const std::filesystem::path left = std::string(text.data(), static_cast<std::size_t>(length));
  ASSERT_TRUE(std::filesystem::exists(left)) << left;
  const auto file = read_collective_log(left);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->process, child);
  EXPECT_EQ(file->rank, 1);
  EXPECT_EQ(file->size, 2);
  ASSERT_EQ(file->records.size(), 1u);
  EXPECT_EQ(describe(file->records[0].collective), describe({.kind = CollectiveKind::all_reduce,
                                                             .dtype = DType::f32,
                                                             .count = 1,
                                                             .purpose = {.bucket = 4},
                                                             .sequence = 1}));
  EXPECT_EQ(file->records[0].moments.finished_ns, 0);

  // A separate folder protects the logs of other jobs. The hard link needs the same file system.
  const TemporaryFolder folder("logs", kCollectiveLogFolder);
  const std::filesystem::path dead = folder.path() / "lockstep.dead",
                              living = folder.path() / "lockstep.living";
  std::filesystem::rename(left, dead);
  const auto mine = make_self_communicator();
  std::filesystem::create_hard_link(mine->log().path(), living);
  remove_abandoned_logs(std::chrono::hours(1), folder.path());
  EXPECT_TRUE(std::filesystem::exists(dead)) << "the log is younger than an hour";
  remove_abandoned_logs(std::chrono::seconds(-1), folder.path());
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(std::filesystem::exists(living)) << "the process of this log still runs";
}

// Another program may have created a pipe with such a name.
TEST(CollectiveLog, APipeWithItsNameBlocksNoReader) {
  const TemporaryFolder folder("pipe");
  const std::string pipe = folder.path() / "lockstep.pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), S_IRUSR | S_IWUSR), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // ends a process that waits
    remove_abandoned_logs(std::chrono::seconds(-1), folder.path());
    _exit(read_collective_log(pipe) ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "the reader waited for the pipe";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(CollectiveLog, AnotherFileIsNotReadAsALog) {
  const auto self = make_self_communicator();
  if (self->log().path().empty()) GTEST_SKIP() << "no room in /dev/shm";
  const std::size_t bytes = std::filesystem::file_size(self->log().path());
  const TemporaryFolder folder("no_log");
  const std::filesystem::path path = folder.path() / "log";
  std::filesystem::copy_file(self->log().path(), path);
  std::filesystem::resize_file(path, bytes / 2);
  EXPECT_FALSE(read_collective_log(path)) << "an incomplete log";
  std::ofstream(path) << std::string(bytes, 'x');
  EXPECT_FALSE(read_collective_log(path)) << "a file of the size of a log";
}

TEST(CollectiveLog, LogOfAnotherUserIsNeitherReadNorRemoved) {
  const auto self = make_self_communicator();
  if (self->log().path().empty()) GTEST_SKIP() << "no room in /dev/shm";
  const TemporaryFolder folder("others_log");
  const std::filesystem::path path = folder.path() / "lockstep.others";
  std::filesystem::copy_file(self->log().path(), path);
  EXPECT_TRUE(read_collective_log(path));
  constexpr uid_t kOther = 65534;
  if (chown(path.c_str(), kOther, kOther) != 0)
    GTEST_SKIP() << "this user may not give a file to another user";
  EXPECT_FALSE(read_collective_log(path));
  EXPECT_TRUE(read_collective_log(path, kOther));
  remove_abandoned_logs(std::chrono::seconds(-1), folder.path());
  EXPECT_TRUE(std::filesystem::exists(path));
}

struct RankCall {
  int rank;
  Collective call;
};

// Expects that the error names both ranks and both calls, each in this order.
void expect_calls(const std::string& error, const RankCall& first, const RankCall& second) {
  const auto place_of = [&](const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << part << ": " << error;
    return error.find(part);
  };
  EXPECT_LT(place_of(fmt::format("rank {}", first.rank)), place_of(fmt::format("rank {}", second.rank)))
      << error;
  EXPECT_LT(place_of(describe(first.call)), place_of(describe(second.call))) << error;
}

// Transports ignore the bucket, so the calls succeed until check_calls() compares them.
TEST(CallCheck, NamesTheFirstCallThatDiffers) {
  const auto errors = try_thread_ranks(3, [](Communicator& communicator) {
    float value = 1;
    const auto sum = [&](std::int32_t bucket) {
      communicator.enqueue({.kind = CollectiveKind::all_reduce,
                            .dtype = DType::f32,
                            .recv = &value,
                            .count = 1,
                            .purpose = {.bucket = bucket}});
    };
    sum(0);
    communicator.check_calls();
    for (int i = 0; i < 300; ++i) sum(1);
    communicator.check_calls();
    sum(communicator.rank() == 2 ? 5 : 4);
    sum(6);
    communicator.check_calls();
    ADD_FAILURE() << "expected an exception";
  });
  const auto sum_of_bucket = [](std::int32_t bucket) {
    return Collective{.kind = CollectiveKind::all_reduce,
                      .dtype = DType::f32,
                      .count = 1,
                      .purpose = {.bucket = bucket},
                      .sequence = 302};
  };
  for (const std::string& error : errors)
    expect_calls(error, {.rank = 0, .call = sum_of_bucket(4)}, {.rank = 2, .call = sum_of_bucket(5)});
}

TEST(CallCheck, StopsEachCollectiveBeforeItRuns) {
  const auto errors = try_thread_ranks(3, [](Communicator& communicator) {
    communicator.set_call_check(CallCheck::collective);
    std::vector<float> values(3, 1.0f);
    communicator.all_reduce(values.data(), 3, DType::f32, ReduceOp::sum);
    communicator.stream().synchronize();
    EXPECT_EQ(values[0], 3.0f);
    try {
      if (communicator.rank() == 1)
        communicator.broadcast(values.data(), 3, DType::f32, 2);
      else
        communicator.all_reduce(values.data(), 3, DType::f32, ReduceOp::sum);
    } catch (const Error& error) {
      EXPECT_TRUE(error.agreed());
      communicator.stream().synchronize();
      EXPECT_EQ(values[0], 3.0f) << "the refused collective ran";
      throw;
    }
  });
  const Collective sum{.kind = CollectiveKind::all_reduce, .dtype = DType::f32, .count = 3, .sequence = 2};
  const Collective broadcast{
      .kind = CollectiveKind::broadcast, .dtype = DType::f32, .root = 2, .count = 3, .sequence = 2};
  for (const std::string& error : errors)
    expect_calls(error, {.rank = 0, .call = sum}, {.rank = 1, .call = broadcast});
}

// A replay repeats the recorded calls.
TEST(CallCheck, ComparesReplays) {
  const auto errors = try_thread_ranks(2, [](Communicator& communicator) {
    const auto replayed = [&](std::size_t count) {
      const Collective sum{.kind = CollectiveKind::all_reduce, .dtype = DType::f32, .count = count};
      communicator.replayed({.collectives = {sum, sum}}, communicator.stream());
    };
    replayed(3);
    communicator.check_calls();
    replayed(communicator.rank() == 0 ? 3 : 4);
    communicator.check_calls();
    ADD_FAILURE() << "expected an exception";
  });
  const auto third_sum = [](std::size_t count) {
    return Collective{.kind = CollectiveKind::all_reduce, .dtype = DType::f32, .count = count, .sequence = 3};
  };
  for (const std::string& error : errors)
    expect_calls(error, {.rank = 0, .call = third_sum(3)}, {.rank = 1, .call = third_sum(4)});
}

void replay_sum(Communicator& communicator, std::size_t count) {
  const Collective sum{.kind = CollectiveKind::all_reduce, .dtype = DType::f32, .count = count};
  communicator.replayed({.collectives = {sum}}, communicator.stream());
}

// A rank keeps its 45th call at the place of the 301st.
TEST(CallCheck, NamesTheRankWithFewerCalls) {
  const auto errors = try_thread_ranks(2, [](Communicator& communicator) {
    for (int i = 0; i < 300; ++i) replay_sum(communicator, 3);
    if (communicator.rank() == 1) replay_sum(communicator, 4);
    communicator.check_calls();
    ADD_FAILURE() << "expected an exception";
  });
  const Collective last{.kind = CollectiveKind::all_reduce, .dtype = DType::f32, .count = 4, .sequence = 301};
  for (const std::string& error : errors) {
    expect_in_order(error, {"rank 0", "301", "rank 1", describe(last)});
    EXPECT_EQ(error.find("3 fp32"), std::string::npos) << error;
  }
}

// A rank keeps its last 256 calls.
TEST(CallCheck, ReportsADifferenceBeforeTheCallsThatItCanName) {
  const auto errors = try_thread_ranks(2, [](Communicator& communicator) {
    replay_sum(communicator, communicator.rank() == 0 ? 3 : 4);
    for (int i = 0; i < 300; ++i) replay_sum(communicator, 5);
    try {
      communicator.check_calls();
      ADD_FAILURE() << "expected an exception";
    } catch (const Error& error) {
      EXPECT_TRUE(error.agreed());
      throw;
    }
  });
  for (const std::string& error : errors) expect_parts(error, {"threads", "comm.check"});
}

TEST(CallCheck, AddsNothingToTheLogOrTheTraffic) {
  run_thread_ranks(2, [](Communicator& communicator) {
    communicator.set_call_check(CallCheck::collective);
    communicator.barrier();
    communicator.check_calls();
    communicator.stream().synchronize();
    EXPECT_EQ(communicator.log().read().size(), 1u);
    EXPECT_EQ(communicator.traffic().operations, 1u);
    EXPECT_EQ(communicator.traffic().sent_bytes, 0u);
  });
}

}  // namespace
}  // namespace lockstep
