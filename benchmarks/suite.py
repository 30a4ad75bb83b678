# SPDX-License-Identifier: Apache-2.0
"""What the suites share: programs run to their end or their limit, and two sides measured in turns."""

import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time


@dataclasses.dataclass
class Run:
    """How a program ended: "ok", "failed" with the reason, or "not reached" where there was no time to start it."""
    command: list
    status: str
    reason: str = ""
    seconds: float = 0
    output: str = ""
    exit_code: int = None
    result: dict = None  # what it wrote with --json

    @property
    def text(self):
        return " ".join(str(part) for part in self.command)


def last_lines(output, count=3):
    return "\n".join([line for line in output.splitlines() if line.strip()][-count:])


def end(process):
    """The program and what it started; mpirun is given the time to end its ranks, which have groups of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            continue
    process.wait()


def execute(command, limit=None, environment=None):
    """Runs to the end, or for at most limit seconds."""
    command = [str(part) for part in command]
    with tempfile.TemporaryFile() as file:
        clock = time.monotonic()
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                       env=environment, start_new_session=True)
        except OSError as error:
            return Run(command, "failed", str(error))
        late = False
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            if process.poll() is None:
                end(process)
        file.seek(0)
        run = Run(command, "ok", output=file.read().decode(errors="replace"), exit_code=process.returncode,
                  seconds=round(time.monotonic() - clock, 2))
    if late:
        run.status, run.reason = "failed", f"stopped after {limit:.0f} s"
    elif run.exit_code != 0:
        run.status, run.reason = "failed", f"exit code {run.exit_code}: {last_lines(run.output)}"
    return run


def execute_with_json(command, limit=None, environment=None):
    """The same for a program that writes its result with --json FILE."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "result.json"
        run = execute([*command, "--json", file], limit, environment)
        run.command = [str(part) for part in command]
        if run.status == "ok":
            try:
                run.result = json.loads(file.read_text())
            except (OSError, ValueError) as error:
                run.status, run.reason = "failed", f"left no JSON: {error}"
    return run


def take_turns(ours, ways, rounds):
    """Calls ours and each of the peer's ways (by name), turn by turn; each gives a result or None. Returns our results
    and the peer's by way. The first turn tells the peer's best way; later turns go on with it alone."""
    own, peers, ways = [], {}, dict(ways)
    for turn in range(rounds):
        own.append(ours())
        for name, way in list(ways.items()):
            result = way()
            if result is None:
                del ways[name]
                continue
            peers.setdefault(name, []).append(result)
        if turn == 0 and peers:
            best = max(peers, key=lambda name: peers[name][0]["samples_per_second"])
            ways = {name: way for name, way in ways.items() if name == best}
    return [result for result in own if result], peers


def median_speed(results):
    return statistics.median(result["samples_per_second"] for result in results)


def compare(own, peers):
    """The medians of both sides, and how many times the peer's best we are."""
    row = {"lockstep": own, "samples_per_second": median_speed(own) if own else None}
    if peers:
        best = max(peers, key=lambda name: median_speed(peers[name]))
        row["pytorch"] = {"version": peers[best][0]["version"], "best": best,
                          "samples_per_second": median_speed(peers[best]),
                          "first_turn": {name: results[0]["samples_per_second"] for name, results in peers.items()}}
        if own:
            row["ratio"] = row["samples_per_second"] / row["pytorch"]["samples_per_second"]
    return row


def summary(row):
    """One line for a person."""
    text = f"{row['samples_per_second'] or 0:8.1f} samples/s"
    if "pytorch" in row:
        peer = row["pytorch"]
        text += f"   PyTorch {peer['version']} ({peer['best']}) {peer['samples_per_second']:8.1f}"
    return text + (f"   ratio {row['ratio']:.2f}" if "ratio" in row else "")
