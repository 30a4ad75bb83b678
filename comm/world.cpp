// SPDX-License-Identifier: Apache-2.0
#include "comm/world.h"

#include <cstdlib>
#include <exception>
#include <utility>

#include "comm/launcher.h"
#include "comm/mpi/session.h"
#include "comm/nccl.h"
#include "core/error.h"

namespace lockstep {

struct World::State {
  explicit State(std::shared_ptr<MpiSession> joined)
      : session(std::move(joined)), exceptions(std::uncaught_exceptions()) {}
  ~State() {
    // MPI_Finalize waits for all ranks: one that an error brought here would wait for ever.
    if (std::uncaught_exceptions() > exceptions) session->failing = true;
    stop_mpi(*session);
  }

  std::shared_ptr<MpiSession> session;
  int exceptions;
};

World::World(std::unique_ptr<State> state) : state_(std::move(state)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

World World::join(const WorldOptions& options) { return World(std::make_unique<State>(start_mpi(options))); }

int World::rank() const { return state_->session->rank; }
int World::size() const { return state_->session->size; }
int World::local_rank() const { return state_->session->local_rank; }
int World::local_size() const { return state_->session->local_size; }
int World::node() const { return state_->session->node; }
int World::nodes() const { return state_->session->nodes; }
const std::string& World::host() const { return state_->session->host; }

std::unique_ptr<Communicator> World::communicator() { return make_mpi_communicator(state_->session); }

std::unique_ptr<Communicator> World::communicator(Device device, Communicator& host,
                                                  const DeviceCommunicatorOptions& options) {
  CHECK(device.kind == DeviceKind::cuda, "{} needs no device communicator", to_string(device));
  return make_nccl_communicator(state_->session, device, host, options);
}

void World::abort(int exit_code) { abort_mpi(*state_->session, exit_code); }

int launched_rank() { return find_launch(&std::getenv).rank; }

}  // namespace lockstep
