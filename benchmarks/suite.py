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
    """How a program ended: "ok", or "failed" with the reason."""
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


def take_turns(ways, rounds):
    """Calls every way (by name) once each turn, in their order and, every other turn, in the opposite one, so that
    nobody always goes first. Each gives a result or None, and is not called again after that. Returns the results by
    way: one for each turn, None where there is none."""
    turns = {name: [] for name in ways}
    for turn in range(rounds):
        order = list(ways) if turn % 2 == 0 else list(reversed(ways))
        for name in order:
            failed_before = None in turns[name]
            turns[name].append(None if failed_before else ways[name]())
    return {name: results for name, results in turns.items() if any(results)}


def speeds(results):
    return [result["samples_per_second"] if result else None for result in results]


def median_speed(results):
    return statistics.median(speed for speed in speeds(results) if speed)


def paired(ours, theirs):
    """Of the turns that both have: how many times as fast ours is, their median and their spread."""
    ratios = [a / b for a, b in zip(speeds(ours), speeds(theirs)) if a and b]
    if not ratios:
        return {}
    return {"ratio": statistics.median(ratios), "ratio_spread": [min(ratios), max(ratios)], "ratios": ratios}


def compare(turns, own="lockstep", direct="lockstep, direct kernels"):
    """Our way called own beside the fastest of the peer's, which are all the others, by the median of each turn's ratio;
    and our way called direct, where there is one, beside the same of the peer's."""
    ours = turns.get(own, [])
    row = {"lockstep": [result for result in ours if result],
           "samples_per_second": median_speed(ours) if ours else None,
           "turns": {name: speeds(results) for name, results in turns.items()}}
    peers = {name: results for name, results in turns.items() if name not in (own, direct)}
    best = max(peers, key=lambda name: median_speed(peers[name])) if peers else None
    if peers:
        version = next(result["version"] for result in peers[best] if result)
        row["pytorch"] = {"version": version, "best": best, "samples_per_second": median_speed(peers[best])}
        row |= paired(ours, peers[best])
    if direct in turns:
        row["direct"] = {"samples_per_second": median_speed(turns[direct]),
                         **(paired(turns[direct], peers[best]) if peers else {})}
    return row


def with_spread(row):
    low, high = row["ratio_spread"]
    return f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"


def summary(row):
    """One line for a person."""
    text = f"{row['samples_per_second'] or 0:8.1f} samples/s"
    if "pytorch" in row:
        peer = row["pytorch"]
        text += f"   PyTorch {peer['version']} ({peer['best']}) {peer['samples_per_second']:8.1f}"
    if "ratio" in row:
        text += f"   ratio {with_spread(row)}"
    if "ratio" in row.get("direct", {}):
        text += f", direct kernels {with_spread(row['direct'])}"
    return text
