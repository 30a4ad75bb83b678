// SPDX-License-Identifier: Apache-2.0
//
// A job whose last rank fails while its peers wait for it. Every kind of failure must end all ranks at once
// with the failed rank's exit code, or, for a stopped rank, with the code of the peers that waited.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "comm/world.h"
#include "core/error.h"

namespace {

constexpr int kExitCode = 42;

// Waits until the first of the sum's many rounds is done.
void stop_in_the_middle(std::vector<float>& ones) {
  while (std::atomic_ref(ones.front()).load() == 1) {
  }
  raise(SIGSTOP);
}

void communicate(lockstep::World& world, std::string_view trouble) {
  const std::unique_ptr<lockstep::Communicator> communicator = world.communicator();
  const std::unique_ptr<lockstep::Communicator> beside = world.communicator();
  const lockstep::Buffer shared = beside->allocate(1 << 20);
  std::vector<float> own(trouble == "hang" ? 16'000'000 : 100'000, 1.0f);
  communicator->barrier();
  communicator->stream().synchronize();
  if (trouble == "hang_at_the_end") return;

  if (trouble == "hang") {
    communicator->all_reduce(own.data(), own.size(), lockstep::DType::f32, lockstep::ReduceOp::sum);
    if (world.rank() == world.size() - 1) stop_in_the_middle(own);
  }
  if (world.rank() == world.size() - 1) {
    if (trouble == "abort") world.abort(kExitCode);
    // Collectives that no peer joins: the worker waits forever while the stack unwinds.
    if (trouble == "throw_while_receiving") {
      beside->broadcast(own.data(), own.size(), lockstep::DType::f32, 0);
    } else if (trouble == "throw_in_shared_memory") {
      beside->all_reduce(shared.data(), 1000, lockstep::DType::f32, lockstep::ReduceOp::sum);
    }
    throw lockstep::Error(kExitCode, "a rank in trouble");
  }
  communicator->barrier();
  communicator->stream().synchronize();
}

void run(std::string_view trouble) {
  if (trouble == "other_build" && lockstep::launched_rank() == 2) setenv("LOCKSTEP_BUILD_ID", "another", 1);
  lockstep::World world = lockstep::World::join();
  if (trouble.starts_with("hang")) world.set_timeout(std::chrono::seconds(1));
  communicate(world, trouble);
  if (trouble == "hang_at_the_end" && world.rank() == world.size() - 1) raise(SIGSTOP);
  world.leave();
}

}  // namespace

int main(int, char** argv) try {
  run(argv[1]);
  return 0;
} catch (const lockstep::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_code();
}
