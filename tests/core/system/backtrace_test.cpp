// SPDX-License-Identifier: Apache-2.0
#include "core/system/backtrace.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/message_of.h"

namespace lockstep {

// Named and not inlined, so that a backtrace shows it.
__attribute__((noinline)) void stand_in_a_known_place(const std::atomic<bool>& over,
                                                      std::atomic<bool>& there) {
  there = true;
  while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

namespace {

// A thread that waits in stand_in_a_known_place() while the object lives. deaf: it blocks all signals.
class Standing {
 public:
  explicit Standing(const char* name, bool deaf = false) {
    const auto stand = [this] { stand_in_a_known_place(over_, there_); };
    const auto named = [name, stand] {
      name_thread(name);
      stand();
    };
    thread_ = deaf ? start_without_signals(name, stand) : std::thread(named);
    while (!there_) std::this_thread::yield();
  }
  ~Standing() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_ = false, there_ = false;
  std::thread thread_;
};

TEST(Backtraces, ShowTheFunctionsOfLockstepsThreads) {
  prepare_backtraces();
  const Standing standing("ls-standing");
  const std::vector<ThreadStack> stacks = backtraces(std::chrono::seconds(20));
  const auto found = std::ranges::find(stacks, "ls-standing", &ThreadStack::thread);
  ASSERT_NE(found, stacks.end());
  EXPECT_TRUE(std::ranges::any_of(found->frames, [](const std::string& frame) {
    return frame.find("stand_in_a_known_place") != std::string::npos;
  })) << (found->frames.empty() ? "no answer" : found->frames.front());
  for (const ThreadStack& stack : stacks)
    EXPECT_TRUE(stack.thread.starts_with(kThreadPrefix))
        << stack.thread << ": the requesting main thread must not be listed";
}

TEST(Backtraces, AThreadThatBlocksSignalsHasNoFrames) {
  prepare_backtraces();
  const Standing standing("ls-deaf", true);
  const std::vector<ThreadStack> stacks = backtraces(std::chrono::milliseconds(20));
  const auto found = std::ranges::find(stacks, "ls-deaf", &ThreadStack::thread);
  ASSERT_NE(found, stacks.end());
  EXPECT_TRUE(found->frames.empty());
}

// The watchdogs of ranks that are threads of one process do this.
TEST(Backtraces, SeveralThreadsMayRequestThemAtOnce) {
  prepare_backtraces();
  const Standing standing("ls-standing");
  constexpr int kTimes = 100;
  std::atomic<int> answers = 0;
  const auto ask = [&] {
    for (int i = 0; i < kTimes; ++i) {
      for (const ThreadStack& stack : backtraces(std::chrono::seconds(20)))
        if (stack.thread == "ls-standing" && !stack.frames.empty()) ++answers;
    }
  };
  std::thread one(ask), another(ask);
  one.join();
  another.join();
  EXPECT_EQ(answers, 2 * kTimes);
}

TEST(Backtraces, AnotherProcessReadsTheStateOfAStoppedOne) {
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(process_state(child), 'T');
  const std::string told = describe_process(child);
  expect_parts(told, {std::to_string(child), "(T)"});
  EXPECT_EQ(std::ranges::count(told, '\n'), 1) << "expected one line for the only thread:\n" << told;
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  EXPECT_EQ(process_state(child), '\0');
  EXPECT_EQ(describe_process(child), "");
}

}  // namespace
}  // namespace lockstep
