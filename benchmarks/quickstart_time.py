#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the README's first command takes: clones this repository, runs launch/quickstart.sh in the clone, and tells the
seconds of installing, building and training, the accuracy, and the compiler's seconds for each library. What is installed
already is not installed again: the first round on an empty machine shows that part.

  benchmarks/record.py benchmarks/results/quickstart_time.json -- benchmarks/quickstart_time.py --rounds 3"""

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

ROOT = pathlib.Path(__file__).resolve().parent.parent


def compile_seconds(log):
    """Of each library, from ninja's log: begin and end in ms, time of change, output, hash."""
    seconds = collections.Counter()
    for line in log.read_text().splitlines()[1:]:
        begin, end, _, output, _ = line.split("\t")
        if output.endswith(".o"):
            seconds[output.split("/")[0]] += (int(end) - int(begin)) / 1000
    return {name: round(value, 1) for name, value in seconds.most_common()}


def measured(clone):
    begin = time.monotonic()
    # The compiler's cache, if there is one, would hide what is measured.
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
    accuracy = re.findall(r"test accuracy ([\d.]+) %", "".join(said))[-1]
    return {"seconds": round(end - begin, 1), "install_seconds": round(at["build"] - begin, 1),
            "build_seconds": round(at["train"] - at["build"], 1), "train_seconds": round(end - at["train"], 1),
            "test_accuracy_percent": float(accuracy), "compile_seconds": compile_seconds(clone / "build/cpu/.ninja_log")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="lockstep_quickstart_") as folder:
            clone = pathlib.Path(folder) / "lockstep"
            subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
            rounds.append(measured(clone))
        if not options.json:
            print(json.dumps(rounds[-1]), flush=True)
    result = {"benchmark": "quickstart_time", "rounds": rounds,
              "seconds_median": statistics.median(each["seconds"] for each in rounds)}
    print(json.dumps(result) if options.json else f"median {result['seconds_median']} s")


if __name__ == "__main__":
    main()
