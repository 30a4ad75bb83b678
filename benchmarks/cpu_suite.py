#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures every CPU target and writes one JSON file: training steps compared with each of PyTorch's ways, in
turns; two ranks compared with PyTorch's DistributedDataParallel; the engine's overhead; two ranks compared
with two threads; cost and gain of recomputation; memory. Needs a build with LOCKSTEP_BENCHMARKS=ON and,
for PyTorch, a Python that has torch (--python). A part that fails is reported and keeps its old result, and
the other parts still run. The file is written after each part."""

import argparse
import functools
import json
import os
import pathlib
import shlex
import statistics
import sys
import tempfile

import record
import suite
import training_runs

HERE = pathlib.Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--bin", default=str(HERE.parent / "build/cpu/bin"), help="folder of the built programs")
parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--only", nargs="*", default=[], choices=["step", "ddp", "engine", "ranks", "recompute", "before"],
                    help="parts to measure (default: all but before)")
parser.add_argument("--before", nargs=2, default=["", ""], metavar=("REVISION", "BIN"),
                    help="revision and folder of an older build, with which part \"before\" compares")
parser.add_argument("--avx2", action="store_true", help="limit both sides of part \"step\" to AVX2")
parser.add_argument("--models", nargs="*", default=[], choices=["resnet18", "mobilenet_v2", "cnn", "resnet50", "vgg11_bn"],
                    help="models of the parts \"step\" and \"before\" (default: all)")
parser.add_argument("--json", default="", help="write the result to this file; parts that this run does not measure keep their old result")
options = parser.parse_args()

# Limits Lockstep's loops, oneDNN (also PyTorch's) and PyTorch's loops.
if options.avx2:
    if options.only != ["step"]:
        parser.error("--avx2 needs --only step: other parts have one result for each machine")
    os.environ.update(LOCKSTEP_MAX_CPU_ISA="avx2", ONEDNN_MAX_CPU_ISA="AVX2", ATEN_CPU_CAPABILITY="avx2")
# Code that torch.compile kept for another instruction set crashes.
compiled = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = compiled.name
# Cases of the step comparison; targets: the required ratio of samples/s to PyTorch, in fp32 with AVX2 and with
# AVX-512, and with each side's fastest precision.
STEPS = [{"model": "resnet18", "batch": 64, "image": 32, "channels": 3, "targets": (1.8, 2.5, 1.5)},
         {"model": "mobilenet_v2", "batch": 64, "image": 32, "channels": 3, "targets": (1.8, 2.3, 1.5)},
         {"model": "cnn", "batch": 64, "image": 28, "channels": 1, "targets": (2.0, 2.5, 2.0)},
         {"model": "resnet50", "batch": 16, "image": 224, "channels": 3, "targets": (1.2, 1.5, 1.2)}]
PEERS = [[], ["--channels-last"], ["--channels-last", "--fused"], ["--compile"], ["--compile", "--channels-last"],
         ["--compile", "max-autotune", "--channels-last", "--fused"]]
DDP = [[], ["--bucket-view", "--static-graph"], ["--bucket-view", "--static-graph", "--channels-last"]]
# Conditions that are equal for both sides of a comparison, and those that differ.
STEP_CONDITIONS = {
    "alike": "network, batch, image, 10 classes, SGD with momentum 0.9, threads, and that the loss is read every step",
    "different": "Lockstep normalises uint8 images within the step, PyTorch has them as fp32 from the start; Lockstep's "
                 "mobilenet_v2 has its dropout of 0.2, PyTorch's has none; in bf16 PyTorch casts by autocast"}
DDP_CONDITIONS = {
    "alike": "network, ranks, batch of each rank, image, 10 classes, one thread for each rank, SGD with momentum 0.9",
    "different": "Lockstep trains on Fashion-MNIST through its loader, PyTorch on one batch of random images"}
failed = []


def run(command):
    """The JSON that a program writes with --json. Reports a failure and returns None."""
    done = suite.execute_with_json(command)
    if done.status != "ok":
        report(done)
    return done.result


def report(done):
    failed.append(done.text)
    print(f"FAILED ({done.exit_code}): {done.text}\n{done.output or done.reason}", file=sys.stderr)


def flags(case):
    return [part for name in ("model", "batch", "image", "channels") for part in (f"--{name}", str(case[name]))] + [
        "--threads", str(options.threads)]


def ways_of_a_step(case):
    """All ways by name; those in bf16 end in ", bf16"."""
    command = [f"{options.bin}/step_bench", *flags(case)]
    peer = [options.python, str(HERE / "peers/pytorch_step.py"), *flags(case)]
    ways = {}
    for precision in ("fp32",) if options.avx2 else ("fp32", "bf16"):
        suffix = "" if precision == "fp32" else f", {precision}"
        own = [*command, "--precision", precision]
        run(own + ["--steps", "1"])  # chooses the kernels before the timed runs
        ways[f"lockstep{suffix}"] = functools.partial(run, own)
        for way in PEERS:
            ways[f"{' '.join(way) or 'eager'}{suffix}"] = functools.partial(run, [*peer, "--precision", precision, *way])
    ways[suite.DIRECT] = functools.partial(run, command + ["--kernels", "direct"])
    return ways


def going_on(turns):
    """In each precision the ways that are not clearly slower."""
    halves = [{name: results for name, results in turns.items() if name.endswith("bf16") == half} for half in (False, True)]
    return [name for half in halves for name in suite.without_clearly_slower(half)]


def compare_steps(case):
    turns = suite.take_turns(ways_of_a_step(case), options.rounds, going_on)
    fp32 = {name: results for name, results in turns.items() if not name.endswith("bf16")}
    if not suite.own_ways_ran(turns):
        return None
    *targets, of_any = case["targets"]
    row = {**case, "instructions": "AVX2" if options.avx2 else "all", "target": targets[not options.avx2],
           **STEP_CONDITIONS, **suite.compare(fp32)}
    del row["targets"]
    text = f"{row['model']:<14} {suite.summary(row)}"
    if "ratio" in row:
        text += f", target {row['target']}"
    if not options.avx2:
        row["turns"] = {name: suite.speeds(results) for name, results in turns.items()}
        row["any_precision"] = {"target": of_any, **suite.compare_fastest(turns)}
        if "ratio" in row["any_precision"]:
            text += f"; fastest precision of each {suite.with_spread(row['any_precision'])}, target {of_any}"
    row["memory_over_plan"] = max((r["resident_peak_bytes"] - r["resident_baseline_bytes"]) / r["planned_bytes"]
                                  for r in row["lockstep"])
    print(f"{text}   memory {row['memory_over_plan']:.2f} of plan", flush=True)
    return row


def beside_older_build():
    """Compares steps of this build and of an older one, in turns, by the ratio of samples/s."""
    rows = []
    cases = [*STEPS, {"model": "vgg11_bn", "batch": 64, "image": 32, "channels": 3}]
    for case in cases:
        if options.models and case["model"] not in options.models:
            continue
        commands = [[f"{folder}/step_bench", *flags(case), "--no-peak", "--warmup", "1", "--steps"]
                    for folder in (options.bin, options.before[1])]
        # Chooses the kernels, and estimates the number of steps for a run of about four seconds.
        first = [run(command + ["2"]) for command in commands]
        if None in first:
            return None
        steps = max(2, round(4 * first[0]["samples_per_second"] / case["batch"]))
        sides = [functools.partial(run, command + [str(steps)]) for command in commands]
        turns = suite.take_turns({"now": sides[0], "before": sides[1]}, options.rounds)
        row = {"model": case["model"], "batch": case["batch"], "image": case["image"],
               **suite.paired(turns.get("now", []), turns.get("before", []))}
        if "ratio" not in row:
            return None
        print(f"{row['model']:<14} new over old {suite.with_spread(row)}", flush=True)
        rows.append(row)
    return {"steps": rows, "before": options.before[0]}


def engine_cost():
    result = run([f"{options.bin}/engine_bench", "--threads", str(options.threads)])
    if result:
        print(f"engine over bare network: {100 * (result['ratio'] - 1):+.2f} %; outside its kernels "
              f"{100 * result['share_outside_kernels']:.3f} %", flush=True)
    return result


def train_speed(ranks, threads, folder, steps=40, batch=64):
    run_dir = pathlib.Path(folder) / f"{ranks}x{threads}x{batch}"
    settings = {"model.name": "resnet18", "train.threads": threads, "train.batch": batch, "train.steps": max(1, steps // ranks),
                "schedule.warmup_epochs": 0, "run.dir": run_dir, "run.checkpoint_minutes": 0}
    (run_dir / "metrics.jsonl").unlink(missing_ok=True)
    done = suite.execute([*training_runs.launcher(ranks), f"{options.bin}/lockstep", "train", "fashion_mnist_resnet20",
                          *training_runs.overrides(settings)])
    if done.status != "ok":
        report(done)
        return None
    return training_runs.lines_of(run_dir / "metrics.jsonl")[-1]["samples_per_second"]


def ranks_against_threads():
    with tempfile.TemporaryDirectory() as folder:
        train_speed(1, options.threads, folder, steps=2), train_speed(options.threads, 1, folder, steps=2)
        pairs = [(train_speed(options.threads, 1, folder), train_speed(1, options.threads, folder))
                 for _ in range(options.rounds)]
    if any(None in pair for pair in pairs):
        return None
    ratio = statistics.median(ranks / threads for ranks, threads in pairs)
    print(f"{options.threads} ranks x 1 thread over 1 rank x {options.threads} threads: {ratio:.3f}", flush=True)
    return {"model": "resnet18", "image": [28, 28, 1], "batch_per_rank": 64,
            "samples_per_second": [{"ranks": r, "threads": t} for r, t in pairs], "ratio": ratio}


def beside_ddp(ranks=2, batch=32):
    """Compares training on ranks of one thread each with PyTorch's DistributedDataParallel over Gloo."""
    peer = [options.python, str(HERE / "peers/pytorch_ddp.py"), "--model", "resnet18", "--ranks", str(ranks), "--batch",
            str(batch), "--image", "28", "--channels", "1"]
    with tempfile.TemporaryDirectory() as folder:
        def ours():
            speed = train_speed(ranks, 1, folder, batch=batch)
            return {"samples_per_second": speed} if speed else None
        train_speed(ranks, 1, folder, steps=2 * ranks, batch=batch)  # chooses the kernels before the timed runs
        ways = {"lockstep": ours}
        ways |= {" ".join(["DDP", *way]): functools.partial(run, peer + way) for way in DDP}
        turns = suite.take_turns(ways, options.rounds)
    if not suite.own_ways_ran(turns):
        return None
    row = suite.compare(turns)
    print(f"{ranks} ranks beside DDP {suite.summary(row)}", flush=True)
    return {"model": "resnet18", "image": [28, 28, 1], "ranks": ranks, "batch_per_rank": batch, **DDP_CONDITIONS, **row}


def recomputation(model):
    """Compares steps without and with train.recompute, in turns."""
    case = {"model": model, "batch": 64, "image": 32, "channels": 3}
    command = [f"{options.bin}/step_bench", *flags(case)]
    pairs = [(run(command), run(command + ["--recompute"])) for _ in range(options.rounds)]
    if any(None in pair for pair in pairs):
        return None
    speed = statistics.median(again["samples_per_second"] / kept["samples_per_second"] for kept, again in pairs)
    memory = statistics.median(again["resident_peak_bytes"] / kept["resident_peak_bytes"] for kept, again in pairs)
    plan = pairs[0][1]["planned_bytes"] / pairs[0][0]["planned_bytes"]
    print(f"recomputing {model}: {speed:.2f} of the samples/s, {plan:.2f} of the planned memory, {memory:.2f} of the "
          "resident", flush=True)
    return {**case, "speed_ratio": speed, "planned_ratio": plan, "resident_ratio": memory,
            "pairs": [{"kept": kept, "recomputed": again} for kept, again in pairs]}


wanted = options.only or ["step", "ddp", "engine", "ranks", "recompute"]
command = shlex.join(["benchmarks/cpu_suite.py", *sys.argv[1:]])
file = pathlib.Path(options.json) if options.json else None
results = json.loads(file.read_text()) if file and file.exists() else {"benchmark": "cpu_suite"}


def keep(part, result):
    """Stores a part together with its machine, versions, revision, date and command, and writes the file. result: None
    if the part failed. A result without a ratio, because PyTorch failed, does not replace one with a ratio."""
    if not result or "ratio" not in result and "ratio" in (results.get(part) or {}):
        return
    results[part] = {**record.circumstances(command, f"{options.bin}/lockstep"), "rounds": options.rounds, **result}
    if file:
        record.write(file, results)


if "step" in wanted:
    for case in STEPS:
        if not options.models or case["model"] in options.models:
            keep(f"step {case['model']}{' at AVX2' if options.avx2 else ''}", compare_steps(case))
if "ddp" in wanted:
    keep("ranks beside DDP", beside_ddp())
if "engine" in wanted:
    keep("engine", engine_cost())
if "ranks" in wanted:
    keep("ranks against threads", ranks_against_threads())
if "before" in wanted:
    keep("beside the build before", beside_older_build())
if "recompute" in wanted:
    for model in ("resnet20", "resnet50"):
        keep(f"recompute {model}", recomputation(model))
sys.exit(1 if failed else 0)
