// SPDX-License-Identifier: Apache-2.0
#include "tests/launch/program/program.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <numeric>
#include <regex>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/file_text.h"
#include "core/files/safetensors.h"
#include "core/random.h"
#include "core/system/processor_quota.h"

namespace lockstep {
namespace {

constexpr int kClasses = 4;

void write_big_endian(std::ofstream& file, int value) {
  for (int shift = 24; shift >= 0; shift -= 8) file.put(static_cast<char>(value >> shift));
}

// Noise images with a bright quadrant that encodes the class.
void write_dataset(const std::filesystem::path& folder, const std::string& prefix, int count, int side) {
  const Random random(11, prefix);
  std::ofstream images(folder / (prefix + "-images-idx3-ubyte"), std::ios::binary);
  std::ofstream labels(folder / (prefix + "-labels-idx1-ubyte"), std::ios::binary);
  for (const int word : {0x803, count, side, side}) write_big_endian(images, word);
  write_big_endian(labels, 0x801);
  write_big_endian(labels, count);
  for (int i = 0; i < count; ++i) {
    const int label = i % kClasses;
    labels.put(static_cast<char>(label));
    for (int pixel = 0; pixel < side * side; ++pixel) {
      const int row = pixel / side;
      const int column = pixel % side;
      const bool bright = (row >= side / 2) == (label / 2 == 1) && (column >= side / 2) == (label % 2 == 1);
      const std::uint32_t noise = random.bits(static_cast<std::uint64_t>(i * side * side + pixel)) & 127;
      images.put(static_cast<char>(noise + (bright ? 80 : 0)));
    }
  }
}

// Test programs run side by side. Their emulated devices have equal names, so each program needs a separate
// folder of claims (comm/job/node_claims.h). An mpirun that starts while another one removes their common
// folder /tmp/ompi.HOST.USER fails.
class OwnFolders {
 public:
  OwnFolders() {
    setenv("LOCKSTEP_CLAIMS", folder_.path().c_str(), 0);
    setenv("OMPI_MCA_orte_tmpdir_base", (folder_.path() / "mpirun").c_str(), 0);
  }

 private:
  TemporaryFolder folder_{"program"};
};

// The cores that this process may use: of its affinity, limited by the CPU quotas of its control groups.
std::size_t granted_cores() {
  cpu_set_t usable = {};
  sched_getaffinity(0, sizeof(usable), &usable);
  double cores = CPU_COUNT(&usable);
  for (const ProcessorQuota& quota : processor_quotas()) cores = std::min(cores, quota.cores);
  return static_cast<std::size_t>(std::max(1.0, cores));
}

}  // namespace

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

void expect_failure(const ProgramResult& result, int exit_code, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, exit_code) << result.output;
  // mpirun's names of processes, [[job,1],rank] and [host:pid], contain numbers that differ from run to run.
  static const std::regex process_name(R"(\[\[\d+,\d+\],\d+\]|\[[\w.-]+:\d+\])");
  const std::string said = std::regex_replace(result.output, process_name, "");
  for (const std::string& part : parts) EXPECT_EQ(count(said, part), 1) << part << " in:\n" << result.output;
}

ProgramResult run_shell(const std::string& command) {
  // Open MPI refuses to start as root or with more ranks than cores unless these variables allow it. Kernel
  // choices of tests stay in the build folder.
  for (const char* name :
       {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"}) {
    setenv(name, "1", 0);
  }
  // Ranks whose peer has failed have no work left: mpirun kills them without waiting a second.
  setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 0);
  // A fifth of a second of each start looks for networks that machines of tests lack.
  setenv("OMPI_MCA_mtl", "^psm,psm2,ofi", 0);
  // Tests share the cores. A rank that waits within MPI leaves its core to the rank for which it waits.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  setenv("XDG_CACHE_HOME", (build_folder() / "cache").c_str(), 0);
  static const OwnFolders folders;
  ProgramResult result;
  FILE* pipe = popen(("{ " + command + "\n} 2>&1 </dev/null").c_str(), "r");
  CHECK(pipe != nullptr);
  std::array<char, 4096> part;
  while (const std::size_t got = fread(part.data(), 1, part.size(), pipe))
    result.output.append(part.data(), got);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

pid_t start_shell(const std::string& command) {
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  CHECK(child > 0);
  return child;
}

bool is_running(pid_t process) {
  siginfo_t ended = {};
  return waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0;
}

std::string wait_until(const std::string& condition) {
  return fmt::format(
      "waits=0\nuntil {}; do\n  kill -0 $run || break\n  waits=$((waits + 1))\n"
      "  [ $waits -lt 6000 ] || {{ echo timed out waiting; kill -KILL $run; break; }}\n  sleep 0.02\ndone\n",
      condition);
}

std::string on_ranks(int ranks, const std::string& command) {
  if (ranks == 1) return command;
  return fmt::format("mpirun --oversubscribe --bind-to none -np {} {}", ranks, command);
}

ProgramResult run_ranks(int ranks, const std::string& command) { return run_shell(on_ranks(ranks, command)); }

std::string on_one_core() { return fmt::format("taskset -c {} ", sched_getcpu()); }

// script(1) makes the terminal.
ProgramResult run_on_terminal(const std::string& command) {
  ProgramResult result = run_shell("script -qec '" + command + "' /dev/null");
  static const std::regex told("\x1b\\[[0-9;]*[A-Za-z]");
  result.output = std::regex_replace(result.output, told, "");
  result.output = std::regex_replace(result.output, std::regex("\r\n"), "\n");
  std::ranges::replace(result.output, '\r', '\n');
  return result;
}

double share_without_cores() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::duration<double> kLong(0.3);
  std::vector<double> computed(granted_cores());
  std::vector<std::thread> threads;
  const Clock::time_point begin = Clock::now();
  for (double& seconds : computed) {
    threads.emplace_back([&seconds, begin, kLong] {
      while (Clock::now() - begin < kLong) {
      }
      timespec taken = {};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &taken);
      seconds = static_cast<double>(taken.tv_sec) + 1e-9 * static_cast<double>(taken.tv_nsec);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> all = Clock::now() - begin;
  const double sum = std::accumulate(computed.begin(), computed.end(), 0.0);
  return 1 - sum / (all.count() * static_cast<double>(computed.size()));
}

std::filesystem::path build_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
}

std::string program(const std::string& name) {
  std::filesystem::path path = build_folder() / "tests" / name;  // where a bundle keeps test programs
  if (!std::filesystem::is_regular_file(path)) path = build_folder() / "bin" / name;
  const std::string text = path.string();
  return text.find(' ') == std::string::npos ? text : '"' + text + '"';
}

std::string device_program() {
#ifdef LOCKSTEP_TEST_GPU
  return "lockstep";
#else
  return "lockstep-emulated";
#endif
}

Workplace::Workplace(const std::string& name, const std::string& program, int side)
    : folder_(name), program_(program) {
  std::filesystem::create_directories(path("data"));
  write_dataset(path("data"), "train", 512, side);
  write_dataset(path("data"), "t10k", 103, side);
  std::ofstream(path("config.toml")) << fmt::format(
      "[model]\nname = \"mlp\"\n[data]\nformat = \"idx\"\npath = \"{}\"\n"
      "[train]\nbatch = 8\nepochs = 1\nthreads = 1\n[optimizer]\nlearning_rate = 0.02\n[world]\ndevice = "
      "\"cpu\"\n{}"
      "[kernels]\nchoose = \"direct\"\n"  // timings on a busy machine are not kept
      "[run]\ndir = \"{}\"\ncheckpoint_minutes = 0\nmeasure_peak = false\n",
      path("data").string(), device_program() == "lockstep" ? "share_device = true\n" : "",
      path("run").string());
}

std::string Workplace::train(const std::vector<std::string>& settings, const std::string& flags) const {
  std::string command = program(program_) + " train " + path("config.toml").string();
  for (const std::string& setting : settings) command += " --set '" + setting + "'";
  return command + " " + flags;
}

std::string Workplace::script(const std::string& lines) const {
  static int number = 0;
  const std::filesystem::path file = path(fmt::format("script_{}.sh", number++));
  std::ofstream(file) << lines << '\n';
  return "sh " + file.string();
}

std::string digest_of(const Workplace& workplace, int ranks, const std::vector<std::string>& settings) {
  const auto file = workplace.path("digest");
  const ProgramResult result = run_ranks(ranks, workplace.train(settings, "--digest " + file.string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return text_of(file);
}

std::map<std::string, std::vector<float>> tensors_of(const std::filesystem::path& path) {
  SafetensorsReader reader(path);
  std::map<std::string, std::vector<float>> tensors;
  for (const SafetensorsEntry& entry : reader.entries()) {
    std::vector<float>& values = tensors[entry.name];
    values.resize(static_cast<std::size_t>(entry.shape.elements()));
    reader.read(entry, std::as_writable_bytes(std::span(values)));
  }
  return tensors;
}

void write_poisoned(const std::filesystem::path& from, const std::filesystem::path& to,
                    const std::string& tensor, float poison) {
  const SafetensorsEntry entry = *SafetensorsReader(from).find(tensor);
  std::string bytes = text_of(from);
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const std::uint64_t last = sizeof(header) + header + entry.end - sizeof(poison);
  std::memcpy(bytes.data() + last, &poison, sizeof(poison));
  std::ofstream(to, std::ios::binary) << bytes;
}

std::string text_of(const std::filesystem::path& path) { return file_text(path); }

}  // namespace lockstep
