// SPDX-License-Identifier: Apache-2.0
//
// The CPU's streams: compute runs inline; communication and copies run on a worker thread.
#include "core/stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/system/processor_time.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr Device kHost = {};

// Blocks a worker until the test opens it, so that the test controls the order of events.
class Gate {
 public:
  void open() {
    open_ = true;
    open_.notify_all();
  }
  void pass() { open_.wait(false); }

 private:
  std::atomic<bool> open_{false};
};

std::vector<int> numbers_to(int count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST(ComputeStream, RunsOnTheCallingThreadAtOnce) {
  Stream stream(kHost, StreamUse::compute);
  std::thread::id where;
  stream.enqueue([&where] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
  Event event(kHost);
  stream.record(event);
  EXPECT_TRUE(event.ready());
}

TEST(ComputeStream, AnExceptionReachesTheCaller) {
  Stream stream(kHost, StreamUse::compute);
  EXPECT_THROW(stream.enqueue([] { throw std::out_of_range("here"); }), std::out_of_range);
}

// Sizes around those at which several threads copy, from an address that is not aligned.
TEST(ComputeStream, CopiesExactlyTheBytesOfAnySize) {
  Stream stream(kHost, StreamUse::compute);
  std::vector<unsigned char> from(1'200'001);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(1 + i % 251);
  for (const std::size_t bytes : {0, 1, 1'048'575, 1'048'576, 1'048'577, 1'081'344, 1'081'345, 1'200'000}) {
    std::vector<unsigned char> to(from.size()), expected(from.size());
    std::copy_n(from.begin() + 1, bytes, expected.begin());
    stream.copy(to.data(), from.data() + 1, bytes);
    EXPECT_TRUE(to == expected) << bytes << " bytes";
  }
}

TEST(Event, IsReadyBeforeItsFirstRecord) {
  Event event(kHost);
  EXPECT_TRUE(event.ready());
  event.synchronize();
  Stream worker(kHost, StreamUse::communication);
  worker.wait(event);
  worker.synchronize();
}

class WorkerStream : public testing::TestWithParam<StreamUse> {};
INSTANTIATE_TEST_SUITE_P(Uses, WorkerStream, testing::Values(StreamUse::communication, StreamUse::copy));

// CPU time of the worker, without that of the calling thread.
TEST_P(WorkerStream, ReportsItsProcessorSeconds) {
  Stream worker(kHost, GetParam()), waiting(kHost, GetParam());
  const auto work = [] {
    const double begin = processor_seconds();
    while (processor_seconds() < begin + 0.01) continue;
  };
  worker.enqueue(work);
  worker.synchronize();
  const double took = worker.processor_seconds();
  EXPECT_GT(took, 0);
  EXPECT_GT(took, waiting.processor_seconds());
  work();
  EXPECT_LT(worker.processor_seconds() + waiting.processor_seconds(), processor_seconds());
  Stream inline_stream(kHost, StreamUse::compute);
  EXPECT_EQ(inline_stream.processor_seconds(), 0);
}

TEST_P(WorkerStream, RunsOnOneOtherThreadInOrder) {
  Stream stream(kHost, GetParam());
  std::vector<int> order;
  std::array<std::thread::id, 2> where;
  stream.enqueue([&where] { where[0] = std::this_thread::get_id(); });
  for (int i = 0; i < 100; ++i) stream.enqueue([&order, i] { order.push_back(i); });
  stream.enqueue([&where] { where[1] = std::this_thread::get_id(); });
  stream.synchronize();
  EXPECT_EQ(order, numbers_to(100));
  EXPECT_NE(where[0], std::this_thread::get_id());
  EXPECT_EQ(where[0], where[1]);
}

TEST_P(WorkerStream, RunExecutesOnTheCallingThreadWhenTheQueueIsEmpty) {
  Stream stream(kHost, GetParam());
  std::thread::id where;
  const auto look = [&where] { where = std::this_thread::get_id(); };
  stream.run(look);
  EXPECT_EQ(where, std::this_thread::get_id());

  Gate gate;
  std::vector<int> order;
  stream.enqueue([&gate] { gate.pass(); });
  stream.enqueue([&order] { order.push_back(1); });
  std::thread opener([&gate] { gate.open(); });
  stream.run([&order] { order.push_back(2); });
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  opener.join();

  // Work that other threads enqueue meanwhile runs after it.
  stream.run([&] {
    std::thread([&] { stream.enqueue([&order] { order.push_back(4); }); }).join();
    order.push_back(3);
  });
  stream.synchronize();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));

  EXPECT_THROW(stream.run([] { throw std::out_of_range("here"); }), std::out_of_range);
  EXPECT_THROW(stream.run([&order] { order.clear(); }), std::out_of_range);
  EXPECT_EQ(order.size(), 4) << "no task runs after an error";
}

TEST_P(WorkerStream, CopiesInOrder) {
  Stream stream(kHost, GetParam());
  const std::vector<int> from = numbers_to(1000);
  std::vector<int> between(1000);
  std::vector<int> to(1000);
  stream.copy(between.data(), from.data(), from.size() * sizeof(int));
  stream.copy(to.data(), between.data(), from.size() * sizeof(int));
  stream.copy(nullptr, nullptr, 0);
  stream.synchronize();
  EXPECT_EQ(to, from);
}

TEST(Worker, AFullRingBlocksTheCallerUntilThereIsRoom) {
  Stream stream(kHost, StreamUse::communication);
  Gate gate;
  std::atomic<int> enqueued{0};
  std::vector<int> order;
  stream.enqueue([&gate] { gate.pass(); });
  std::thread caller([&] {
    for (int i = 0; i < 2000; ++i) {
      stream.enqueue([&order, i] { order.push_back(i); });
      ++enqueued;
    }
  });
  // The blocked task holds the first of the 1024 places, so at most 1023 can follow it.
  while (enqueued < 1023) std::this_thread::yield();
  EXPECT_LE(enqueued, 1023);
  gate.open();
  caller.join();
  stream.synchronize();
  EXPECT_EQ(order, numbers_to(2000));
}

TEST(Worker, InheritsTheRankOfTheCreatingThread) {
  std::optional<Stream> stream;
  {
    const RankScope scope(5);
    stream.emplace(kHost, StreamUse::communication);
  }
  int rank = -1;
  stream->enqueue([&rank] { rank = current_rank(); });
  stream->synchronize();
  EXPECT_EQ(rank, 5);
}

TEST(Worker, FinishesAllQueuedTasksBeforeItEnds) {
  Gate gate;
  int finished = 0;
  {
    Stream stream(kHost, StreamUse::communication);
    stream.enqueue([&gate] { gate.pass(); });
    for (int i = 0; i < 500; ++i) stream.enqueue([&finished] { ++finished; });
    gate.open();
  }
  EXPECT_EQ(finished, 500);
}

TEST(Events, TheHostWaitsForAWorker) {
  Stream compute(kHost, StreamUse::compute);
  Stream worker(kHost, StreamUse::communication);
  Event done(kHost);
  Gate gate;
  int value = 0;
  worker.enqueue([&gate] { gate.pass(); });
  worker.enqueue([&value] { value = 7; });
  worker.record(done);
  EXPECT_FALSE(done.ready());
  gate.open();
  compute.wait(done);  // inline: the host waits
  EXPECT_EQ(value, 7);
  EXPECT_TRUE(done.ready());
}

TEST(Events, AWorkerWaitsForAnotherWithoutBlockingTheHost) {
  Stream producer(kHost, StreamUse::copy);
  Stream consumer(kHost, StreamUse::communication);
  Event produced(kHost);
  Gate gate;
  int value = 0;
  int seen = 0;
  producer.enqueue([&gate] { gate.pass(); });
  producer.enqueue([&value] { value = 42; });
  producer.record(produced);
  consumer.wait(produced);
  consumer.enqueue([&] { seen = value; });
  gate.open();  // the consumer's wait does not block this thread
  consumer.synchronize();
  EXPECT_EQ(seen, 42);
}

TEST(Events, AWaitCoversOnlyEarlierRecords) {
  Stream first(kHost, StreamUse::copy);
  Stream second(kHost, StreamUse::communication);
  Event event(kHost);
  Gate gate;
  bool reached = false;
  first.record(event);
  second.wait(event);
  second.enqueue([&reached] { reached = true; });
  first.enqueue([&gate] { gate.pass(); });
  first.record(event);  // a later generation, which the second stream must not wait for
  second.synchronize();
  EXPECT_TRUE(reached);
  EXPECT_FALSE(event.ready());
  gate.open();
  event.synchronize();
}

// The second record completes long before the first, whose stream is blocked.
TEST(Events, ALaterRecordOfAFasterStreamDoesNotReleaseAnEarlierWait) {
  Stream slow(kHost, StreamUse::copy);
  Stream waiting(kHost, StreamUse::communication);
  Stream fast(kHost, StreamUse::communication);
  Event event(kHost);
  Event passed(kHost);
  Gate gate;
  slow.enqueue([&gate] { gate.pass(); });
  slow.record(event);
  waiting.wait(event);
  waiting.record(passed);
  fast.record(event);
  fast.synchronize();
  EXPECT_TRUE(event.ready()) << "the second record has completed";
  event.synchronize();
  // If the wait were released, its worker would run on during these many turns.
  for (int turn = 0; turn < 200; ++turn) {
    fast.enqueue([] { std::this_thread::yield(); });
    fast.synchronize();
  }
  EXPECT_FALSE(passed.ready());
  gate.open();
  waiting.synchronize();
  EXPECT_TRUE(passed.ready());
}

// Each wait reports only errors of its own record's stream.
TEST(Events, AWaitRethrowsTheErrorOfItsOwnRecord) {
  Stream failing(kHost, StreamUse::copy);
  Stream waiting(kHost, StreamUse::communication);
  Stream sound(kHost, StreamUse::communication);
  Event event(kHost);
  Gate gate;
  failing.enqueue([&gate] {
    gate.pass();
    throw DataError("bad bucket");
  });
  failing.record(event);
  waiting.wait(event);
  sound.record(event);
  event.synchronize();
  gate.open();
  EXPECT_THROW(waiting.synchronize(), DataError);
  EXPECT_TRUE(event.ready());
}

TEST(Events, PingPongManyTimes) {
  Stream left(kHost, StreamUse::copy);
  Stream right(kHost, StreamUse::communication);
  Event to_right(kHost);
  Event to_left(kHost);
  int counter = 0;  // no lock: only the events order the two threads
  for (int i = 0; i < 2000; ++i) {
    left.wait(to_left);
    left.enqueue([&counter] { ++counter; });
    left.record(to_right);
    right.wait(to_right);
    right.enqueue([&counter] { ++counter; });
    right.record(to_left);
  }
  right.synchronize();
  EXPECT_EQ(counter, 4000);
}

TEST(Events, MayBeDestroyedBeforeTheStreamReachesThem) {
  Stream worker(kHost, StreamUse::communication);
  Gate gate;
  worker.enqueue([&gate] { gate.pass(); });
  {
    Event short_lived(kHost);
    worker.record(short_lived);
    worker.wait(short_lived);
  }
  gate.open();
  worker.synchronize();
}

TEST(Events, MayOutliveTheirStream) {
  Event event(kHost);
  {
    Stream worker(kHost, StreamUse::communication);
    worker.record(event);
  }
  EXPECT_TRUE(event.ready());
}

class FailedWorker : public testing::Test {
 protected:
  void fail() {
    stream_.enqueue([] { throw DataError("bad bucket"); });
  }
  Stream stream_{kHost, StreamUse::communication};
  Event event_{kHost};
};

TEST_F(FailedWorker, SynchronizeRethrowsTheFirstErrorEveryTime) {
  fail();
  stream_.enqueue([] { throw IoError("later"); });
  EXPECT_THROW(stream_.synchronize(), DataError);
  EXPECT_THROW(stream_.synchronize(), DataError);
}

TEST_F(FailedWorker, SkipsLaterTasks) {
  bool ran = false;
  fail();
  stream_.enqueue([&ran] { ran = true; });
  EXPECT_THROW(stream_.synchronize(), DataError);
  EXPECT_FALSE(ran);
}

TEST_F(FailedWorker, ItsEventsCompleteAndRethrow) {
  fail();
  stream_.record(event_);
  EXPECT_THROW(event_.synchronize(), DataError);
  EXPECT_THROW(event_.ready(), DataError);
  Stream compute(kHost, StreamUse::compute);
  EXPECT_THROW(compute.wait(event_), DataError);
}

TEST_F(FailedWorker, EventsBeforeTheErrorDoNotRethrow) {
  stream_.record(event_);
  fail();
  event_.synchronize();
  EXPECT_THROW(stream_.synchronize(), DataError);
  EXPECT_TRUE(event_.ready());
}

TEST_F(FailedWorker, StopsTheStreamsThatWaitForIt) {
  Stream next(kHost, StreamUse::copy);
  bool ran = false;
  fail();
  stream_.record(event_);
  next.wait(event_);
  next.enqueue([&ran] { ran = true; });
  EXPECT_THROW(next.synchronize(), DataError);
  EXPECT_FALSE(ran);
}

TEST_F(FailedWorker, IsDestroyedWithoutThrowing) {
  fail();
  for (int i = 0; i < 3000; ++i) stream_.enqueue([] {});
}

TEST(Stream, ADeviceThatWasNotBuiltIsAConfigError) {
  const CudaStatus status = cuda_status();
  if (!status.devices.empty()) GTEST_SKIP() << "there is a CUDA device";
  const Device gpu{.kind = DeviceKind::cuda, .index = 0};
  EXPECT_THROW(Stream(gpu, StreamUse::compute), ConfigError);
  EXPECT_THROW(Event{gpu}, ConfigError);
  if (status.built) return;
  EXPECT_FALSE(status.message.empty());
  expect_parts(message_of<ConfigError>([&] { const Stream stream(gpu, StreamUse::communication); }),
               {"-DLOCKSTEP_CUDA=ON"});
}

}  // namespace
}  // namespace lockstep
