#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Removes every event record, stream wait and synchronisation of Lockstep's CUDA path, one at a time, and runs the tests
of the emulated device until one fails. A line whose removal makes no test fail is not tested or not needed.

  tests/cuda_emulator/take_out.py FOLDER            # all lines; copies the sources into FOLDER and builds them there
  tests/cuda_emulator/take_out.py FOLDER --list     # the lines and their numbers
  tests/cuda_emulator/take_out.py FOLDER --only 3 7 --write    # two lines again; --write updates the table in README.md

All lines are removed in the same build: the copy skips the line whose number is LOCKSTEP_TAKEN_OUT. The arguments of the
skipped call are still evaluated."""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDERS = ("core/cuda", "comm", "data", "launch", "models")
# Files without GPU work: streams and communicators of the CPU, condition variables, processes, and CPU-only code.
WITHOUT_GPU = re.compile(r"comm/(mpi/|in_process/(threads|host_communicator|self)|job/watch)|"
                         r"data/(batch_loader|formats/cifar)|launch/program/sweep/sweep|"
                         r"launch/train/(checkpoint/keeper|step/step_statistics)")
METHODS = re.compile(r"(?<=\.|>)(record|wait|synchronize)\(")
CALLS = re.compile(r"\b(cudaEventRecord|cudaEventRecordWithFlags|cudaStreamWaitEvent|cudaEventSynchronize|"
                   r"cudaStreamSynchronize|cudaDeviceSynchronize)\(")
DECIDES = """#pragma once
#include <cstdlib>
inline bool lockstep_taken_out(int line) {
  static const int out = [] { const char* text = std::getenv("LOCKSTEP_TAKEN_OUT"); return text ? std::atoi(text) : 0; }();
  return out == line;
}
"""

RANKS = "mpirun --oversubscribe --bind-to none -np"
# (build, test, files that it covers), the most effective tests first. The tests are those of CI. ThreadSanitizer finds
# a race even if the results are right.
CHECKS = (
    ("cpu", "{bin}/emulated_training_test", ("models/", "comm/communicator_gather")),
    ("cpu", "{bin}/comm_test --gtest_filter=CallCheck*", "comm/communicator.cpp"),
    ("cpu", "{bin}/emulated_program_test --gtest_filter=*EverySeed:*Export*:*EachRank*", ""),
    ("cpu", "{bin}/emulated_core_test", "core/"),
    ("cpu", "{bin}/buckets_test", "comm/"),
    ("cpu", "{bin}/data_test --gtest_filter=DeviceBatches*", "data/"),
    ("cpu", RANKS + " 2 env LOCKSTEP_EMULATED_DELAY=1ms {bin}/emulated_nccl_test", ("core/", "comm/")),
    ("cpu", "{bin}/emulated_training_test", ("launch/", "comm/gradients/buckets")),
    ("cpu", "{bin}/trainer_ranks_test --gtest_filter=Continued*", "launch/train/trainer"),
    ("cpu", "{bin}/launch_test --gtest_filter=MeasureTogether*", "launch/"),
    ("cpu", "{bin}/launch_threads_test --gtest_filter=Same*:BroadcastState*", "launch/"),
    ("cpu", "{bin}/emulated_program_test --gtest_filter=*PlanLists*:*Traces*", ("launch/", "comm/gradients/buckets")),
    ("cpu", "{bin}/launch_program_test --gtest_filter=Failure.Loss*", "launch/train/trainer"),
    ("cpu", "{bin}/running_statistics_test", "launch/train/trainer"),
    ("cpu", "{bin}/models_test --gtest_filter=NetworkState*:Optimizer*:Initial*", "models/"),
    ("cpu", "{bin}/emulated_step_test", ""),
    ("cpu", "{bin}/emulated_trainer_test", ""),
    ("cpu", "{bin}/emulated_program_test", ""),
    ("tsan", "{bin}/data_test --gtest_filter=DeviceBatches*", "data/"),
    ("tsan", "{bin}/emulated_step_test", ""),
    ("tsan", "{bin}/emulated_trainer_test", ""),
    ("tsan", "{bin}/trainer_ranks_test", ""),
)
SILENT_SECONDS = 120  # a check without new output for this time hangs


def end_of_arguments(text, start):
    """The index after the parenthesis that closes the one before start."""
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[start], 0)
        start += 1
    return start


def start_of_object(text, end):
    """The index where the expression before a "." or "->" at end begins: names, calls and members."""
    at = end
    while True:
        if text[at - 1] == ")":
            depth = 0
            while True:
                at -= 1
                depth += {")": 1, "(": -1}.get(text[at], 0)
                if depth == 0:
                    break
        while text[at - 1].isalnum() or text[at - 1] in "_:":
            at -= 1
        if text[at - 1] == ".":
            at -= 1
        elif text[at - 2:at] == "->":
            at -= 2
        else:
            return at


def found_in(text):
    """(start, end, object, arguments) of each call in a source; the object is empty for functions of CUDA."""
    for match in METHODS.finditer(text):
        start = match.start() - (1 if text[match.start() - 1] == "." else 2)
        begin = start_of_object(text, start)
        end = end_of_arguments(text, match.end())
        subject = text[begin:start]
        if not subject.endswith(("timeline", "timeline_")):
            yield begin, end, subject, text[match.end():end - 1]
    for match in CALLS.finditer(text):
        yield match.start(), end_of_arguments(text, match.end()), "", text[match.end():-1]


def lines():
    """Every line, in the order of files: {file, start, end, text, without}."""
    listed = subprocess.run(["git", "ls-files", *(f"{folder}/*.cpp" for folder in FOLDERS)], cwd=ROOT, text=True,
                            capture_output=True, check=True).stdout.split()
    found = []
    for file in sorted(set(listed)):
        if WITHOUT_GPU.match(file):
            continue
        text = (ROOT / file).read_text()
        for begin, end, subject, arguments in sorted(found_in(text)):
            call = text[begin:end]
            if subject:
                effects = ", ".join(f"(void)({part})" for part in (subject, arguments) if part.strip())
                replaced = f"(lockstep_taken_out(NUMBER) ? ({effects}) : {call})"
            else:
                replaced = f"(lockstep_taken_out(NUMBER) ? cudaSuccess : {call})"
            found.append({"file": file, "start": begin, "end": end, "text": " ".join(call.split()), "replaced": replaced})
    for number, line in enumerate(found, 1):
        line["number"] = number
    return found


def copy_sources(folder, all_lines):
    """Copies the files that git tracks. Unchanged files keep their time stamps, so that they are not rebuilt."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout.split("\n")
    for file in filter(None, listed):
        content = (ROOT / file).read_bytes()
        here = [line for line in all_lines if line["file"] == file]
        if here:
            text = content.decode()
            for line in reversed(here):
                text = text[:line["start"]] + line["replaced"].replace("NUMBER", str(line["number"])) + text[line["end"]:]
            content = text.encode()
        to = folder / file
        if not to.is_file() or to.read_bytes() != content:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(content)
            to.chmod((ROOT / file).stat().st_mode)
    decides = folder / "taken_out.h"
    if not decides.is_file():
        decides.write_text(DECIDES)


def program_of(command):
    return re.search(r"{bin}/(\w+)", command).group(1)


def build(folder, preset):
    programs = {program_of(command) for of, command, _ in CHECKS if of == preset}
    cache = {"CCACHE_BASEDIR": str(folder), "CCACHE_NOHASHDIR": "1"}
    for command in (["cmake", "--preset", preset, "-DLOCKSTEP_TESTS=ON", "-DLOCKSTEP_BENCHMARKS=OFF",
                     "-DCMAKE_UNITY_BUILD=ON", f"-DCMAKE_CXX_FLAGS=-include {folder}/taken_out.h -Wno-unused-value",
                     "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"],
                    ["cmake", "--build", "--preset", preset, "--target", *sorted(programs)]):
        subprocess.run(command, cwd=folder, check=True, env=os.environ | cache, stdout=sys.stderr)


def run(folder, preset, command, number):
    """The reason why the check fails without this line; empty if it passes."""
    environment = os.environ | {
        "LOCKSTEP_TAKEN_OUT": str(number), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
        "GTEST_FAIL_FAST": "1", "GTEST_COLOR": "no", "LOCKSTEP_TEST_SEEDS": "3", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "TSAN_OPTIONS": f"suppressions={ROOT}/tests/sanitizers/tsan.supp:halt_on_error=1"}
    output = folder / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(command.format(bin=folder / "build" / preset / "bin").split(), stdout=file,
                                   stderr=subprocess.STDOUT, env=environment, start_new_session=True, cwd=folder)
        code = code_of(process, output)
    if code == 0:
        return ""
    text = output.read_text(errors="replace")
    at = re.findall(r"\[  FAILED  \] (\S+) \(", text) or re.findall(r"\[ RUN      \] (\S+)", text)[-1:]
    race = "ThreadSanitizer in " if "WARNING: ThreadSanitizer" in text else ""
    hang = ", which hangs" if code == "hangs" else ""
    return f"{race}{program_of(command)}: {at[0] if at else 'its start'}{hang}"


def code_of(process, output):
    """The exit code, or "hangs" if the process had to be killed."""
    size, changed = 0, time.monotonic()
    while time.monotonic() < changed + SILENT_SECONDS:
        try:
            return process.wait(0.5)
        except subprocess.TimeoutExpired:
            if output.stat().st_size != size:
                size, changed = output.stat().st_size, time.monotonic()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return "hangs"


def caught_by(folder, number, file, presets):
    for preset, command, files in CHECKS:
        if preset in presets and file.startswith(files):
            found = run(folder, preset, command, number)
            if found:
                return found
    return ""


def table(all_lines, results):
    rows = ["| file | taken out | caught by |", "|---|---|---|"]
    for line in all_lines:
        result = results.get(line["file"] + ": " + line["text"] + "#" + str(line["of_its_text"]))
        said = "not run" if result is None else f"`{result}`" if result else "**nothing**"
        rows.append(f"| `{line['file']}` | `{line['text']}` | {said} |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="folder for the copy and its builds; it is kept")
    parser.add_argument("--list", action="store_true", help="list the lines and exit")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="numbers of the lines to remove; default: all")
    parser.add_argument("--presets", nargs="+", default=["cpu", "tsan"], help="builds to test; default: cpu tsan")
    parser.add_argument("--write", action="store_true", help="write the table to README.md")
    options = parser.parse_args()

    all_lines = lines()
    seen = {}
    for line in all_lines:
        key = line["file"], line["text"]
        seen[key] = line["of_its_text"] = seen.get(key, 0) + 1
    if options.list:
        for line in all_lines:
            print(f"{line['number']:3} {line['file']}: {line['text']}")
        return 0

    folder = options.folder.resolve()
    copy_sources(folder, all_lines)
    for preset in options.presets:
        build(folder, preset)
    kept = folder / "results.json"
    results = json.loads(kept.read_text()) if kept.is_file() else {}
    found = "" if options.only else caught_by(folder, 0, "core/", options.presets)
    if found:
        print(f"take_out.py: with every line in place {found} fails; see {folder}/output.txt", file=sys.stderr)
        return 1
    for line in all_lines:
        if options.only and line["number"] not in options.only:
            continue
        begin = time.monotonic()
        found = caught_by(folder, line["number"], line["file"], options.presets)
        results[line["file"] + ": " + line["text"] + "#" + str(line["of_its_text"])] = found
        kept.write_text(json.dumps(results, indent=1))
        print(f"{line['number']:3} {time.monotonic() - begin:4.0f} s  {line['file']}: {line['text']}: {found or 'NOTHING'}",
              flush=True)
    written = table(all_lines, results)
    if options.write:
        readme = ROOT / "tests/cuda_emulator/README.md"
        text = readme.read_text()
        begin, end = text.index("<!-- take_out.py -->\n"), text.index("<!-- /take_out.py -->")
        readme.write_text(text[:begin] + "<!-- take_out.py -->\n" + written + "\n" + text[end:])
    else:
        print(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
