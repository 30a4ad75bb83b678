#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The run kit: correctness, speed and evidence from one NVIDIA GPU in at most 450 seconds, offline.

It needs a bundle of programs (launch/bundle.sh --programs kit) and Python. PyTorch is measured if Python has
it. The plan (gpu_plan.py) is a table of parts, each with a time limit that the kit enforces. A part that
lacks its program, its library or a GPU is skipped. If the smoke test fails, a diagnosis replaces the later
parts. The kit writes to the folder --out:

  gpu_suite.log    the output of every program, truncated where it exceeds a limit
  gpu_suite.jsonl  one line of JSON after every program
  gpu_suite.json   all results with machine, versions, revision, date and command, and speeds beside PyTorch's
  runs.tar.xz      files that the trainings wrote: metrics, steps, events, monitor

Exit codes: 0 every part is ok or skipped, 64 wrong command line, 70 a part failed, 74 --out cannot be written."""

import argparse
import collections
import dataclasses
import faulthandler
import itertools
import json
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback

import gpu_plan
import record
import suite

HERE = pathlib.Path(__file__).resolve().parent
LOG_BYTES = 15_000_000
TAIL_BYTES = 32_768  # last bytes to keep from a program that prints more than Program.keep
RESULT_BYTES = 1_000_000  # limit of a program's JSON file
POLL_SECONDS = 0.02  # between looks at a program that prints nothing
MARK = "LOCKSTEP_GPU_SUITE"  # environment variable of every process that a program starts
SKIPPED = {r"error while loading shared libraries: ([^:\s]+)": "{} is missing", r"No module named '(torch)'": "no {}",
           r"-np needs an (mpirun)": "no {}", r"(NVIDIA-SMI has failed|No devices were found).*": "{}"}


class Run:
    """A program that ran, or was skipped."""

    def __init__(self, program, part):
        self.program, self.part, self.read = program, part, program.read
        self.command, self.status, self.reason = [], "ok", ""
        self.begin = self.seconds = 0
        self.exit_code, self.output, self.result = None, "", {}

    def fail(self, reason):
        self.status, self.reason = "failed", reason

    def line(self):
        return {"part": self.part, "program": self.program.name, "status": self.status, "reason": self.reason,
                "begin": round(self.begin, 2), "seconds": round(self.seconds, 2), "exit_code": self.exit_code,
                "command": record.portable(shlex.join(self.command)), "result": self.result}


class Output:
    """Streams the output of a program into the log: the first `keep` bytes at once, the last ones when it
    ends."""

    def __init__(self, program, write):
        self.prefix, self.keep, self.write = f"[{program.name}] ".encode(), program.keep, write
        self.head, self.tail, self.line, self.dropped = bytearray(), b"", b"", 0

    def read(self, pipe, wait):
        """Returns True if there was output."""
        if not select.select([pipe], [], [], wait)[0]:
            return False
        data = os.read(pipe.fileno(), 65536)
        if not data:
            time.sleep(wait)  # the program has closed its output
        room = self.keep - len(self.head)
        self.head += data[:room]
        self.log(data[:room])
        self.dropped += len(data[room:])
        self.tail = (self.tail + data[room:])[-TAIL_BYTES:]
        return bool(data)

    def log(self, data):
        *lines, self.line = (self.line + data).split(b"\n")
        self.write(b"".join(self.prefix + line + b"\n" for line in lines))

    def close(self):
        """Returns the kept text."""
        if self.dropped:
            self.log(f"\n{self.dropped} more bytes, of which these are the last:\n".encode() + self.tail)
        if self.line:
            self.log(b"\n")
        return (self.head + self.tail).decode(errors="replace")


SCANS = threading.Lock()
READING = set()  # processes whose environment is being read; blocks forever if one hangs in the driver


def kill_all(mark):
    """Kills every process that was started with this mark, in any group or session. Returns after at most a
    second."""
    def scan():
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            if folder.name in READING:
                continue
            READING.add(folder.name)
            try:
                if f"\0{MARK}={mark}.".encode() in b"\0" + (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
            except OSError:  # it has ended, or belongs to another user
                pass
            READING.discard(folder.name)

    with SCANS:
        scanner = threading.Thread(target=scan, daemon=True)
        scanner.start()
        scanner.join(1)


def say(text):
    try:
        print(text, flush=True)
    except OSError:  # the reader has ended; the files in --out are still complete
        pass


class Clock:
    """Seconds since its creation, in the plan's scale."""

    def __init__(self, scale):
        self.scale, self.start = scale, time.monotonic()

    def now(self):
        return (time.monotonic() - self.start) / self.scale

    def join(self, thread, end):
        """Waits for the end of the thread until the time `end` at the latest."""
        thread.join(max(0, (end - self.now()) * self.scale))


class Kit:
    def __init__(self, options, scratch, clock):
        self.options, self.clock = options, clock
        self.lock, self.numbers = threading.Lock(), itertools.count()
        self.runs, self.parts, self.turns = [], {}, collections.defaultdict(lambda: collections.defaultdict(list))
        self.background, self.ending = [], threading.Event()
        self.log = open(options.out / "gpu_suite.log", "wb")
        self.lines = open(options.out / "gpu_suite.jsonl", "w")
        archive = options.bundle if options.bundle.is_file() else None
        images = options.cifar10 if options.cifar10 and options.cifar10.is_file() else None
        self.names = {"scratch": scratch, "here": HERE, "python": options.python, "archive": archive,
                      "bundle": f"{scratch}/lockstep-bundle" if archive else options.bundle, "cifar10_archive": images,
                      "cifar10": f"{scratch}/cifar10" if images else options.cifar10,
                      "few": f"{scratch}/few" if options.cifar10 else None}

    def now(self):
        return self.clock.now()

    def wait_for(self, threads, end):
        for thread in threads:
            self.clock.join(thread, end)

    # The environment of programs.

    def has_gpu(self):
        return os.path.exists("/dev/nvidia0") or any(
            run.program.name == "nvidia-smi" and run.status == "ok" for run in self.runs)

    def version(self):
        file = pathlib.Path(self.names["bundle"], "share/version")
        return file.read_text().strip() if file.exists() else ""

    def environment(self, program):
        """Programs of the bundle get the environment from env.sh. PyTorch brings its own libraries."""
        scratch, found = self.names["scratch"], pathlib.Path(self.names["scratch"], "environment")
        result = dict(os.environ, LOCKSTEP_PEER_PYTHON=self.options.python, XDG_CACHE_HOME=f"{scratch}/cache",
                      TORCHINDUCTOR_CACHE_DIR=f"{scratch}/inductor", TRITON_CACHE_DIR=f"{scratch}/triton",
                      PYTHONUNBUFFERED="1", GTEST_COLOR="no")
        result["PATH"] = f"{result.get('PATH', os.defpath)}:/usr/local/cuda/bin"
        if "{bundle}" in program.command and found.exists():
            result.update(entry.split("=", 1) for entry in found.read_text(errors="replace").split("\0") if "=" in entry)
        return {**result, **program.environment}

    def obstacle(self, program, command, environment):
        """The reason why the program cannot run here; empty if it can."""
        if program.gpu and not self.has_gpu():
            return "no GPU"
        for name in re.findall(r"{(archive|cifar10|cifar10_archive|few)}", program.command):
            if self.names[name] is None:
                return "there is no archive to unpack" if "archive" in name else "--cifar10 is not set"
        inside = [word for word in command if word.startswith(f"{self.names['bundle']}/")]
        for word in inside:
            if not os.path.exists(word):
                return f"the bundle has no {os.path.relpath(word, self.names['bundle'])}"
        if inside and program.gpu and "CUDA ON" not in self.version():
            return f"the bundle is built without CUDA: {self.version()}"
        if inside and not pathlib.Path(self.names["scratch"], "environment").exists():
            return "env.sh of the bundle failed"
        return "" if shutil.which(command[0], path=environment["PATH"]) else f"{command[0]} is not installed"

    # Execution of one program.

    def run(self, program, part, end, ending):
        """Runs the program until `end` at the latest, in seconds of the plan. If a case ends a GoogleTest
        program, runs the program again with the cases that it did not reach."""
        while True:
            run, file = Run(program, part), f"{self.names['scratch']}/{next(self.numbers)}.json"
            words = shlex.split(program.command)
            run.command = [word.format(**self.names, json=file) for word in words]
            environment = self.environment(program)
            run.begin = self.now()
            reason = self.obstacle(program, run.command, environment)
            if not reason and end - run.begin < 3:
                reason = "the time limit was reached before it started"
            if reason:
                run.status, run.reason = "skipped", reason
            else:
                self.execute(run, environment, min(end, run.begin + program.limit), ending)
                self.judge(run, file)
            run.seconds = self.now() - run.begin
            self.report(run)
            if run.read not in (gpu_plan.cases, gpu_plan.remaining_cases) or not run.result.get("open") or end - self.now() < 5:
                return
            done = re.findall(r"^\[ RUN +\] (\S+)", run.output, re.MULTILINE)
            given = [word for word in words if word.startswith("--gtest_filter=")]
            kept, _, excluded = given[0].split("=", 1)[1].partition("-") if given else ("*", "", "")
            words = [word for word in words if word not in given]
            words.append(f"--gtest_filter={kept}-{':'.join([excluded, *done]).lstrip(':')}")
            program = dataclasses.replace(program, command=shlex.join(words), read=gpu_plan.remaining_cases,
                                          environment=gpu_plan.next_shard(program.environment, len(set(done))))

    def execute(self, run, environment, end, ending):
        """Sends SIGTERM 2 seconds before `end` and SIGKILL 1 second before it. A process that hangs in the
        driver survives both and is abandoned."""
        program, mark = run.program, f"{os.getpid()}.{next(self.numbers)}"
        by_line = program.command.startswith(("{bundle}/bin/", "nvidia-smi")) and shutil.which("stdbuf")
        try:
            process = subprocess.Popen([*(["stdbuf", "-oL"] if by_line else []), *run.command], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.names["scratch"],
                                       env={**environment, MARK: f"{mark}."}, start_new_session=True)
        except OSError as error:
            return run.fail(str(error))
        output, asked = Output(program, self.write_log), False
        signals = [lambda pid: os.kill(pid, signal.SIGTERM), lambda pid: os.killpg(pid, signal.SIGKILL)]
        while process.poll() is None and self.now() < end - 0.5:
            if program.background and not asked and ending.is_set():
                asked, end = True, min(end, self.now() + 2)
            if signals and self.now() >= end - len(signals):
                signals.pop(0)(process.pid)
            output.read(process.stdout, POLL_SECONDS)
        while process.returncode is not None and output.read(process.stdout, 0) and self.now() < end:
            pass
        run.output, run.exit_code = output.close(), process.returncode
        process.stdout.close()
        if process.returncode is None:
            run.fail(f"abandoned after {self.now() - run.begin:.1f} s: neither SIGTERM nor SIGKILL ended it")
        elif len(signals) < 2 and not asked:
            run.fail(f"stopped after {self.now() - run.begin:.1f} s")
        elif run.exit_code == 77 and not asked:
            run.status, run.reason = "skipped", suite.last_lines(run.output, 1)[:300]
        elif run.exit_code != 0 and not asked:
            run.fail(f"exit code {run.exit_code}: {suite.last_lines(run.output, 1)[:300]}")
        kill_all(mark)  # also ends the processes that it started

    def judge(self, run, file):
        for pattern, reason in SKIPPED.items():
            found = re.search(pattern, run.output) if run.exit_code else None
            if found:
                run.status, run.reason = "skipped", reason.format(found.group(1))
                return
        try:
            if os.path.exists(file) and os.path.getsize(file) < RESULT_BYTES:
                run.result = json.loads(pathlib.Path(file).read_text())
            elif "{json}" in run.program.command and run.status == "ok":
                run.fail("the program wrote no result")
            if run.read:
                run.read(run)
        except Exception as error:  # a damaged result of one program must not end the kit
            run.fail(f"the result of the program cannot be read: {type(error).__name__}: {error}")

    def write_log(self, data):
        with self.lock:
            if self.log.tell() + len(data) <= LOG_BYTES:
                self.log.write(data)
                self.log.flush()

    def report(self, run):
        with self.lock:
            self.runs.append(run)
            if run.program.case:
                self.turns[run.program.case][run.program.way].append(run.result if run.status == "ok" else None)
            print(json.dumps(run.line()), file=self.lines, flush=True)
            say(f"{run.begin:5.0f} s  {run.status:8}{run.program.name}, {run.seconds:.1f} s"
                f"{': ' if run.reason else ''}{run.reason[:200]}")

    # Execution of the parts, in sequence.

    def run_part(self, part):
        begin = self.now()
        end = min(begin, part.begin) + part.limit
        if part.alone:
            self.end_background(end)
        threads = []
        for program in part.programs(self.runs) if callable(part.programs) else part.programs:
            last = gpu_plan.TOTAL_SECONDS if program.background else end
            thread = threading.Thread(target=self.run, args=(program, part.name, last, self.ending), daemon=True,
                                      name=f"program {program.name}")
            thread.start()
            (self.background if program.background else threads).append(thread)
            if not program.background and not part.together:
                self.wait_for([thread], end)
        self.wait_for(threads, end)
        late = [thread.name.removeprefix("program ") for thread in threads if thread.is_alive()]
        with self.lock:
            ends = [(run.status, run.reason) for run in self.runs if run.part == part.name]
        ends += [("failed", f"{name} did not end in time") for name in late]
        status, reason = next((each for status in ("failed", "ok", "skipped") for each in ends if each[0] == status),
                              ("failed", "no program ended in time"))
        self.parts[part.name] = {"status": status, "reason": reason, "begin": round(begin, 2),
                                 "seconds": round(self.now() - begin, 2), "limit": part.limit}

    def end_background(self, end):
        self.ending.set()
        self.wait_for(self.background, end)
        self.background, self.ending = [], threading.Event()

    def run_plan(self, plan):
        plan = list(plan)
        while plan:
            part = plan.pop(0)
            self.run_part(part)
            if part.name == "smoke" and self.parts["smoke"]["status"] == "failed":
                say("The smoke test failed: a diagnosis replaces the plan")
                plan = list(gpu_plan.DIAGNOSIS)
        self.end_background(self.now() + 3)

    def write_results(self):
        """Writes gpu_suite.json and prints a line for each comparison."""
        comparisons = {}
        for case, ways in self.turns.items():
            turns = {way: results for way, results in ways.items() if any(results)}
            if turns.get("lockstep"):
                comparisons[case] = suite.compare(turns)
                say(f"{case}: {suite.summary(comparisons[case])}")
        named = {run.program.name: run for run in self.runs}
        here = record.circumstances(shlex.join(["gpu_suite.py", *sys.argv[1:]]))
        here["machine"]["gpu"] = named["nvidia-smi"].output.splitlines()
        result = {**here, "versions": record.versions_in(named["lockstep info"].output), "revision": self.version(),
                  "benchmark": "gpu_suite", "plan": self.options.plan, "seconds": round(self.now(), 1), "parts": self.parts,
                  "comparisons": comparisons, "programs": [run.line() for run in self.runs]}
        record.write(self.options.out / "gpu_suite.json", result)

    def keep_runs(self):
        runs = pathlib.Path(self.names["scratch"], "runs")
        with tarfile.open(self.options.out / "runs.tar.xz", "w:xz", preset=1) as archive:
            for file in sorted(path for pattern in ("*.json*", "*.csv") for path in runs.rglob(pattern)):
                archive.add(file, file.relative_to(runs))

    def end(self, exit_code):
        """Ends the kit without joining its threads: they may wait for processes that never end."""
        kill_all(os.getpid())
        subprocess.Popen(["rm", "-rf", self.names["scratch"]], start_new_session=True)
        os._exit(exit_code)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: parser.exit(64, f"gpu_suite.py: {message}; see --help\n")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="FOLDER", help="folder for the results")
    unpacked = HERE.parent.parent
    parser.add_argument("--bundle", type=pathlib.Path, default=unpacked if (unpacked / "share/version").exists() else None,
                        help="archive or unpacked folder (default: the bundle that contains this file)")
    parser.add_argument("--cifar10", type=pathlib.Path, metavar="PATH",
                        help="archive or folder of train/CLASS/*.jpg and test/CLASS/*.jpg; trainings need it")
    parser.add_argument("--plan", choices=gpu_plan.PLANS, default="first")
    parser.add_argument("--parts", nargs="+", metavar="NAME", help="run only these parts of the plan, after the smoke test")
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch (default: this one)")
    parser.add_argument("--scale", type=float, default=1, help="factor for every time limit, for a rehearsal")
    options = parser.parse_args()
    unknown = set(options.parts or ()) - {part.name for part in gpu_plan.PLANS[options.plan]}
    if unknown:
        parser.error(f"--plan {options.plan} has no part \"{unknown.pop()}\"; it has "
                     f"{', '.join(part.name for part in gpu_plan.PLANS[options.plan])}")
    if options.bundle is None:
        parser.error("--bundle is missing: create a bundle with launch/bundle.sh BUILD_FOLDER --programs kit")
    for name in ("bundle", "cifar10"):
        path = getattr(options, name)
        if path and not path.is_dir() and not (path.is_file() and tarfile.is_tarfile(path)):
            parser.error(f"--{name} {path} is neither a folder nor an archive that this Python can unpack. To convert a "
                         "file of zstd: zstd -dc FILE.tar.zst | xz >FILE.tar.xz")
        setattr(options, name, path and path.resolve())
    return options


def main():
    options = parse_arguments()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        options.out = options.out.resolve()
        kit = Kit(options, tempfile.mkdtemp(prefix="lockstep-kit-"), Clock(options.scale))
    except OSError as error:
        print(f"gpu_suite.py: cannot write {options.out}: {error.strerror}", file=sys.stderr)
        return 74
    seconds = gpu_plan.TOTAL_SECONDS * options.scale
    threading.Timer(seconds, kit.end, [70]).start()
    faulthandler.dump_traceback_later(seconds + 3, exit=True)  # even if the interpreter hangs
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: kit.end(70))
    try:
        kit.run_plan(part for part in gpu_plan.PLANS[options.plan]
                     if not options.parts or part.name in ("prepare", "smoke", *options.parts))
        kit.write_results()
        kit.keep_runs()
        kit.end(70 if any(part["status"] == "failed" for part in kit.parts.values()) else 0)
    except BaseException:
        traceback.print_exc()
        kit.end(70)


if __name__ == "__main__":
    sys.exit(main())
