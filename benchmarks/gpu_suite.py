# SPDX-License-Identifier: Apache-2.0
"""Everything that needs an NVIDIA GPU in one run, from an unpacked bundle, offline, in less than 9 minutes: the tests
of label cuda; training steps beside PyTorch's (channels-last, autocast, eager and compiled), in turns; each kernel's
bytes per second; whole-step graphs against eager steps; ResNet-18 trained on CIFAR-10. Writes one JSON file, anew after each part: machine, versions,
and for each part its commands and outcome: ok, failed or skipped with the reason, or not reached in time.

Exit codes: 0 every part is ok, 64 wrong command line, 70 some part is not (the file tells), 74 the file cannot be
written, 78 this is no bundle, or the driver is too old for it."""

import argparse
import datetime
import functools
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import gpu_suite_tests
import record
import suite

HERE = pathlib.Path(__file__).resolve().parent
BUNDLE = HERE.parent.parent

# In the order of their worth: what is late is not reached. "limit" is each program's, in seconds.
RESNET50 = {"model": "resnet50", "batch": 256, "image": 224, "channels": 3, "classes": 1000, "steps": 20}
RESNET18 = {"model": "resnet18", "batch": 512, "image": 32, "channels": 3, "classes": 10, "steps": 60}
STEPS = {
    "step resnet50 fp16": {**RESNET50, "precision": "fp16", "target": 7500},
    "step resnet18 fp16": {**RESNET18, "precision": "fp16", "target": 60000},
    "step resnet18 batch 128 fp16": {**RESNET18, "batch": 128, "precision": "fp16"},
    "step resnet50 bf16": {**RESNET50, "precision": "bf16"},
    "step resnet18 bf16": {**RESNET18, "precision": "bf16"},
}
TRAIN = {f"train resnet18 {precision}": precision for precision in ("fp16", "bf16", "fp32")}
TRAIN_TARGET = 0.93  # of the test images, in the 30 epochs of the preset
PARTS = ["tests", "step resnet50 fp16", "step resnet18 fp16", "train resnet18 fp16", "kernel_bench", "graph_bench",
         "step resnet18 batch 128 fp16", "step resnet50 bf16", "step resnet18 bf16", "train resnet18 bf16",
         "train resnet18 fp32"]
# PyTorch's ways. Its graphs ("reduce-overhead") can only pay where steps are short.
WAYS = {"eager": [], "compiled": ["--compile"], "compiled, graphs": ["--compile", "reduce-overhead"]}
BENCH_FLAGS = {"kernel_bench": ["--device", "cuda", "--precision", "fp16", "--mib", "64", "256", "--repeats", "5"],
               "graph_bench": ["--device", "cuda", "--precision", "fp16", "--batch", "128"]}
LIMITS = {"tests": 150, "step": 100, "bench": 60, "train": 180}
FLAGS = ("model", "batch", "image", "channels", "classes", "steps", "precision", "device")


def parse_arguments():
    parser = argparse.ArgumentParser(prog="gpu_suite.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: parser.exit(64, f"gpu_suite.sh: {message}; see --help\n")
    parser.add_argument("--json", required=True, metavar="FILE", help="write everything here")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch (default: this one)")
    parser.add_argument("--rounds", type=int, default=2, help="turns that each side gets (default: 2)")
    parser.add_argument("--deadline", type=float, default=520, metavar="SECONDS",
                        help="nothing runs after this (default: 520)")
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS, metavar="PART",
                        help="parts: " + ", ".join(PARTS))
    parser.add_argument("--cifar10", metavar="FOLDER", type=pathlib.Path,
                        help="of train/CLASS/*.jpg and test/CLASS/*.jpg; without it nothing is trained")
    parser.add_argument("--rehearse", action="store_true",
                        help="for a machine without a GPU: PyTorch's side and training on the CPU, and little of both")
    return parser.parse_args()


def bundle_environment(python):
    """The environment that env.sh makes for the bundle's programs, and what it had to say. PyTorch's side keeps the
    one it was started in: it brings libraries of its own."""
    done = subprocess.run(["bash", "-c", 'source "$1" && env -0', "bash", BUNDLE / "env.sh"], capture_output=True,
                          text=True, check=False, env={**os.environ, "LOCKSTEP_PEER_PYTHON": python})
    if done.returncode != 0:
        print(done.stderr, end="", file=sys.stderr)
        sys.exit(done.returncode)
    pairs = (entry.split("=", 1) for entry in done.stdout.split("\0") if "=" in entry)
    return dict(pairs), done.stderr.splitlines()


class GpuSuite:
    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        self.end = time.monotonic() + options.deadline
        self.environment, said = bundle_environment(options.python)
        # Choices of kernels are made anew, and left to nobody.
        self.environment["XDG_CACHE_HOME"] = scratch
        self.peer_environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/inductor",
                                 "TRITON_CACHE_DIR": f"{scratch}/triton"}
        self.report = {"benchmark": "gpu_suite", "command": " ".join(["gpu_suite.sh", *sys.argv[1:]]),
                       "revision": record.revision(), "date": datetime.date.today().isoformat(),
                       "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                       "deadline_seconds": options.deadline, "rehearsal": options.rehearse,
                       "machine": self.describe_machine(), "versions": self.describe_versions(),
                       "environment": {"said": said, "LD_LIBRARY_PATH": self.environment.get("LD_LIBRARY_PATH"),
                                       "mpirun": self.environment.get("LOCKSTEP_MPIRUN")},
                       "parts": {}}

    def seconds_left(self):
        return self.end - time.monotonic()

    def output_of(self, command, environment=None):
        run = suite.execute(command, max(1, min(60, self.seconds_left())), environment)
        return run.output.strip() if run.status == "ok" else f"{run.command[0]}: {run.reason}"

    def describe_machine(self):
        processors = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                      if line.startswith("model name")]
        query = "name,uuid,driver_version,memory.total,mig.mode.current,clocks.max.sm,clocks.max.memory,power.limit"
        return {"gpu": self.output_of(["nvidia-smi", f"--query-gpu={query}", "--format=csv"]).splitlines(),
                "processor": processors[0] if processors else platform.machine(), "cores": os.cpu_count(),
                "system": platform.platform()}

    def describe_versions(self):
        torch = ("import torch; print('PyTorch', torch.__version__, 'CUDA', torch.version.cuda, "
                 "'cuDNN', torch.backends.cudnn.version())")
        return {"bundle": (BUNDLE / "share/version").read_text().strip(),
                "lockstep_info": self.output_of([BUNDLE / "bin/lockstep", "info"], self.environment).splitlines(),
                "python": platform.python_version(),
                "pytorch": self.output_of([self.options.python, "-c", torch], self.peer_environment)}

    def run(self, runs, command, environment, limit):
        """The program's JSON, or None; how it ended is kept in runs."""
        seconds = min(limit, self.seconds_left())
        if seconds < 5:
            done = suite.Run(command, "not reached", "the suite's time was over")
        elif command[0] == str(BUNDLE / "bin" / os.path.basename(command[0])) and not os.path.exists(command[0]):
            done = suite.Run(command, "skipped", f"the bundle has no program {os.path.basename(command[0])}")
        else:
            done = suite.execute_with_json(command, seconds, environment)
        entry = {"command": done.text.replace(f"{BUNDLE}/", ""), "status": done.status, "seconds": done.seconds}
        runs.append(entry | ({"reason": done.reason} if done.reason else {}))
        return done.result

    def compare_steps(self, case):
        own_case = {**case, "device": "cuda"}
        peer = {**case, "device": "cuda"}
        if self.options.rehearse:
            peer.update(device="cpu", model="resnet18", batch=8, image=32, steps=3, precision="bf16")
        command = [str(BUNDLE / "bin/step_bench"), *flags(own_case)]
        peer_command = [self.options.python, "-B", str(HERE / "peers/pytorch_step.py"), "--channels-last", *flags(peer)]
        runs = []
        ways = {name: functools.partial(self.run, runs, peer_command + way, self.peer_environment, LIMITS["step"])
                for name, way in WAYS.items() if name != "compiled, graphs" or case["model"] != "resnet50"}
        ours = {"lockstep": functools.partial(self.run, runs, command, self.environment, LIMITS["step"])}
        turns = suite.take_turns(ours | ways, self.options.rounds)
        row = {**worst(runs), **case, **suite.compare(turns), "runs": runs}
        print(f"  {suite.summary(row)}", flush=True)
        return row

    def bench(self, name):
        runs = []
        result = self.run(runs, [str(BUNDLE / "bin" / name), *BENCH_FLAGS[name]], self.environment, LIMITS["bench"])
        return {**worst(runs), "runs": runs, "result": result}

    def train(self, precision):
        if not self.options.cifar10:
            return {"status": "skipped", "reason": "no --cifar10 FOLDER"}
        folder = pathlib.Path(self.scratch) / f"train_{precision}"
        settings = [f"data.path={self.options.cifar10.resolve()}", f"run.dir={folder}",
                    f"data.loader_threads={max(1, (os.cpu_count() or 2) // 2)}", f"train.precision={precision}"]
        if self.options.rehearse:
            settings += ["world.device=cpu", "model.name=mlp", "train.epochs=2", "schedule.warmup_epochs=1"]
        else:
            settings += ["world.device=cuda"]
        command = [BUNDLE / "run", "-np", "1", "lockstep", "train", "cifar10_resnet18"]
        command += [text for setting in settings for text in ("--set", setting)]
        run = suite.execute(command, max(1, min(LIMITS["train"], self.seconds_left())), self.environment)
        row = {"status": run.status, "command": run.text.replace(f"{BUNDLE}/", ""), "precision": precision}
        if run.status != "ok":
            return {**row, "reason": run.reason}
        epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        seconds = sum(epoch["train_seconds"] + epoch["evaluation_seconds"] for epoch in epochs)
        row |= {"test_accuracy": epochs[-1]["test_accuracy"], "target": TRAIN_TARGET, "epochs": epochs,
                "samples_per_second": statistics.median(epoch["samples_per_second"] for epoch in epochs),
                "training_seconds": round(seconds, 1)}
        print(f"  {100 * row['test_accuracy']:.2f} % after {len(epochs)} epochs and {seconds:.0f} s, "
              f"{row['samples_per_second']:,.0f} samples/s", flush=True)
        return row

    def tests(self):
        end = min(self.end, time.monotonic() + LIMITS["tests"])
        return gpu_suite_tests.CudaTests(BUNDLE, self.environment, self.scratch, end).run()

    def run_part(self, part):
        if self.seconds_left() < 5:
            return {"status": "not reached", "reason": "the suite's time was over"}
        if part == "tests":
            return self.tests()
        if part in TRAIN:
            return self.train(TRAIN[part])
        return self.compare_steps(STEPS[part]) if part in STEPS else self.bench(part)

    def run_all(self):
        for part in PARTS:
            if part not in self.options.only:
                continue
            print(part, flush=True)
            begin = time.monotonic()
            try:
                outcome = self.run_part(part)
            except Exception as error:  # one part's trouble is not the others'
                outcome = {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
            outcome["seconds"] = round(time.monotonic() - begin, 1)
            self.report["parts"][part] = outcome
            self.write()
            print(f"  {outcome['status']} after {outcome['seconds']} s"
                  + (f": {outcome['reason']}" if "reason" in outcome else ""), flush=True)
        return 0 if all(part["status"] == "ok" for part in self.report["parts"].values()) else 70

    def write(self):
        self.report["seconds"] = round(self.options.deadline - self.seconds_left(), 1)
        file = pathlib.Path(self.options.json)
        partial = file.with_name(file.name + ".part")
        partial.write_text(json.dumps(self.report, indent=1) + "\n")
        partial.replace(file)


def flags(case):
    return [text for name in FLAGS for text in (f"--{name}", str(case[name]))]


def worst(runs):
    """A part is ok when all of its runs are; else it says which was not."""
    for status in ("failed", "not reached", "skipped"):
        for run in runs:
            if run["status"] == status:
                return {"status": status, "reason": f"{run['command']}: {run['reason']}"}
    return {"status": "ok"}


def main():
    options = parse_arguments()
    if not (BUNDLE / "share/version").exists():
        print("gpu_suite.sh: run it from an unpacked bundle, which launch/bundle.sh makes", file=sys.stderr)
        return 78
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(70))  # so that what runs is ended, too
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        all_parts = GpuSuite(options, scratch)
        try:
            all_parts.write()
        except OSError as error:
            print(f"gpu_suite.sh: cannot write {options.json}: {error.strerror}", file=sys.stderr)
            return 74
        return all_parts.run_all()


sys.exit(main())
