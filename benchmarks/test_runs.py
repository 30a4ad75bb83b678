#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of built legs again and again, and lists each failed test and each retry: do the tests depend
on time or on other load? The legs are those of tests/run.sh; build them first. `--busy N` of the rounds run
beside one spinning process per core. Rounds are added to the file of --json, each with its machine,
revision, date and command, so that several days and machines can contribute.

  benchmarks/test_runs.py --rounds 10 --busy 5 --json benchmarks/results/test_runs.json

With --repeat N each test of a round runs N times in a row and stops at its first failure; --only selects tests:

  benchmarks/test_runs.py --rounds 1 --busy 1 --legs cpu --only LateRank --repeat 300"""

import argparse
import contextlib
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

import record

CORES = record.cores()
# Options of ctest for each leg, as in tests/run.sh.
LEGS = {"cpu": ["--preset", "cpu", "-LE", "slow|nightly|timing", "-j", str(2 * CORES)],
        "timing": ["--preset", "cpu", "-L", "timing", "-j", "1", "--repeat", "until-pass:3"],
        **{leg: ["--preset", leg, "-j", str(2 * CORES)] for leg in ("asan", "tsan", "cuda")}}


@contextlib.contextmanager
def busy_neighbour(busy):
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(CORES if busy else 0)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def retried(said, cases):
    """Names of retried tests: ctest prints a line for each failed try, and tests/launch/program/fault_run.h one for each
    job that ended before its fault."""
    tries = re.findall(r"Test +#\d+: (\S+) .*\*\*\*(?:Failed|Timeout|Exception)", said)
    return tries + [case.get("name") for case in cases if "a job ended before its fault" in (case.findtext("system-out") or "")]


def run(leg, busy, selection):
    with tempfile.TemporaryDirectory() as folder, busy_neighbour(busy):
        report = pathlib.Path(folder) / "report.xml"
        begin = time.monotonic()
        done = subprocess.run(["ctest", *LEGS[leg], *selection, "--no-tests=error", "--output-junit", report], cwd=record.ROOT,
                              capture_output=True, text=True, errors="replace")
        seconds = time.monotonic() - begin
        cases = list(xml.etree.ElementTree.parse(report).getroot().iter("testcase")) if report.exists() else []
    failed = [case.get("name") for case in cases if case.get("status") == "fail"]
    if failed or done.returncode != 0:
        (record.ROOT / "build" / f"failed_{leg}_{int(time.time())}.log").write_text(done.stdout + done.stderr)
    return {"leg": leg, "seconds": round(seconds), "exit_code": done.returncode, "tests": len(cases),
            "skipped": sum(case.get("status") == "notrun" for case in cases), "failed": failed,
            "retries": [name for name in retried(done.stdout, cases) if name not in failed]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--busy", type=int, default=5, help="rounds beside spinning processes, after the others")
    parser.add_argument("--legs", nargs="+", choices=LEGS, default=list(LEGS))
    parser.add_argument("--json", type=pathlib.Path, help="add the rounds to this file")
    parser.add_argument("--only", metavar="REGEX", default="", help="only tests with such a name")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each test in a round")
    options = parser.parse_args()
    selection = ["-R", options.only] if options.only else []
    if options.repeat > 1:
        if "timing" in options.legs:
            parser.error("--repeat does not apply to the leg timing, which repeats failed tests itself: name other legs with --legs")
        selection += ["--repeat", f"until-fail:{options.repeat}"]
    stored = {"benchmark": "test_runs"}
    if options.json and options.json.exists():
        stored = json.loads(options.json.read_text())
    command = shlex.join(["benchmarks/test_runs.py", *sys.argv[1:]])
    runs = []
    for index in range(options.rounds):
        busy = index >= options.rounds - options.busy
        done = stored[f"round {len(stored)}"] = {**record.circumstances(command), "busy": busy, "runs": []}
        for leg in options.legs:
            runs.append(run(leg, busy, selection))
            done["runs"].append(runs[-1])
            print(json.dumps({"busy": busy, **runs[-1]}), flush=True)
            if options.json:
                record.write(options.json, stored)
    failed = [name for each in runs for name in each["failed"]]
    print(f"{len(runs)} runs, {len(failed)} failed tests, {sum(len(each['retries']) for each in runs)} retries")
    sys.exit(1 if failed or any(each["exit_code"] for each in runs) else 0)


if __name__ == "__main__":
    main()
