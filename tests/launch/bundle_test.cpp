// SPDX-License-Identifier: Apache-2.0
//
// The archive for nodes without package access (launch/bundle.sh), from the view of such a node's user.
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"
#include "tests/source_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

ProgramResult bundle(const std::string& arguments) {
  return run_shell("'" + source_folder() + "/launch/bundle.sh' " + arguments);
}

fs::path new_folder(const fs::path& path) {
  fs::create_directories(path);
  return path;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void write_script(const fs::path& path, const std::string& lines) {
  std::ofstream(path) << "#!/bin/sh\n" << lines << "\n";
  fs::permissions(path, fs::perms::owner_exec, fs::perm_options::add);
}

// The shared libraries that each process of the program loaded, read from logs of LD_DEBUG=files.
std::vector<std::vector<std::string>> libraries_of(const fs::path& program, const fs::path& logs) {
  std::vector<std::vector<std::string>> processes;
  for (const auto& log : fs::directory_iterator(logs)) {
    const std::string text = text_of(log.path());
    if (!contains(text, "initialize program: " + program.string())) continue;
    std::vector<std::string>& libraries = processes.emplace_back();
    const std::string mark = "calling init: ";
    for (const std::string& line : lines_of(text)) {
      if (const std::size_t at = line.find(mark); at != std::string::npos)
        libraries.push_back(line.substr(at + mark.size()));
    }
  }
  return processes;
}

void expect_training(const Workplace& workplace, const fs::path& root) {
  const fs::path logs = new_folder(workplace.path("loader"));
  const ProgramResult trained = run_shell(fmt::format(
      "env -u LD_LIBRARY_PATH LD_DEBUG=files LD_DEBUG_OUTPUT={}/log {}/run -np 2 lockstep train {} "
      "--set train.steps=4",
      logs.string(), root.string(), workplace.path("config.toml").string()));
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const auto facts = run_record(workplace.path("run"));
  EXPECT_EQ(facts.value("ranks", 0), 2);
  EXPECT_EQ(facts.value("global_batch", 0), 16);

  const auto processes = libraries_of(root / "bin" / "lockstep", logs);
  EXPECT_EQ(processes.size(), 2u);
  for (const std::vector<std::string>& libraries : processes) {
    bool own_onednn = false;
    for (const std::string& library : libraries) {
      EXPECT_FALSE(library.starts_with(build_folder().string() + "/")) << library;
      own_onednn |= library.starts_with((root / "lib" / "libdnnl.so").string());
    }
    EXPECT_TRUE(own_onednn) << fmt::format("{}", fmt::join(libraries, "\n"));
  }
}

// Compressing all programs takes a minute, so this copies one program of each kind.
fs::path part_of_build(const Workplace& workplace) {
  const fs::path folder = workplace.path("build"), programs = new_folder(folder / "bin");
  fs::copy(build_folder() / "CMakeCache.txt", folder);
  for (const char* name : {"lockstep", "kernel_bench", "data_test", "lockstep-emulated"})
    fs::copy(build_folder() / "bin" / name, programs);
  return folder;
}

TEST(Bundle, TrainsAfterUnpacking) {
  const Workplace workplace("bundle");
  const fs::path archive = workplace.path("bundle.tar.xz");
  const ProgramResult packed =
      bundle(fmt::format("{} --output {}", part_of_build(workplace).string(), archive.string()));
  ASSERT_EQ(packed.exit_code, 0) << packed.output;

  const fs::path place = new_folder(workplace.path("elsewhere"));
  const ProgramResult unpacked =
      run_shell(fmt::format("tar -C {} -xf {} && rm {}", place.string(), archive.string(), archive.string()));
  ASSERT_EQ(unpacked.exit_code, 0) << unpacked.output;
  const fs::path root = place / "lockstep-bundle";
  EXPECT_TRUE(fs::exists(root / "tests" / "data_test"));
  EXPECT_FALSE(fs::exists(root / "tests" / "lockstep-emulated"));
  expect_training(workplace, root);

  const ProgramResult unknown = run_shell((root / "run").string() + " lockstop");
  EXPECT_EQ(unknown.exit_code, exit_code::usage) << unknown.output;
  expect_parts(unknown.output, {"\"lockstop\"", "kernel_bench", "data_test"});
}

TEST(Bundle, RefusesInvalidArgumentsAndBuilds) {
  const Workplace workplace("bundle_refused");
  const fs::path build = new_folder(workplace.path("build"));
  const auto expect = [](const std::string& arguments, int exit_code, const std::vector<std::string>& parts) {
    SCOPED_TRACE(arguments);
    const ProgramResult result = bundle(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.output;
    expect_parts(result.output, parts);
  };
  expect("", exit_code::usage, {"--help"});
  expect("--fast", exit_code::usage, {"\"--fast\""});
  expect(build.string() + " --programs few", exit_code::usage, {"--programs", "kit", "\"few\""});
  expect(build.string() + " --limit 5k", exit_code::usage, {"--limit", "\"5k\""});
  expect(build.string(), exit_code::io, {build.string(), "CMakeCache.txt"});
  std::ofstream(build / "CMakeCache.txt").flush();
  expect(build.string(), exit_code::io, {(build / "bin/lockstep").string()});
  fs::copy("/bin/true", new_folder(build / "bin") / "lockstep");
  expect(build.string() + " --toolkit " + build.string(), exit_code::io, {build.string(), "bin/nvcc"});
  fs::copy("/bin/true", build / "bin" / "nvcc");
  std::ofstream(build / "CMakeCache.txt") << "LOCKSTEP_CUDA:BOOL=ON\n";
  expect(build.string() + " --programs kit", exit_code::io,
         {build.string(), "lacks step_bench", "codecs_test", "-DLOCKSTEP_BENCHMARKS=ON"});
  std::ofstream(build / "CMakeCache.txt") << "CMAKE_CUDA_COMPILER:FILEPATH=/bin/false\n";
  expect(build.string() + " --toolkit " + build.string(), exit_code::usage,
         {"/bin/false", (build / "bin/nvcc").string()});
  expect(build.string() + " --mpi " + build.string(), exit_code::io, {"bin/mpirun", "lib/libmpi.so.40"});
  expect(build.string() + " --output " + build.string(), exit_code::io, {build.string()});
  expect(build.string() + " --limit 0", exit_code::config, {"--limit 0", " bytes"});
  EXPECT_FALSE(fs::exists(build / "lockstep-bundle.tar.xz"));
  expect(build.string() + " --limit 08", exit_code::done, {"lockstep-bundle.tar.xz"});
}

TEST(Bundle, NeedsOfTheProgramsDoNotDependOnTheLanguage) {
  const Workplace workplace("bundle_language");
  const fs::path build = new_folder(workplace.path("build")), archive = workplace.path("bundle.tar");
  const fs::path tools = new_folder(workplace.path("tools"));
  std::ofstream(build / "CMakeCache.txt").flush();
  fs::copy("/bin/true", new_folder(build / "bin") / "lockstep");
  const auto pack = [&] {
    return run_shell(fmt::format("LC_ALL=C.UTF-8 PATH={}:$PATH '{}/launch/bundle.sh' {} --output {}",
                                 tools.string(), source_folder(), build.string(), archive.string()));
  };
  // readelf of a user whose language is German.
  write_script(tools / "readelf",
               "PATH=${PATH#*:}\n[ \"$LC_ALL\" != C ] || exec readelf \"$@\"\n"
               "readelf \"$@\" | sed 's/^Version /Versions-/; s/ File: / Datei: /'");
  const ProgramResult packed = pack();
  ASSERT_EQ(packed.exit_code, 0) << packed.output;
  const ProgramResult needs =
      run_shell(fmt::format("tar -xOf {} lockstep-bundle/share/needs", archive.string()));
  EXPECT_TRUE(contains(needs.output, "glibc 2.")) << needs.output;

  fs::remove(archive);
  write_script(tools / "readelf", "");
  const ProgramResult unknown = pack();
  EXPECT_EQ(unknown.exit_code, exit_code::config) << unknown.output;
  expect_parts(unknown.output, {"glibc", "readelf"});
  EXPECT_FALSE(fs::exists(archive));
}

TEST(Bundle, PacksAnMpiWhoseProgramsAreScripts) {
  const Workplace workplace("bundle_scripts");
  const fs::path build = new_folder(workplace.path("build")), archive = workplace.path("bundle.tar");
  const fs::path mpi = new_folder(workplace.path("mpi"));
  std::ofstream(build / "CMakeCache.txt").flush();
  fs::copy("/bin/true", new_folder(build / "bin") / "lockstep");
  fs::copy("/bin/true", new_folder(mpi / "lib") / "libmpi.so.40");
  write_script(new_folder(mpi / "bin") / "mpirun", "exec prterun \"$@\"");
  const ProgramResult packed =
      bundle(fmt::format("{} --mpi {} --output {}", build.string(), mpi.string(), archive.string()));
  ASSERT_EQ(packed.exit_code, 0) << packed.output;
  const ProgramResult names = run_shell("tar -tf " + archive.string());
  expect_parts(names.output, {"lockstep-bundle/mpi/bin/mpirun", "lockstep-bundle/share/needs"});
}

// The node's drivers of InfiniBand do not load with another libibverbs.
TEST(Bundle, InfiniBandLibraryOfTheNodeComesFirst) {
  const Workplace workplace("bundle_verbs");
  const fs::path build = new_folder(workplace.path("build")), archive = workplace.path("bundle.tar");
  const fs::path tools = new_folder(workplace.path("tools"));
  std::ofstream(build / "CMakeCache.txt").flush();
  fs::copy("/bin/true", new_folder(build / "bin") / "lockstep");
  // The program seems to need the library, and /bin/true seems to be it.
  write_script(tools / "readelf",
               "PATH=${PATH#*:}\nreadelf \"$@\"\n"
               "case \"$*\" in '-d '*/bin/lockstep) echo '(NEEDED) [libibverbs.so.1]' ;; esac");
  write_script(tools / "ldd", "PATH=${PATH#*:}\nldd \"$@\"\necho 'libibverbs.so.1 => /bin/true (0x1)'");
  const ProgramResult packed =
      run_shell(fmt::format("PATH={}:$PATH '{}/launch/bundle.sh' {} --output {}", tools.string(),
                            source_folder(), build.string(), archive.string()));
  ASSERT_EQ(packed.exit_code, 0) << packed.output;
  const ProgramResult content =
      run_shell(fmt::format("tar -tf {0}; tar -xOf {0} lockstep-bundle/share/needs", archive.string()));
  expect_parts(content.output, {"lockstep-bundle/lib/fallback/libibverbs.so.1/libibverbs.so.1\n",
                                "\nfallback libibverbs.so.1"});
  EXPECT_FALSE(contains(content.output, "lockstep-bundle/lib/libibverbs.so.1")) << content.output;
}

// Its libraries would replace the libraries of the node.
TEST(Bundle, LeavesOutTheHdf5ReaderAndAdvisesToConvertElsewhere) {
  const Workplace workplace("bundle_hdf5");
  const fs::path build = new_folder(workplace.path("build")), archive = workplace.path("bundle.tar");
  std::ofstream(build / "CMakeCache.txt").flush();
  for (const char* name : {"lockstep", "lockstep-hdf5"})
    fs::copy("/bin/true", new_folder(build / "bin") / name);
  const ProgramResult packed = bundle(fmt::format("{} --output {}", build.string(), archive.string()));
  ASSERT_EQ(packed.exit_code, 0) << packed.output;
  const ProgramResult names = run_shell("tar -tf " + archive.string());
  EXPECT_FALSE(contains(names.output, "lockstep-hdf5")) << names.output;
  expect_parts(bundle("--help").output, {"lockstep-hdf5", "lockstep pack"});

  const fs::path data = workplace.path("data.h5"), alone = workplace.path("lockstep");
  std::ofstream(data) << "not read";
  fs::copy(build_folder() / "bin" / "lockstep", alone);
  // The PATH may lead to an installed lockstep-hdf5.
  const ProgramResult trained = run_shell(fmt::format(
      "PATH=/nowhere LOCKSTEP_BUNDLE={} {} train {} --set data.format=hdf5 --set data.path={}",
      workplace.path("").string(), alone.string(), workplace.path("config.toml").string(), data.string()));
  EXPECT_EQ(trained.exit_code, exit_code::config) << trained.output;
  expect_parts(trained.output, {"lockstep-hdf5", "lockstep pack"});
}

// A bundle of two scripts, on a node with two versions of Open MPI on the PATH.
TEST(Bundle, StartsRanksWithTheNamedMpi) {
  const Workplace workplace("bundle_mpi");
  const fs::path root = new_folder(workplace.path("root"));
  std::ofstream(new_folder(root / "share") / "needs") << "glibc 2.1\n";
  for (const char* file : {"env.sh", "run"}) fs::copy(source_folder() + "/launch/bundle/" + file, root);
  write_script(new_folder(root / "bin") / "which_mpirun", "command -v mpirun");
  new_folder(root / "tests");
  for (const char* name : {"first", "second"}) {
    const fs::path mpi = workplace.path(name);
    std::ofstream(new_folder(mpi / "lib") / "libmpi.so.40").flush();
    write_script(new_folder(mpi / "bin") / "mpirun", "echo \"Open MPI: $0 $*\"");
  }
  const auto run = [&](const std::string& arguments) {
    return run_shell(fmt::format(
        "LOCKSTEP_PEER_PYTHON=true LOCKSTEP_MPI={1} PATH={0}/bin:{1}/bin:$PATH {2}/run {3}",
        workplace.path("first").string(), workplace.path("second").string(), root.string(), arguments));
  };
  const std::string mpirun = (workplace.path("second") / "bin" / "mpirun").string();
  const ProgramResult found = run("which_mpirun");
  EXPECT_EQ(found.exit_code, 0) << found.output;
  expect_parts(found.output, {mpirun});
  // Processors with two threads each have fewer slots than nproc counts.
  const ProgramResult ranks = run("-np 1 which_mpirun");
  EXPECT_EQ(ranks.exit_code, 0) << ranks.output;
  expect_parts(ranks.output, {mpirun, " --oversubscribe ", " -np 1 "});
}

// A bundle with only a list of needs, on a node that has none of them, and then on one that has some.
TEST(Bundle, ReportsMissingLibrariesAndUsesExistingOnes) {
  const Workplace workplace("bundle_needs");
  const fs::path root = new_folder(workplace.path("root"));
  new_folder(root / "share");
  fs::copy(source_folder() + "/launch/bundle/env.sh", root);
  std::ofstream(root / "share" / "needs")
      << "glibc 99.1\ncuda libcudnoise.so.9\nfallback libnowhere.so.1 V_1.0\n"
         "fallback libc.so.6 GLIBC_2.2.5\n";
  const std::string source =
      fmt::format("bash -euo pipefail -c '. {}/env.sh; echo path=$LD_LIBRARY_PATH'", root.string());

  const ProgramResult without = run_shell("env -u LD_LIBRARY_PATH " + source);
  EXPECT_EQ(without.exit_code, 0) << without.output;
  expect_parts(without.output, {"glibc", "99.1", "libcudnoise.so.9", "lib/fallback/libnowhere.so.1"});
  EXPECT_FALSE(contains(without.output, "lib/fallback/libc.so.6")) << without.output;

  const fs::path toolkit = new_folder(workplace.path("toolkit") / "lib64");
  std::ofstream(toolkit / "libcudnoise.so.9").flush();
  const ProgramResult with =
      run_shell(fmt::format("CUDA_HOME={} {}", toolkit.parent_path().string(), source));
  EXPECT_FALSE(contains(with.output, "libcudnoise.so.9")) << with.output;
  expect_in_order(with.output, {"path=", toolkit.string()});

  const ProgramResult quiet = run_shell("LOCKSTEP_BUNDLE_QUIET=1 " + source);
  EXPECT_EQ(quiet.exit_code, 0) << quiet.output;
  for (const char* part : {"99.1", "libcudnoise.so.9"})
    EXPECT_FALSE(contains(quiet.output, part)) << quiet.output;
}

// A bundle made with CUDA 13, on nodes with different drivers.
class BundleDriver : public testing::Test {
 protected:
  BundleDriver() {
    new_folder(root_ / "share");
    std::ofstream(root_ / "share" / "needs") << "glibc 2.1\ndriver 580 13\ncuda libcudart.so.13\n";
    for (const char* file : {"env.sh", "run"}) fs::copy(source_folder() + "/launch/bundle/" + file, root_);
    fs::copy("/bin/true", new_folder(root_ / "bin"));
    new_folder(root_ / "tests");
  }

  // Runs with these variables. The node's own driver is hidden.
  ProgramResult run(const std::string& variables) {
    return run_shell(
        fmt::format("env LOCKSTEP_PEER_PYTHON=true LOCKSTEP_BUNDLE_DRIVER_FILE={} {} {}/run true",
                    workplace_.path("version").string(), variables, root_.string()));
  }
  // Creates the library of a driver as its installer names it.
  std::string library(const std::string& version) {
    const fs::path folder = new_folder(workplace_.path("driver_" + version));
    std::ofstream(folder / ("libcuda.so." + version)).flush();
    fs::create_symlink("libcuda.so." + version, folder / "libcuda.so.1");
    return "LD_LIBRARY_PATH=" + folder.string();
  }
  void expect_refused(const ProgramResult& result, const std::string& found) {
    EXPECT_EQ(result.exit_code, exit_code::config) << result.output;
    expect_parts(result.output, {found, " 580", "CUDA 13", "LOCKSTEP_BUNDLE_DRIVER=any"});
  }

  Workplace workplace_{"bundle_driver"};
  fs::path root_ = workplace_.path("root");
};

TEST_F(BundleDriver, TooOldDriverEndsTheStartWithBothVersions) {
  const std::string old_one = library("550.54.15");
  expect_refused(run(old_one), "550.54.15");
  expect_refused(run("LOCKSTEP_BUNDLE_QUIET=1 " + old_one), "550.54.15");
  EXPECT_EQ(run("LOCKSTEP_BUNDLE_DRIVER=any " + old_one).exit_code, 0);
  const ProgramResult recent = run(library("580.65.06"));
  EXPECT_EQ(recent.exit_code, 0) << recent.output;
  for (const char* part : {" 580", "libcuda.so.1", "LOCKSTEP_BUNDLE_DRIVER"})
    EXPECT_FALSE(contains(recent.output, part)) << recent.output;
}

TEST_F(BundleDriver, VersionFallsBackToTheKernelModule) {
  const std::string untold = library("1.1");
  const auto kernel = [&](const std::string& line) {
    std::ofstream(workplace_.path("version"))
        << "NVRM version: NVIDIA UNIX " << line << "\nGCC version: 12.3.0\n";
    return run(untold);
  };
  expect_refused(kernel("x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024"), "535.183.01");
  const ProgramResult recent =
      kernel("Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)  Sun Jul 27 2025");
  EXPECT_EQ(recent.exit_code, 0) << recent.output;
}

TEST_F(BundleDriver, MissingDriverIsReportedAndTheProgramStarts) {
  if (fs::exists("/proc/driver/nvidia"))
    GTEST_SKIP() << "this machine has an NVIDIA driver (/proc/driver/nvidia)";
  const ProgramResult result = run("");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  expect_parts(result.output, {"libcuda.so.1", " 580"});
}

}  // namespace
}  // namespace lockstep
