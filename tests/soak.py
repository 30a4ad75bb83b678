#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that trainings leak nothing. Trains the smallest network for some minutes, as fast as possible, with
evaluations, comparisons and checkpoints, and samples memory, file descriptors, threads, /dev/shm and the
disk: none may grow. Then starts and ends many trainings with an empty /tmp and /dev/shm: no file may be left.

  tests/soak.py --json benchmarks/results/soak.json    # 17 minutes, for which the machine need not be idle

Growth is the Theil-Sen slope (median of the slopes between all pairs of samples) after the first quarter,
times the duration of these samples. Single peaks do not change it."""

import argparse
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import record  # noqa: E402
import training_runs  # noqa: E402

SKIPPED = 77
STEP_SECONDS = 0.1  # assumed step time of a usual training, to convert steps into hours
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_odls_base_sigkill_timeout": "2"}  # mpirun waits twice as long if a rank ends with an error
# Allowed growth of each quantity: share of its median, and the absolute growth that counts as noise.
LIMITS = {"memory_kib": (0.01, 512), "descriptors": (0, 0), "threads": (0, 0), "shared_memory_bytes": (0, 0),
          "disk_bytes": (0.01, 4096)}


def slope(samples):
    """Theil-Sen slope per second. samples: (second, value) pairs."""
    slopes = [(later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in itertools.combinations(samples, 2)
              if later[0] > earlier[0]]
    return statistics.median(slopes)


def growth(samples):
    """(growth, median) after the first quarter of the samples."""
    steady = samples[len(samples) // 4:]
    typical = statistics.median(value for _, value in steady)
    grown = slope(steady) * (steady[-1][0] - steady[0][0])
    return grown, typical


def command(options, ranks, folder, settings, flags=()):
    told = {"train.threads": 1, "train.batch": 4, "kernels.choose": "direct", "optimizer.learning_rate": 0.001,
            "data.format": "idx", "data.path": folder / "images", "run.dir": folder / "run", **settings}
    return [str(part) for part in ("mpirun", "--oversubscribe", "--bind-to", "none", "-np", ranks, options.bin / "lockstep",
                                   "train", "fashion_mnist_mlp",
                                   *training_runs.overrides(told), *flags)]


def ranks_of(run_dir):
    """Process numbers of the ranks that train in run_dir."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if (entry.name.isdigit() and (entry / "comm").read_text() == "lockstep\n" and
                    str(run_dir).encode() in (entry / "cmdline").read_bytes()):
                found.append(int(entry.name))
        except OSError:  # it has just ended
            continue
    return found


def bytes_below(folder):
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def sample(processes, run_dir):
    """Sums over ranks. The disk excludes metrics.jsonl, which gets a line per epoch, and unfinished
    checkpoints."""
    memory = descriptors = threads = shared = 0
    for process in processes:
        status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines())
        memory += int(status["VmRSS"].split()[0])
        threads += int(status["Threads"])
        descriptors += len(os.listdir(f"/proc/{process}/fd"))
        shared += sum(path.stat().st_size for path in pathlib.Path("/dev/shm").glob(f"*.{process}.*"))
    kept = [path for path in run_dir.glob("checkpoints/*") if path.suffix != ".partial"]
    disk = sum(bytes_below(path) for path in kept) + sum(
        path.stat().st_size for path in run_dir.iterdir() if path.is_file() and path.name != "metrics.jsonl")
    return {"memory_kib": memory, "descriptors": descriptors, "threads": threads, "shared_memory_bytes": shared,
            "disk_bytes": disk}


def soak(options, folder):
    run_dir = folder / "run"
    training_command = command(options, 2, folder, {
        "train.epochs": 10 ** 6, "run.checkpoint_minutes": 0.03, "run.check_every": 500, "run.keep": 2})
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(training_command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                   env=ENVIRONMENT, start_new_session=True)
    try:
        while process.poll() is None and not list(run_dir.glob("checkpoints/*/manifest.json")):
            time.sleep(0.1)
        begin, ranks, samples = time.monotonic(), ranks_of(run_dir), []
        while process.poll() is None and time.monotonic() - begin < 60 * options.minutes:
            try:
                samples.append((time.monotonic() - begin, sample(ranks, run_dir)))
            except OSError:  # a checkpoint was removed while it was sampled
                continue
            time.sleep(min(5, 0.2 * options.minutes))
        ran = process.poll() is None  # 75 is also the watchdog's code
        process.send_signal(signal.SIGUSR1)
        code = process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    if not ran or code != 75:
        how = f"with exit code {code}" if ran else f"by itself, with exit code {code}"
        raise training_runs.Failed(f"the training ended {how}:\n{(folder / 'log').read_text()[-2000:]}")
    if len(ranks) != 2:
        raise training_runs.Failed(f"found {len(ranks)} of the 2 ranks in /proc, so the samples do not show growth")
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    rows, grows = [], []
    for name, (share, least) in LIMITS.items():
        grown, typical = growth([(at, values[name]) for at, values in samples])
        flat = grown <= max(share * typical, least)
        grows += [] if flat else [name]
        rows.append({"what": name, "median": typical, "growth": round(grown, 1), "flat": flat})
    return {"minutes": options.minutes, "ranks": len(ranks), "steps": last["steps"], "epochs": last["epoch"],
            "hours_at_100_ms_a_step": round(last["steps"] * STEP_SECONDS / 3600, 2), "samples": len(samples),
            "growth": rows}, [f"{name} grows" for name in grows]


# Regular ends of a training: settings, the signal to send, and the expected exit code.
ENDS = {
    "done": ({"train.steps": 5}, None, 0),
    "preempted": ({"train.epochs": 10 ** 6}, signal.SIGUSR1, 75),
    "refused": ({"train.steps": 5, "train.batch": -1}, None, 78),
    "done, with a checkpoint": ({"train.steps": 6, "run.checkpoint_every": 2}, None, 0),
}


def starts(options, folder):
    """Runs inside the namespaces of start_apart(): starts the trainings and prints the files that are left,
    as JSON."""
    for place in ("/tmp", "/dev/shm"):
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    for number in range(options.starts):
        name = list(ENDS)[number % len(ENDS)]
        settings, number_of_signal, expected = ENDS[name]
        settings = {**settings, "run.dir": folder / f"run{number}"}
        process = subprocess.Popen(command(options, 2 + number % 2, folder, settings), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
        said = ""
        if number_of_signal:
            for line in process.stdout:
                said += line
                if re.search(r"\bepoch 1\b", line):
                    process.send_signal(number_of_signal)
                    break
        said += process.communicate(timeout=120)[0]
        if process.returncode != expected:
            print(f"{name}: ended with exit code {process.returncode}:\n{said}", file=sys.stderr)
            return 70
    left = [str(path) for place in ("/tmp", "/dev/shm") for path in pathlib.Path(place).rglob("*")]
    print(json.dumps(left))
    return 0


def start_apart(options, arguments, folder):
    """Runs starts() in separate namespaces and returns the files that are left."""
    apart = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"]
    apart += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
        raise training_runs.Skipped("Skipped: many starts, because namespaces cannot be made")
    shutil.copy2(options.bin / "lockstep", folder)  # the build may lie in /tmp
    done = subprocess.run([*apart, sys.executable, "-B", __file__, *arguments, "--bin", str(folder), "--inside", str(folder)],
                          stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise training_runs.Failed(f"the short trainings ended with exit code {done.returncode}: {done.stdout[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/cpu/bin")
    parser.add_argument("--minutes", type=float, default=15, help="duration of the long training; 0 disables it")
    parser.add_argument("--starts", type=int, default=100, help="number of short trainings; 0 disables them")
    parser.add_argument("--json", type=pathlib.Path, help="file for the result")
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.bin = options.bin.resolve()
    return options


def run(options, arguments, folder):
    (folder / "images").mkdir()
    training_runs.write_images(folder / "images", 4096, 256, 8)
    # Each part records the machine and the versions of its run. A part that does not run keeps the file's entry.
    there = options.json and options.json.exists()
    result, wrong = json.loads(options.json.read_text()) if there else {"benchmark": "soak"}, []
    circumstances = record.circumstances(shlex.join(["tests/soak.py", *arguments]), options.bin / "lockstep")

    def keep(name, found):  # at once, because the next part may be skipped
        result[name] = {**circumstances, **found}
        if options.json:
            record.write(options.json, result)

    if options.minutes > 0:
        found, wrong = soak(options, folder)
        keep("soak", found)
        print(f"{result['soak']['steps']:,} steps in {options.minutes:g} minutes, "
              f"{result['soak']['hours_at_100_ms_a_step']:.1f} hours of a training at 100 ms a step")
        for row in result["soak"]["growth"]:
            more = "" if row["flat"] else "!"
            print(f"  {row['what']:<20} {row['median']:>12,.0f}  grows by {row['growth']:,.1f}{more}")
    if options.starts > 0:
        try:
            left = start_apart(options, arguments, folder)
        except training_runs.Skipped as reason:
            if not wrong:
                raise
            raise training_runs.Failed("; ".join([*wrong, str(reason)])) from None
        keep("starts", {"starts": options.starts, "ends": list(ENDS), "left_in_tmp_and_shared_memory": left})
        wrong += [f"{path} was not removed" for path in left]
        print(f"{training_runs.counted(options.starts, 'start')}: left in /tmp and /dev/shm: {left or 'nothing'}")
    if wrong:
        raise training_runs.Failed("; ".join(wrong))


def main(arguments):
    options = parse_arguments(arguments)
    if options.inside:
        return starts(options, options.inside)
    try:
        # Not in /tmp, which starts() replaces by an empty one.
        with tempfile.TemporaryDirectory(prefix="lockstep_soak_", dir="/var/tmp") as folder:
            run(options, arguments, pathlib.Path(folder))
    except training_runs.Skipped as reason:
        print(reason, file=sys.stderr)
        return SKIPPED
    except training_runs.Failed as error:
        print(f"soak.py: {error}", file=sys.stderr)
        return 70
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
