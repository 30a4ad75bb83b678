#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""signals_test.py LOCKSTEP [--cells N] [--only NUMBER ..] [--seed S]: sends signals that ask a job to stop,
in every phase of its work.

A cell holds a rank in a phase (LOCKSTEP_HOLD), sends a signal once or twice to a rank or to the launcher,
releases the rank and checks the end. The job ends within its grace period with the exit code of
launch/README.md. The checkpoint has every step that was done before the signal. No process, lock, temporary
file or file in /dev/shm is left. The same command resumes and ends with the digest of an undisturbed job. The
cells cover as many pairs of phase, signal, target and number of signals as possible: 64 cells cover all
pairs. LOCKSTEP_SIGNAL_CELLS sets their number, at most 336.

Exit codes: 0, 1 if a cell fails."""

import argparse
import concurrent.futures
import ctypes
import dataclasses
import fcntl
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
import random_faults  # tests/random_faults.py

GRACE = 30
LONGEST = 90
SIGNALS = ("INT", "TERM", "HUP", "USR1", "XCPU", "QUIT")
# Phases of a training before it can save a checkpoint, and phases in which it can.
EARLY, TRAINING = ("start", "plan", "preload"), ("step", "evaluation", "checkpoint", "export")
PHASES = (*EARLY, *TRAINING, "sweep", "tune", "predict")
TARGETS = ("rank 0", "rank 1", "launcher")
FORWARDED = ("USR1", "XCPU")  # by mpirun; on INT, TERM and HUP mpirun sends TERM to its ranks and ends with 1
SETTINGS = {"data.format": "synthetic", "data.synthetic.height": 8, "data.synthetic.width": 8, "data.synthetic.channels": 1,
            "data.synthetic.train_samples": 320, "data.synthetic.test_samples": 64, "data.mean": "[]", "data.deviation": "[]",
            "train.batch": 16, "train.epochs": 3, "train.threads": 1, "kernels.choose": "direct", "run.measure_peak": "false",
            "run.monitor_seconds": 0, "run.log_every": 1, "run.grace_seconds": GRACE}
# Seconds that mpirun waits between SIGCONT, SIGTERM and SIGKILL to its ranks, even if the ranks have ended. The first
# number is for signals that make mpirun end its ranks. On a busy machine a checkpoint takes longer: ranks that mpirun
# may have killed must only resume. The second is for ranks that end by themselves: when one has ended, its peer has
# saved its part or has nothing to save.
KILL_AFTER, KILL_AFTER_END = 3, 2
# mpirun forwards no output while it waits, so the ranks' standard error goes to a separate file.
RANKS_LOG = "ranks_log"


@dataclasses.dataclass(frozen=True)
class Cell:
    phase: str
    signal: str
    target: str
    times: int
    held: int = 0  # the rank that is held

    def __str__(self):
        return f"{self.phase}, rank {self.held} held: SIG{self.signal} to {self.target}" + (", twice" if self.times == 2 else "")


class Wrong(Exception):
    pass


def possible(cell):
    return cell.phase != "sweep" or cell.target == "rank 0"  # a sweep is one process, without a launcher


def all_cells(chance):
    cells = [Cell(*parts, held=chance.randrange(2)) for parts in itertools.product(PHASES, SIGNALS, TARGETS, (1, 2))]
    cells = [dataclasses.replace(cell, held=0) if cell.phase in ("sweep", "export") else cell for cell in cells if possible(cell)]
    chance.shuffle(cells)
    return cells


def pairs_of(cell):
    return set(itertools.combinations((("phase", cell.phase), ("signal", cell.signal), ("target", cell.target),
                                       ("times", cell.times)), 2))


def chosen_cells(count, chance):
    """Chooses greedily: the next cell has the most pairs that no earlier cell has."""
    left, seen, chosen = all_cells(chance), set(), []
    while left and len(chosen) < count:
        best = max(left, key=lambda cell: len(pairs_of(cell) - seen))
        left.remove(best)
        seen |= pairs_of(best)
        chosen.append(best)
    return chosen


def processes_of(folder):
    """{process: (name, rank)} of the running processes that were started for this folder."""
    return {process: (name, rank) for process, name, rank in random_faults.processes_of(folder)}


def blocks_or_handles(process, number):
    """True if the process has blocked the signal or installed a handler."""
    lines = dict(line.split(":\t") for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines() if ":\t" in line)
    return any(int(lines[name], 16) >> (number - 1) & 1 for name in ("SigBlk", "SigCgt"))


def has_connected(process):
    """True if the process maps data of mpirun's PMIx: version 4 and before, or 5."""
    try:
        maps = pathlib.Path(f"/proc/{process}/maps").read_text()
    except OSError:  # the process has ended
        return False
    return "pmix_dstor" in maps or "pmix-gds" in maps


def wait_for(condition, what, seconds=LONGEST):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Wrong(f"timed out after {seconds} s waiting for {what}")
        time.sleep(0.02)


has_own_shared_memory = False  # of this process


def own_shared_memory():
    """Mounts a private /dev/shm for this process and its children, so that each file left there is theirs.
    Without root it does not, and files left there are not checked."""
    global has_own_shared_memory
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private, recursive = 0x00020000, 1 << 18, 0x4000
    has_own_shared_memory = (libc.unshare(new_mounts) == 0
                             and libc.mount(b"none", b"/", None, private | recursive, None) == 0
                             and libc.mount(b"shm", b"/dev/shm", b"tmpfs", 0, None) == 0)
    if not has_own_shared_memory:
        print("left out: files in /dev/shm, because this system permits no private one", file=sys.stderr)


def is_locked(path):
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Job:
    """One command, in its own folder."""

    def __init__(self, lockstep, cell, folder):
        self.lockstep, self.cell, self.folder = lockstep, cell, folder
        self.run_dir, self.hold = folder / "run", folder / "held"
        self.said, self.process = "", None

    def settings(self):
        return {**SETTINGS, "run.dir": self.run_dir, **({"run.checkpoint_every": 8} if self.cell.phase == "checkpoint" else {}),
                **({"data.loader": "preload"} if self.cell.phase == "preload" else {}),
                **({"data.synthetic.test_samples": 10240} if self.cell.phase == "evaluation" else {})}

    def flags(self):
        return [part for name, value in self.settings().items() for part in ("--set", f"{name}={value}")]

    def mpirun(self):
        return ("mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", "--mca", "odls_base_sigkill_timeout",
                KILL_AFTER if Runner.kills_ranks(self.cell) else KILL_AFTER_END, "sh", "-c", f'exec "$0" "$@" 2>> {RANKS_LOG}')

    def command(self):
        if self.cell.phase == "sweep":
            told = {**SETTINGS, "run.checkpoint_every": 10 ** 12}
            lines = ["[sweep]", 'config = "fashion_mnist_mlp"', 'method = "grid"', "jobs = 1", f'dir = "{self.run_dir}"',
                     "set = " + json.dumps([f"{name}={value}" for name, value in told.items()]), "[keys]",
                     "optimizer.learning_rate = [0.01, 0.02]"]
            (self.folder / "sweep.toml").write_text("\n".join(lines) + "\n")
            return [self.lockstep, "sweep", self.folder / "sweep.toml"]
        if self.cell.phase == "tune":
            return [*self.mpirun(), self.lockstep, "tune", "fashion_mnist_mlp", *self.flags(), "--steps", "60"]
        if self.cell.phase == "predict":
            return [*self.mpirun(), self.lockstep, "predict", self.folder / "weights.safetensors", self.folder / "images"]
        # Ranks agree to stop every few milliseconds. Slower steps keep the training from ending earlier.
        return [*self.mpirun(), self.lockstep, "train", "fashion_mnist_mlp", *self.flags(), "--inject", "slow:rank=0,step=1,ms=5",
                "--resume", "auto", "--digest", self.folder / "digest", "--export", self.folder / "weights.safetensors"]

    def start(self, held=None):
        # An mpirun fails if another one removes their common folder during its start.
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_orte_tmpdir_base": str(self.folder / "mpirun")}
        if held is not None:
            environment["LOCKSTEP_HOLD"] = f"{self.cell.phase}:{held}:{self.hold}"
        (self.folder / RANKS_LOG).unlink(missing_ok=True)
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen([str(part) for part in self.command()], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT, env=environment, cwd=self.folder, start_new_session=True,
                                            restore_signals=True, preexec_fn=default_signals)

    def log(self):
        return "".join(path.read_text(errors="replace") for path in (self.folder / "log", self.folder / RANKS_LOG) if path.exists())

    def end(self):
        """Waits until no process of the job is left, and returns the exit code as a shell reports it."""
        try:
            code = self.process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            raise Wrong(f"the job did not end within {LONGEST} s") from None
        finally:
            self.said = self.log()
        wait_for(lambda: not processes_of(self.folder), "the end of its processes", GRACE)
        return code if code >= 0 else 128 - code

    def kill(self):
        for process in processes_of(self.folder):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.process is not None:
            self.process.wait()


def default_signals():
    for name in ("INT", "QUIT"):
        signal.signal(getattr(signal, "SIG" + name), signal.SIG_DFL)


class Runner:
    def __init__(self, lockstep):
        self.lockstep = lockstep

    def weights(self, folder):
        """Exports a network and writes images, for predict."""
        flags = Job(self.lockstep, Cell("step", "", "", 1), folder).flags()
        done = subprocess.run([self.lockstep, "train", "fashion_mnist_mlp", *flags, "--set", "train.steps=1",
                               "--export", folder / "weights.safetensors"], capture_output=True, text=True)
        if done.returncode:
            raise Wrong(f"no network for predict: {done.stdout}{done.stderr}")
        (folder / "images").mkdir()
        for number in range(8):
            write_png(folder / "images" / f"{number}.png", number)

    @staticmethod
    def process_of(job, rank):
        def found():
            return [process for process, (name, of) in processes_of(job.folder).items() if name == "lockstep" and of == rank]
        # A rank that is not held may not have started yet.
        wait_for(lambda: len(found()) == 1, f"rank {rank} as one process called lockstep: {processes_of(job.folder)}", GRACE)
        return found()[0]

    def send(self, job):
        """Sends the signal to the target and returns the time at which it did. First waits until each rank
        that the signal reaches blocks or handles it: a rank that is not held may not do so yet, and the signal
        would kill it."""
        number = getattr(signal, "SIG" + job.cell.signal)
        if job.cell.phase == "sweep":
            reached = [job.process.pid]
        else:
            ranks = {"rank 0": [0], "rank 1": [1], "launcher": [0, 1]}[job.cell.target]
            reached = [self.process_of(job, rank) for rank in ranks]
        for process in reached:
            wait_for(lambda: blocks_or_handles(process, number), f"process {process} that blocks or handles it", GRACE)
        # If mpirun ends a job while a rank connects to it, Open MPI 4.1 may hang ("PMIX ERROR: UNREACHABLE"). So the
        # rank that is not held has connected (it maps mpirun's data); the held one does not connect.
        other = self.process_of(job, 1 - job.cell.held) if job.cell.phase == "start" else None
        if other is not None:
            wait_for(lambda: has_connected(other), "a rank to connect", GRACE)
        target = job.process.pid if job.cell.target == "launcher" else reached[0]
        sent = time.monotonic()
        os.kill(target, number)  # throws if the process does not exist
        if job.cell.times == 2:
            time.sleep(0.1)
            try:
                os.kill(target, number)
            except ProcessLookupError:
                pass  # the first signal has ended it
        if other in reached and not self.kills_launcher(job.cell):
            wait_for(lambda: other not in processes_of(job.folder), "the end of the rank that is not held", GRACE)
        # A launcher forwards the signal with a delay. A rank that can save acknowledges it.
        if job.cell.phase in TRAINING and not self.kills_launcher(job.cell):
            wait_for(lambda: "asks to stop" in job.log() or not self.has_ranks(job), "the signal", GRACE)
        return sent

    @staticmethod
    def has_ranks(job):
        return any(rank >= 0 for _, rank in processes_of(job.folder).values())

    def end_before_kill(self, job, sent):
        """Waits for the end of the ranks. False if mpirun may have sent them SIGKILL."""
        kill = sent + 2 * KILL_AFTER - 1
        while self.has_ranks(job):
            if time.monotonic() > kill:
                return False
            time.sleep(0.02)
        return time.monotonic() < kill

    @staticmethod
    def kills_ranks(cell):
        return cell.target == "launcher" and cell.phase != "sweep" and cell.signal in ("INT", "TERM", "HUP")

    @staticmethod
    def kills_launcher(cell):
        return cell.target == "launcher" and cell.phase != "sweep" and (
            cell.signal == "QUIT" or (cell.times == 2 and cell.signal not in FORWARDED))

    def expected_codes(self, cell):
        if cell.target == "launcher" and cell.phase != "sweep" and cell.signal not in FORWARDED:
            return (131,) if cell.signal == "QUIT" else (1,)
        return (0,) if cell.phase == "export" else (75,)

    def steps_done(self, job):
        steps = job.run_dir / "steps.jsonl"
        return len(steps.read_text().splitlines()) if steps.exists() else 0

    @staticmethod
    def newest(job):
        return max((int(entry.name.split("-")[1]) for entry in job.run_dir.glob("checkpoints/step-?????????")), default=0)

    def expect_nothing_left(self, job, shared_before, whole):
        left = [entry for entry in job.folder.rglob("*") if ".partial" in entry.name]
        if left and whole:
            raise Wrong(f"the job left {left}")
        # A process that ends loses its command line before it closes its files and releases the lock.
        wait_for(lambda: not is_locked(job.run_dir / "run.lock"), "the end of the lock", GRACE)
        shared = set(os.listdir("/dev/shm")) - shared_before
        if shared and whole and has_own_shared_memory:
            raise Wrong(f"the job left {sorted(shared)} in /dev/shm")

    def cell(self, cell, folder, expected):
        job = Job(self.lockstep, cell, folder)
        if cell.phase == "predict":
            self.weights(folder)
        shared_before = set(os.listdir("/dev/shm"))
        try:
            job.start(cell.held)
            wait_for(lambda: job.hold.exists() or job.process.poll() is not None, f"rank {cell.held} in {cell.phase}")
            if job.process.poll() is not None:
                raise Wrong(f"the job ended with {job.process.returncode} before a rank was held")
            done = self.steps_done(job)
            sent = self.send(job)
            job.hold.unlink()
            whole = not self.kills_launcher(cell) and (not self.kills_ranks(cell) or self.end_before_kill(job, sent))
            code = job.end()
            seconds = time.monotonic() - sent
            if code not in self.expected_codes(cell):
                raise Wrong(f"the job ended with {code}, expected is one of {self.expected_codes(cell)}")
            if seconds > GRACE + 10:
                raise Wrong(f"the job took {seconds:.0f} s to end")
            if cell.phase in TRAINING and whole and code != 0 and self.newest(job) < done:
                raise Wrong(f"{self.newest(job)} of {done} steps are saved")
            if cell.phase == "evaluation" and whole and (job.run_dir / "metrics.jsonl").read_text():
                raise Wrong("the evaluation was not cancelled")
            self.expect_nothing_left(job, shared_before, whole)
            first = job.said
            job.start()
            again = job.end()
            if again != 0:
                raise Wrong(f"the same command then ended with {again}; the first output was:\n{first}")
            if cell.phase in (*EARLY, *TRAINING) and (folder / "digest").read_text() != expected:
                raise Wrong("the digest differs from that of an undisturbed run")
            self.expect_nothing_left(job, shared_before, whole)
        except Wrong as wrong:
            return f"{wrong}\n{job.log()[-3000:]}"
        finally:
            job.kill()
        return None


def write_png(path, shade):
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes((shade * 30 + row * 3 + column) % 256 for column in range(8)) for row in range(8))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
                     + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def try_cell(lockstep, cell, expected):
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lockstep_signals_") as folder:
        wrong = Runner(lockstep).cell(cell, pathlib.Path(folder), expected)
    return wrong, time.monotonic() - begin


def undisturbed(lockstep):
    with tempfile.TemporaryDirectory(prefix="lockstep_signals_") as folder:
        job = Job(lockstep, Cell("step", "", "", 1), pathlib.Path(folder))
        job.start()
        if job.end() != 0:
            raise SystemExit(f"undisturbed it failed:\n{job.said}")
        return (job.folder / "digest").read_text()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lockstep", type=os.path.abspath)
    parser.add_argument("--cells", type=int, default=int(os.environ.get("LOCKSTEP_SIGNAL_CELLS", 14)))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+")
    parser.add_argument("--phases", nargs="+")
    parser.add_argument("--jobs", type=int, default=4)  # a cell mostly waits for mpirun
    options = parser.parse_args()
    cells = list(enumerate(chosen_cells(options.cells, random.Random(options.seed))))
    cells = [(number, cell) for number, cell in cells if (options.only is None or number in options.only)
             and (options.phases is None or cell.phase in options.phases)]
    expected = undisturbed(options.lockstep)
    wrong = 0
    with concurrent.futures.ProcessPoolExecutor(options.jobs, multiprocessing.get_context("fork"),
                                                initializer=own_shared_memory) as pool:
        tried = [pool.submit(try_cell, options.lockstep, cell, expected) for _, cell in cells]
        for (number, cell), result in zip(cells, tried):
            why, seconds = result.result()
            print(f"{number}: {cell}: {'right' if why is None else 'WRONG: ' + why} ({seconds:.1f} s)", flush=True)
            wrong += why is not None
    print(f"{len(cells) - wrong} of {len(cells)} cells are right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
