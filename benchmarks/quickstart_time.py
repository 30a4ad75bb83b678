#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how long the README's first command takes. Clones this repository, runs launch/quickstart.sh in the
clone, and reports the seconds of installing, building and training, the accuracy, and the compile seconds of
each library. Only the first round on a fresh machine includes the installation of packages. With --before, each round
also runs a clone at an older revision, in alternating order, and the result has the ratio new / old of each pair.

  benchmarks/record.py benchmarks/results/quickstart_time.json -- benchmarks/quickstart_time.py --rounds 3
  benchmarks/record.py benchmarks/results/quickstart_beside_older.json -- \
    benchmarks/quickstart_time.py --rounds 3 --before f380c530"""

import argparse
import collections
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import record


def compile_seconds(log):
    """Compile seconds of each library, from ninja's log: begin and end in ms, mtime, output, hash."""
    seconds = collections.Counter()
    for line in log.read_text().splitlines()[1:]:
        begin, end, _, output, _ = line.split("\t")
        if output.endswith(".o"):
            seconds[output.split("/")[0]] += (int(end) - int(begin)) / 1000
    return {name: round(value, 1) for name, value in seconds.most_common()}


def measured(revision):
    """Figures of the quickstart in a fresh clone at `revision`."""
    with tempfile.TemporaryDirectory(prefix="lockstep_quickstart_") as folder:
        clone = pathlib.Path(folder) / "lockstep"
        subprocess.run(["git", "clone", "-q", record.ROOT, clone], check=True)
        subprocess.run(["git", "checkout", "-q", revision], cwd=clone, check=True)
        return run_quickstart(clone)


def run_quickstart(clone):
    begin = time.monotonic()
    # Without ccache, which would hide the compile time.
    process = subprocess.Popen(["launch/quickstart.sh"], cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "CCACHE_DISABLE": "1"})
    at, said = {}, []
    for line in process.stdout:
        said.append(line)
        for part, first in (("build", "Building with "), ("train", "mpirun ")):
            if line.startswith(first):
                at.setdefault(part, time.monotonic())
    end = time.monotonic()
    if process.wait() != 0:
        raise SystemExit("".join(said[-20:]))
    accuracy = re.findall(r"accuracy ([\d.]+) %", "".join(said))[-1]
    return {"seconds": round(end - begin, 1), "install_seconds": round(at["build"] - begin, 1),
            "build_seconds": round(at["train"] - at["build"], 1), "train_seconds": round(end - at["train"], 1),
            "test_accuracy_percent": float(accuracy), "compile_seconds": compile_seconds(clone / "build/cpu/.ninja_log")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", metavar="REVISION", help="an older revision to run in turns with this one")
    parser.add_argument("--json", type=pathlib.Path, help="also write the result to this file")
    options = parser.parse_args()
    rounds, before, ratios = [], [], []
    for index in range(options.rounds):
        pair = [("HEAD", rounds)] + ([(options.before, before)] if options.before else [])
        for revision, results in pair if index % 2 == 0 else reversed(pair):
            results.append(measured(revision))
            print(revision, json.dumps(results[-1]), flush=True)
        if options.before:
            ratios.append(round(rounds[-1]["seconds"] / before[-1]["seconds"], 3))
    result = {"benchmark": "quickstart_time", "rounds": rounds,
              "seconds_median": statistics.median(each["seconds"] for each in rounds)}
    if options.before:
        result |= {"before": options.before, "rounds_before": before, "ratios": ratios,
                   "ratio_median": statistics.median(ratios)}
        print(f"ratio of seconds, median {result['ratio_median']} ({min(ratios)} to {max(ratios)})")
    print(f"median {result['seconds_median']} s")
    if options.json:
        record.write(options.json, result)


if __name__ == "__main__":
    main()
