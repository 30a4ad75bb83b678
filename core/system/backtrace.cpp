// SPDX-License-Identifier: Apache-2.0
#include "core/system/backtrace.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <utility>

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/files/file_text.h"

namespace lockstep {
namespace {

constexpr int kMostFrames = 48;
constexpr int kHandlerFrames = 2;  // the handler and the signal trampoline

// The signal handler can only reach globals. One request is active at a time: a thread that answers late,
// when another thread is asked, sees that it is not the target.
std::atomic<int> asked_thread{0};
std::atomic<int> answered_frames{-1};
std::array<void*, kMostFrames> stack_frames;
std::atomic<bool> unwinding_hangs{false};

int stack_signal() { return SIGRTMIN + 5; }

int this_thread() { return static_cast<int>(syscall(SYS_gettid)); }

void write_stack(int) {
  const int saved = errno;
  if (asked_thread.exchange(0) == this_thread())
    answered_frames = backtrace(stack_frames.data(), kMostFrames);
  errno = saved;
}

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 ? text.get() : symbol;
  constexpr std::size_t kLongest = 160;  // names of templates can be very long
  if (name.size() > kLongest) name = name.substr(0, kLongest) + "..";
  return name;
}

// A return address may already belong to the next function.
std::string describe_address(const void* address, bool behind_call) {
  const auto* at = static_cast<const char*>(address) - (behind_call ? 1 : 0);
  Dl_info info = {};
  if (dladdr(at, &info) == 0 || info.dli_fname == nullptr) return fmt::format("{}", fmt::ptr(address));
  const auto offset = static_cast<std::uint64_t>(static_cast<const char*>(address) -
                                                 static_cast<const char*>(info.dli_fbase));
  const std::string place = fmt::format("{}+{:#x}", file_name(info.dli_fname), offset);
  return info.dli_sname == nullptr ? place : fmt::format("{} ({})", demangled(info.dli_sname), place);
}

// A line of /proc/PID/maps.
struct FileMapping {
  std::uint64_t begin = 0, end = 0, offset = 0;
  std::string path;
};

std::vector<FileMapping> mappings(const std::string& process) {
  std::vector<FileMapping> all;
  std::ifstream file("/proc/" + process + "/maps");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    FileMapping mapping;
    std::string permissions, device, inode;
    char dash = 0;
    words >> std::hex >> mapping.begin >> dash >> mapping.end >> permissions >> mapping.offset >> device >>
        inode;
    std::getline(words >> std::ws, mapping.path);
    if (!mapping.path.empty()) all.push_back(std::move(mapping));
  }
  return all;
}

// Describes an address of another process by this process's mapping of the same file.
std::string describe_address_of(int process, std::uint64_t address) {
  for (const FileMapping& theirs : mappings(std::to_string(process))) {
    if (address < theirs.begin || address >= theirs.end) continue;
    const std::uint64_t place = address - theirs.begin + theirs.offset;
    for (const FileMapping& mine : mappings("self")) {
      const std::uint64_t here = mine.begin + (place - mine.offset);
      if (mine.path == theirs.path && place >= mine.offset && here < mine.end)
        return describe_address(reinterpret_cast<const void*>(here),
                                false);  // NOLINT: an address of this program
    }
    return fmt::format("{}+{:#x}", file_name(theirs.path), place);
  }
  return fmt::format("{:#x}", address);
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct KernelTask {
  int id = 0;
  std::string name;
};

std::vector<KernelTask> tasks_of_interest(int process) {
  std::vector<KernelTask> tasks;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process), ignored)) {
    const int id = std::atoi(entry.path().filename().c_str());
    std::string name = first_line(entry.path() / "comm");
    if (id == process)
      name = "main thread";
    else if (!name.starts_with(kThreadPrefix))
      continue;
    tasks.push_back({id, std::move(name)});
  }
  std::ranges::sort(tasks, {}, &KernelTask::id);
  return tasks;
}

std::vector<std::string> stack_of(int task, std::chrono::milliseconds longest_wait) {
  if (unwinding_hangs) return {};
  answered_frames = -1;
  asked_thread = task;
  if (syscall(SYS_tgkill, getpid(), task, stack_signal()) != 0) return {};
  const auto deadline = std::chrono::steady_clock::now() + longest_wait;
  while (answered_frames < 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (answered_frames < 0 && asked_thread.exchange(0) == task) return {};
  if (answered_frames < 0) std::this_thread::sleep_for(longest_wait);  // its handler is running
  if (answered_frames < 0) {  // it may still write to the globals: send no more requests
    unwinding_hangs = true;
    return {};
  }
  std::vector<std::string> lines;
  for (int i = kHandlerFrames; i < answered_frames; ++i)
    lines.push_back(describe_address(stack_frames[static_cast<std::size_t>(i)], i > kHandlerFrames));
  return lines;
}

// Shows where the task is blocked in the kernel (wchan) and its user-space address. /proc/../syscall is
// "running", or the call's number, its arguments, the stack pointer and the program counter.
std::string describe_task(int process, const KernelTask& task) {
  const std::filesystem::path folder = fmt::format("/proc/{}/task/{}", process, task.id);
  std::string text = task.name;
  if (const std::string wait = first_line(folder / "wchan"); wait.size() > 1) text += ": in " + wait;
  const std::string call = first_line(folder / "syscall");
  const std::size_t last = call.rfind(' ');
  std::uint64_t address = 0;
  if (last != std::string::npos && call.compare(last + 1, 2, "0x") == 0 &&
      std::from_chars(call.data() + last + 3, call.data() + call.size(), address, 16).ec == std::errc())
    text += ", at " + describe_address_of(process, address);
  return text;
}

}  // namespace

void name_thread(const char* name) { prctl(PR_SET_NAME, name); }

std::thread start_without_signals(const char* name, std::function<void()> work) {
  // The new thread inherits the mask.
  struct BlockedSignals {
    BlockedSignals() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  };
  const BlockedSignals blocked;
  return std::thread([name, work = std::move(work)] {
    name_thread(name);
    work();
  });
}

void prepare_backtraces() {
  std::array<void*, 2> frames = {};
  static_cast<void>(backtrace(frames.data(), static_cast<int>(frames.size())));
  struct sigaction action = {};
  action.sa_handler = write_stack;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(stack_signal(), &action, nullptr);
}

std::vector<ThreadStack> backtraces(std::chrono::milliseconds longest_wait) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::vector<ThreadStack> stacks;
  for (const KernelTask& task : tasks_of_interest(getpid())) {
    if (task.id != this_thread()) stacks.push_back({task.name, stack_of(task.id, longest_wait)});
  }
  return stacks;
}

char process_state(int process) {
  const std::string text = file_text(fmt::format("/proc/{}/stat", process));
  const std::size_t name_end = text.rfind(')');  // a name may contain any character
  return name_end == std::string::npos || name_end + 2 >= text.size() ? '\0' : text[name_end + 2];
}

std::string describe_process(int process) {
  const char state = process_state(process);
  if (state == '\0') return "";
  const char* words = state == 'T'   ? "stopped by a signal"
                      : state == 't' ? "stopped by a debugger"
                      : state == 'Z' ? "dead"
                      : state == 'D' ? "waits for a device or a disk"
                      : state == 'R' ? "runs"
                                     : "waits";
  std::string text = fmt::format("process {} {} ({})", process, words, state);
  for (const KernelTask& task : tasks_of_interest(process)) text += "\n  " + describe_task(process, task);
  return text;
}

}  // namespace lockstep
