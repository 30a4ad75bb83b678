// SPDX-License-Identifier: Apache-2.0
#include "comm/world.h"

#include <cstdlib>
#include <exception>
#include <utility>

#include "comm/communicator.h"
#include "comm/job/launcher.h"
#include "comm/mpi/session.h"
#include "comm/nccl.h"
#include "comm/watchdog/watchdog.h"
#include "core/error.h"
#include "core/log.h"
#include "core/system/last_words.h"

namespace lockstep {

struct World::State {
  explicit State(std::shared_ptr<MpiSession> joined) : session(std::move(joined)) {}
  ~State() {
    if (left || session->placement.size > 1) return;
    try {
      stop_mpi(*session);
    } catch (const std::exception& error) {
      log::warning("{}", error.what());
    }
  }

  std::shared_ptr<MpiSession> session;
  bool left = false;
  NodeClaims claims;
  std::unique_ptr<Watchdog> watchdog;
};

World::World(std::unique_ptr<State> state) : state_(std::move(state)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

World World::join(const WorldOptions& options) { return World(std::make_unique<State>(start_mpi(options))); }

int World::rank() const { return state_->session->placement.rank; }
int World::size() const { return state_->session->placement.size; }
int World::local_rank() const { return state_->session->placement.local_rank; }
int World::local_size() const { return state_->session->placement.local_size; }
int World::node() const { return state_->session->placement.node; }
int World::nodes() const { return state_->session->placement.nodes; }
const std::string& World::host() const { return state_->session->host; }
NodeClaims& World::claims() { return state_->claims; }

void World::leave() {
  CHECK(!state_->left, "leave() was called twice");
  state_->left = true;
  stop_mpi(*state_->session);
  state_->watchdog.reset();
}

void World::set_timeout(std::chrono::milliseconds timeout) { state_->session->job->set_timeout(timeout); }

void World::watch(Communicator& host, std::chrono::milliseconds silence) {
  if (state_->watchdog != nullptr) return;
  const auto end_job = [](const std::string& report) {
    end_within(std::chrono::seconds(5), exit_code::resumable);
    log::last_error(
        fmt::format("the job hangs and ends with code {}; a training resumes from its last checkpoint with "
                    "--resume auto\n{}",
                    exit_code::resumable, report));
    flush_output();
    abort_stuck_job(exit_code::resumable);
  };
  state_->watchdog = std::make_unique<Watchdog>(
      host, Watchdog::Options{.silence = silence, .host = this->host(), .end_job = end_job});
}

Watchdog* World::watchdog() { return state_->watchdog.get(); }

void World::set_between_nodes(AllReduceWay way) { state_->session->between_nodes = way; }

std::unique_ptr<Communicator> World::communicator() {
  return size() == 1 ? make_self_communicator(Device{}, state_->session->job)
                     : make_mpi_communicator(state_->session);
}

std::unique_ptr<Communicator> World::communicator(Device device, Communicator& host,
                                                  const DeviceCommunicatorOptions& options) {
  CHECK(device.kind == DeviceKind::cuda, "a device communicator needs a CUDA device, not {}",
        to_string(device));
  return make_nccl_communicator(state_->session, device, host, options);
}

void World::abort(int exit_code) {
  if (state_->watchdog != nullptr) state_->watchdog->farewell();
  abort_mpi(*state_->session, exit_code);
}

int launched_rank() { return find_launch(&std::getenv).rank; }

}  // namespace lockstep
