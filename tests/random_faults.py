#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Disturbs small trainings at random, by injected faults (--inject) and by signals from outside, and checks
the end: each must end with an exit code that launch/program/inject/README.md documents for its fault, lose no saved
step, and resume to the digest and the metrics of an undisturbed training.

  tests/random_faults.py                          # 200 faults, with a seed that is printed
  tests/random_faults.py --seed 7 --only 31       # repeats one of them, with its whole output

The plan of a row depends only on the seed and its number; the exact time of a signal depends on the machine.
Half of the plans use two nodes (tests/nodes.sh) if namespaces can be made."""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import record  # noqa: E402
import training_runs  # noqa: E402

STEPS = 90
COMMON = {"train.steps": STEPS, "train.epochs": 100, "train.threads": 1, "train.batch": 4, "kernels.choose": "direct",
          "optimizer.learning_rate": 0.01, "run.check_every": 7}
# Covers the state that a resumed training must restore: fp16's loss scale, accumulation, dropout,
# augmentation, running statistics of each rank, residuals of codecs, gradients in flight into the next step.
TRAININGS = {
    "mlp": {"model.name": "mlp"},
    "cnn, fp16, accumulation": {"model.name": "cnn", "model.dropout": 0.2, "train.precision": "fp16",
                                "train.accumulation": 2, "train.loss_scale": 1e9, "train.loss_scale_interval": 20,
                                "data.crop_padding": 1, "data.horizontal_flip": "true", "schedule.name": "cosine"},
    "cnn, sign": {"model.name": "cnn", "comm.codec": "sign", "comm.compress_within_node": "true"},
    "cnn, cross barrier": {"model.name": "cnn", "comm.cross_barrier": "true"},
    "cnn, powersgd": {"model.name": "cnn", "comm.codec": "powersgd", "comm.powersgd.start_step": 3,
                      "comm.compress_within_node": "true"},
}
SAME = ("epoch", "steps", "train_loss", "test_loss", "test_accuracy", "learning_rate", "skipped_steps", "loss_scale")
LONGEST = 120  # seconds that a job may take, the watchdog's included
PATIENCE = 60  # comm.timeout_seconds of a job that the watchdog must not end, even if the disk is slow
FAULT = "an injected fault"  # A rank prints it when it starts to hang on purpose.
HANG = "the job hangs and ends with code 75"  # the watchdog's report


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault. codes: exit codes of a job of several ranks, as in launch/program/inject/README.md. A signal
    that could not be delivered counts as an error. timeout: comm.timeout_seconds. It may be short where the fault
    makes the job hang. A busy machine may exceed it before an injected fault: then the job runs again."""
    codes: tuple
    signal: int = None  # sent from outside; None: the fault is made by --inject
    to: str = "rank"  # or "mpirun"
    early: bool = False  # the signal may also come before the first step
    timeout: int = PATIENCE
    hangs: bool = False  # the fault makes the job hang


KINDS = {
    "kill": Kind((137,)),
    "kill-saving": Kind((137, 0)),
    "stop": Kind((75,), timeout=3, hangs=True),
    "hang": Kind((75,), timeout=3, hangs=True),
    "slow": Kind((0,)),
    "slower": Kind((0,)),
    "fail": Kind((70,)),
    "oom": Kind((74,)),
    "disk-full": Kind((74, 0)),  # 0 where rank 0 still has room
    "link-down": Kind((75,), timeout=3, hangs=True),
    "nan": Kind((70, 0)),  # 0 in fp16, which skips the step
    "bitflip": Kind((70,)),
    "wrong-count": Kind((70,)),
    "wrong-op": Kind((70,)),
    "KILL to a rank": Kind((137,), signal.SIGKILL, early=True),
    "KILL to mpirun": Kind((137,), signal.SIGKILL, "mpirun", early=True, timeout=20),
    "STOP to a rank": Kind((75,), signal.SIGSTOP, timeout=20, hangs=True),
    "TERM to a rank": Kind((75,), signal.SIGTERM),
    "TERM to mpirun": Kind((1, 75), signal.SIGTERM, "mpirun"),
    "USR1 to mpirun": Kind((75,), signal.SIGUSR1, "mpirun"),
    "USR2 to mpirun": Kind((0,), signal.SIGUSR2, "mpirun"),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    number: int
    training: str
    per_node: tuple  # ranks
    kind: str
    rank: int
    step: int
    milliseconds: float  # delay in a save, delay of each step, or delay after the start of the training
    checkpoint_every: int
    grace: int  # seconds that mpirun gives ranks to end

    @property
    def ranks(self):
        return sum(self.per_node)

    def __str__(self):
        where = f"rank {self.rank}" if "mpirun" not in self.kind else ""
        when = f"{self.milliseconds:.0f} ms" if KINDS[self.kind].signal else f"step {self.step}"
        return (f"{self.training}; ranks {'+'.join(map(str, self.per_node))}, saved every {self.checkpoint_every}; "
                f"{self.kind}, {', '.join(part for part in (where, when) if part)}")

    def flags(self):
        """Flags that make the fault. For a signal, steps are slowed, so that the training takes several times
        as long as the signal's delay."""
        if KINDS[self.kind].signal:
            return ["--inject", "slow:rank=0,step=1,ms=40"]
        amount = {"kill-saving": f",ms={self.milliseconds / 100:.2f}", "slow": f",ms={self.milliseconds / 50:.1f}"}
        return ["--inject", f"{self.kind}:rank={self.rank},step={self.step}{amount.get(self.kind, '')}"]


def plan_of(seed, number, nodes_possible, kinds):
    """The plan of a row. Kinds take turns, so that each occurs equally often."""
    chance = random.Random(f"{seed}:{number}")
    kind = kinds[number % len(kinds)]
    ranks = chance.choice((2, 3, 4))
    two = nodes_possible and (kind == "link-down" or chance.random() < 0.5)
    first = chance.randint(1, ranks - 1)
    return Plan(number, chance.choice(list(TRAININGS)), (first, ranks - first) if two else (ranks,), kind,
                chance.randrange(ranks), chance.randint(1, STEPS), chance.uniform(0, 900), chance.choice((5, 10, 25)),
                chance.choice((0, 1, 2)))


class Wrong(Exception):
    """A row behaved differently than documented."""


def last_written(said):
    """The last step whose checkpoint the output names as written; 0 without one."""
    return max(map(int, re.findall(r"\bcheckpoint .*/step-(\d+)\S*: .*\bwritten\b", said)), default=0)


def processes_of(folder):
    """[(process, name, rank)] of the processes whose command line names this folder."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if str(folder).encode() not in (entry / "cmdline").read_bytes():
                continue
            environment = dict(pair.split(b"=", 1) for pair in (entry / "environ").read_bytes().split(b"\0") if b"=" in pair)
            found.append((int(entry.name), (entry / "comm").read_text().strip(),
                          int(environment.get(b"OMPI_COMM_WORLD_RANK", b"-1"))))
        except OSError:  # it has just ended
            continue
    return found


class Runner:
    def __init__(self, options, folder):
        self.lockstep, self.folder, self.options = options.bin / "lockstep", folder, options
        self.images = folder / "images"
        self.images.mkdir()
        training_runs.write_images(self.images, 448, 60, 8)
        self.expected, self.lock = {}, collections.defaultdict(threading.Lock)
        (folder / "node.sh").write_text("log=$1\nshift\necho 3 >/proc/sys/net/ipv4/tcp_retries2\nexec \"$@\" 2>>\"$log\"\n")

    def command(self, plan, run_dir, flags, timeout):
        told = {**COMMON, **TRAININGS[plan.training], "data.format": "idx", "data.path": self.images, "run.dir": run_dir,
                "run.checkpoint_every": plan.checkpoint_every, "comm.timeout_seconds": timeout}
        settings = training_runs.overrides(told)
        # The shortest preset: the settings override all that matters.
        command = [self.lockstep, "train", "fashion_mnist_mlp", *settings, *flags]
        if len(plan.per_node) == 1:
            return ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", plan.ranks, *command]
        # node.sh lets a connection to a dead node fail after seconds instead of a quarter of an hour. Ranks write
        # standard error to the log directly, because mpirun receives nothing over a link that is down.
        return [training_runs.NODES, "1gbit", len(plan.per_node), ",".join(map(str, plan.per_node)), "sh",
                self.folder / "node.sh", run_dir.with_suffix(".log"), *command]

    def run(self, plan, run_dir, flags, disturb=None, grace=0, timeout=PATIENCE):
        """Returns (exit code, output)."""
        log = run_dir.with_suffix(".log")
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_odls_base_sigkill_timeout": str(grace),
                       # An mpirun fails if another one removes their common folder during its start.
                       "OMPI_MCA_orte_tmpdir_base": str(run_dir.with_suffix(".mpirun"))}
        command = [str(part) for part in self.command(plan, run_dir, flags, timeout)]
        log.unlink(missing_ok=True)
        with log.open("ab") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                       env=environment, start_new_session=True)
        begin = time.monotonic()
        try:
            delivered = disturb is None or disturb(process)
            code = process.wait(LONGEST)
            if not delivered:
                raise Wrong(f"it ended with exit code {code} before the signal:\n{log.read_text(errors='replace')}")
            # Ranks whose mpirun was killed notice it and end by themselves.
            while left := processes_of(run_dir):
                if time.monotonic() - begin > LONGEST:
                    raise Wrong(f"the training ended with exit code {code}, but processes still run: {left}")
                time.sleep(0.02)
        except subprocess.TimeoutExpired:
            raise Wrong(f"the training did not end within {LONGEST} s:\n{log.read_text(errors='replace')}") from None
        finally:
            for number, _, _ in processes_of(run_dir):
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.wait()
        return (code if code >= 0 else 128 - code), log.read_text(errors="replace")

    def disturbance(self, plan, run_dir):
        kind = KINDS[plan.kind]

        def disturb(process):
            while not kind.early and process.poll() is None and not (run_dir / "run.json").exists():
                time.sleep(0.005)
            time.sleep(plan.milliseconds / 1000)
            while process.poll() is None:
                for number, name, rank in processes_of(run_dir):
                    if name == "mpirun" if kind.to == "mpirun" else name == "lockstep" and rank == plan.rank:
                        try:
                            os.kill(number, kind.signal)
                        except ProcessLookupError:
                            continue
                        return True
                time.sleep(0.005)
            return False
        return disturb if kind.signal else None

    def undisturbed(self, plan):
        """(digest, metrics) of the training without a fault, always measured on one node."""
        key = (plan.training, plan.ranks)
        with self.lock[key]:
            if key not in self.expected:
                run_dir = self.folder / f"whole_{list(TRAININGS).index(plan.training)}_{plan.ranks}"
                whole = dataclasses.replace(plan, per_node=(plan.ranks,))
                code, said = self.run(whole, run_dir, ["--digest", run_dir.with_suffix(".digest")])
                if code != 0:
                    raise Wrong(f"the undisturbed training ended with exit code {code}:\n{said}")
                self.expected[key] = self.outcome(run_dir)
            return self.expected[key]

    @staticmethod
    def epochs_of(run_dir):
        return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]

    def outcome(self, run_dir):
        lines = self.epochs_of(run_dir)
        return run_dir.with_suffix(".digest").read_text(), [[line[name] for name in SAME] for line in lines]

    @staticmethod
    def newest(run_dir):
        names = [entry.name for entry in run_dir.glob("checkpoints/step-*") if entry.suffix != ".partial"]
        return max((int(name.split("-")[1].split(".")[0]) for name in names), default=None)

    def expect_whole(self, plan, run_dir, said):
        if self.outcome(run_dir) != self.undisturbed(plan):
            got, wanted = self.outcome(run_dir), self.undisturbed(plan)
            what = "digest differs" if got[0] != wanted[0] else f"metrics are {got[1]}, expected {wanted[1]}"
            raise Wrong(f"the {what}:\n{said}")

    def run_until_fault(self, plan, run_dir, flags):
        """Returns (exit code, output). Prints the output of a job that hung before its fault, and runs it again
        with twice the limit. Throws Wrong if that exceeds PATIENCE, and if the job ends in a way that its fault does not
        cause."""
        kind, timeout = KINDS[plan.kind], KINDS[plan.kind].timeout
        while True:
            code, said = self.run(plan, run_dir, flags, self.disturbance(plan, run_dir), plan.grace, timeout)
            if code not in kind.codes or (code == 75 and HANG in said and not kind.hangs):
                raise Wrong(f"the training ended with exit code {code}:\n{said}")
            if code != 75 or kind.signal or FAULT in said:
                return code, said
            if 2 * timeout > PATIENCE:
                raise Wrong(f"the training ended with exit code {code} before its fault:\n{said}")
            print(f"{plan.number}: a job ended before its fault, with comm.timeout_seconds={timeout}; its output:\n{said}",
                  flush=True)
            timeout *= 2
            shutil.rmtree(run_dir, ignore_errors=True)

    def row(self, plan):
        """Runs the plan, resumes it, and returns the result. Throws Wrong."""
        run_dir = self.folder / f"run_{plan.number}"
        digest = ["--digest", run_dir.with_suffix(".digest"), "--resume", "auto"]
        code, said = self.run_until_fault(plan, run_dir, [*plan.flags(), *digest])
        if code == 0 and plan.kind == "nan" and any(line["skipped_steps"] for line in self.epochs_of(run_dir)):
            return {"code": code, "saved": STEPS, "end": "step skipped"}
        if code == 0:
            self.expect_whole(plan, run_dir, said)
            return {"code": code, "saved": STEPS, "end": "same bits"}
        saved, written = self.newest(run_dir), last_written(said)
        if (saved or 0) < written:
            raise Wrong(f"exit code {code} left step {saved} as the newest checkpoint, after that of step {written} was "
                        f"written:\n{said}")
        again, told = self.run(plan, run_dir, digest)
        if again != 0:
            raise Wrong(f"after exit code {code} the resumed training ended with exit code {again}:\n{said}\n{told}")
        if saved is not None and f"training resumes after step {saved} from " not in told:
            raise Wrong(f"after exit code {code} the training did not resume from step {saved}:\n{said}\n{told}")
        self.expect_whole(plan, run_dir, said + told)
        return {"code": code, "saved": saved or 0, "end": "same bits"}


def nodes_are_possible():
    return subprocess.run([training_runs.NODES, "none", "1", "1", "true"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def try_row(runner, plan):
    begin = time.monotonic()
    try:
        return {**runner.row(plan), "seconds": time.monotonic() - begin}
    except Wrong as wrong:
        return {"wrong": str(wrong), "seconds": time.monotonic() - begin}


def summary(rows):
    """Counts of results for each kind."""
    table = []
    for kind in KINDS:
        mine = [result for plan, result in rows if plan.kind == kind]
        if mine:
            codes = collections.Counter(result.get("code") for result in mine if "wrong" not in result)
            table.append({"kind": kind, "faults": len(mine), "codes": {str(code): codes[code] for code in sorted(codes)},
                          "went_on": sum(result.get("end") == "same bits" and result["code"] != 0 for result in mine),
                          "ended_undisturbed": sum(result.get("end") == "same bits" and result["code"] == 0
                                                   for result in mine),
                          "steps_skipped": sum(result.get("end") == "step skipped" for result in mine),
                          "wrong": sum("wrong" in result for result in mine)})
    return table


def told(plan, result):
    if "wrong" in result:
        return f"{plan.number}: {plan}: WRONG"
    after = f", {result['end']} after step {result['saved']}" if result["code"] else f", {result['end']}"
    return f"{plan.number}: {plan}: {result['code']}{after}"


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/cpu/bin")
    parser.add_argument("--seed", type=int, default=random.randrange(10 ** 6))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", type=int, help="number of the only row to run")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="kinds of faults to make; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="number of concurrent trainings; default: 2")
    parser.add_argument("--one-node", action="store_true")
    parser.add_argument("--json", type=pathlib.Path, help="file for the result")
    options = parser.parse_args(arguments)
    options.bin = options.bin.resolve()
    return options


def main(arguments):
    options = parse_arguments(arguments)
    nodes = not options.one_node and nodes_are_possible()
    kinds = options.kinds or [kind for kind in KINDS if nodes or kind != "link-down"]
    numbers = range(options.count) if options.only is None else [options.only]
    plans = [plan_of(options.seed, number, nodes, kinds) for number in numbers]
    print(f"seed {options.seed}, {training_runs.counted(len(plans), 'fault')}" + ("" if nodes else ", one node"), flush=True)
    rows = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lockstep_faults_") as folder:
        runner = Runner(options, pathlib.Path(folder))
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for plan, result in zip(plans, pool.map(lambda plan: try_row(runner, plan), plans)):
                rows.append((plan, result))
                print(f"{told(plan, result)} ({result['seconds']:.1f} s)", flush=True)
                if "wrong" in result:
                    print(result["wrong"], flush=True)
    wrong = [plan.number for plan, result in rows if "wrong" in result]
    print(f"{len(rows) - len(wrong)} of {training_runs.counted(len(rows), 'fault')} ended as documented without losing a saved "
          f"step, in {time.monotonic() - begin:.0f} s" + (f"; wrong: {wrong}" if wrong else ""))
    if options.json:
        result = {"benchmark": "random_faults",
                  **record.circumstances(shlex.join(["tests/random_faults.py", *arguments]), options.bin / "lockstep"),
                  "seed": options.seed, "nodes": 2 if nodes else 1, "wrong": len(wrong), "by_kind": summary(rows),
                  "rows": [told(plan, result) for plan, result in rows]}
        record.write(options.json, result)
    return 70 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
