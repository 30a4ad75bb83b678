// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/session.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>

#include "comm/launcher.h"
#include "core/error.h"
#include "core/log.h"

namespace lockstep {

void detail::check_mpi(int code, const char* call, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(exit_code::failed,
              fmt::format("{}: {} failed: {} ({}:{})", current_place(), call,
                          std::string_view(text.data(), static_cast<std::size_t>(length)), file, line));
}

namespace {

void initialize(MpiSession& session) {
  int initialized = 0;
  MPI_CHECK(MPI_Initialized(&initialized));
  CHECK(!initialized, "a process joins the world once, and nobody else may start MPI");
  int provided = MPI_THREAD_SINGLE;
  MPI_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  if (provided < MPI_THREAD_SERIALIZED) {
    throw ConfigError(
        "this MPI library allows calls from one thread only; Lockstep needs MPI_THREAD_SERIALIZED or "
        "better: use an Open MPI or MPICH built with thread support");
  }
  session.multithreaded = provided == MPI_THREAD_MULTIPLE;
}

std::string processor_name() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name = {};
  int length = 0;
  MPI_CHECK(MPI_Get_processor_name(name.data(), &length));
  return {name.data(), static_cast<std::size_t>(length)};
}

// The lowest rank of this rank's node.
int find_leader(const MpiSession& session, int ranks_per_node) {
  MPI_Comm shared = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, session.rank, MPI_INFO_NULL, &shared));
  std::array<int, 2> place = {0, 1};  // rank and size among those that share memory
  MPI_CHECK(MPI_Comm_rank(shared, &place[0]));
  MPI_CHECK(MPI_Comm_size(shared, &place[1]));
  std::vector<int> members(static_cast<std::size_t>(place[1]));
  MPI_CHECK(MPI_Allgather(&session.rank, 1, MPI_INT, members.data(), 1, MPI_INT, shared));
  MPI_CHECK(MPI_Comm_free(&shared));
  const int first = ranks_per_node > 0 ? place[0] / ranks_per_node * ranks_per_node : 0;
  return members[static_cast<std::size_t>(first)];
}

void find_place(MpiSession& session, int ranks_per_node) {
  const int leader = find_leader(session, ranks_per_node);
  std::vector<int> leaders(static_cast<std::size_t>(session.size));
  MPI_CHECK(MPI_Allgather(&leader, 1, MPI_INT, leaders.data(), 1, MPI_INT, MPI_COMM_WORLD));
  place_ranks(session, leaders);
}

// Where ranks were dealt over nodes, only some may see that their launch was split: the largest number
// counts.
void require_whole_launch(MpiSession& session) {
  Launch launch = find_launch(&std::getenv);
  MPI_CHECK(MPI_Allreduce(MPI_IN_PLACE, &launch.size, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
  const std::string problem = describe_split_launch(launch, session.size, mpi_version());
  if (problem.empty()) return;
  stop_mpi(session);
  throw ConfigError(problem);
}

}  // namespace

void place_ranks(MpiSession& session, std::span<const int> leaders) {
  const std::set<int> distinct(leaders.begin(), leaders.end());
  session.nodes = static_cast<int>(distinct.size());
  session.node_of.clear();
  std::vector<int> ranks_on(distinct.size(), 0);
  for (const int leader : leaders) {
    const auto node = static_cast<std::size_t>(std::distance(distinct.begin(), distinct.find(leader)));
    const auto rank = static_cast<int>(session.node_of.size());
    if (rank == session.rank) session.local_rank = ranks_on[node];
    session.node_of.push_back(static_cast<int>(node));
    ++ranks_on[node];
  }
  session.node = session.node_of[static_cast<std::size_t>(session.rank)];
  session.local_size = ranks_on[static_cast<std::size_t>(session.node)];
  session.smallest_node = std::ranges::min(ranks_on);
  session.largest_node = std::ranges::max(ranks_on);
}

bool MpiSession::usable() const {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized == 0 && !failing.load();
}

std::shared_ptr<MpiSession> start_mpi(const WorldOptions& options) {
  if (options.ranks_per_node < 0) {
    throw ConfigError(
        fmt::format("ranks_per_node is {}: give a positive number, or 0 for those that share memory",
                    options.ranks_per_node));
  }
  auto session = std::make_shared<MpiSession>();
  initialize(*session);
  MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &session->rank));
  MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &session->size));
  set_process_rank(session->rank);
  require_whole_launch(*session);
  session->host = processor_name();
  find_place(*session, options.ranks_per_node);
  return session;
}

void stop_mpi(MpiSession& session) noexcept {
  if (!session.usable()) return;
  if (MPI_Finalize() != MPI_SUCCESS) log::warning("MPI_Finalize failed");
}

void abort_mpi(MpiSession& session, int exit_code) noexcept {
  session.failing = true;
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_CHECK(MPI_Get_library_version(text, &length));
  const std::string full(text, static_cast<std::size_t>(length));
  return full.substr(0, full.find_first_of(",\n"));
}

}  // namespace lockstep
