# SPDX-License-Identifier: Apache-2.0
"""Functions of all suites: running a program with a time limit, and comparing two sides in turns."""

import dataclasses
import json
import os
import pathlib
import re
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
    result: dict = None  # the program's --json file

    @property
    def text(self):
        return " ".join(str(part) for part in self.command)


# The text of mpirun when a rank failed: blocks between lines of dashes, and remarks about them.
FOOTERS = re.compile(r"^-{50,}\n(?:Primary job  terminated normally|\w+run detected that|MPI_ABORT was invoked).*?^-{50,}$"
                     r"|^\[\S+:\d+\] (?:\d+ more process|Set MCA parameter)[^\n]*", re.MULTILINE | re.DOTALL)


def last_lines(output, count=3):
    """The last lines that are not empty. Without the footers of mpirun, unless there is nothing else."""
    own = FOOTERS.sub("", output)
    return "\n".join([line for line in (own if own.strip() else output).splitlines() if line.strip()][-count:])


def end(process):
    """Ends the process group: SIGTERM, and SIGKILL after 5 s. mpirun needs the time to end its ranks, which
    have separate process groups."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            continue
    process.wait()


# Open MPI starts as root, as in containers, only with both variables.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def execute(command, limit=None, environment=None):
    """Runs the command to its end, or for at most `limit` seconds. environment: variables to add."""
    command = [str(part) for part in command]
    with tempfile.TemporaryFile() as file:
        clock = time.monotonic()
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                       env={**os.environ, **AS_ROOT, **(environment or {})}, start_new_session=True)
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
    """execute() for a program that writes its result with --json FILE."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "result.json"
        run = execute([*command, "--json", file], limit, environment)
        run.command = [str(part) for part in command]
        if run.status == "ok":
            try:
                run.result = json.loads(file.read_text())
            except (OSError, ValueError) as error:
                run.status, run.reason = "failed", f"the program wrote no JSON: {error}"
    return run


def take_turns(ways, rounds, goes_on=None):
    """Calls every way (a function, by name) once per turn. The order is reversed every other turn, so that no
    way is always first. A way returns a result, or None on failure and is then not called again. After the
    second turn, goes_on(turns) returns the names of the ways that take further turns; default: all. Returns
    the results by way, one per turn, without the ways that never succeeded."""
    turns = {name: [] for name in ways}
    running = set(ways)
    for turn in range(rounds):
        order = list(ways) if turn % 2 == 0 else list(reversed(ways))
        for name in order:
            ended = name not in running or None in turns[name]
            turns[name].append(None if ended else ways[name]())
        if turn == 1 and goes_on:
            running = set(goes_on(turns))
    return {name: results for name, results in turns.items() if any(results)}


def speeds(results):
    return [result["samples_per_second"] if result else None for result in results]


def median_speed(results):
    return statistics.median(speed for speed in speeds(results) if speed)


def paired(ours, theirs):
    """Lockstep's speed over the peer's in the turns that both have: the ratios, their median and spread."""
    ratios = [a / b for a, b in zip(speeds(ours), speeds(theirs)) if a and b]
    if not ratios:
        return {}
    return {"ratio": statistics.median(ratios), "ratio_spread": [min(ratios), max(ratios)], "ratios": ratios}


def own_ways_ran(turns):
    """Whether OWN ran, and none of our ways failed in a turn."""
    return OWN in turns and not any(None in results for name, results in turns.items() if name.startswith(OWN))


CLEARLY_SLOWER = 0.6  # turns of the same way differed by a third
OWN, DIRECT = "lockstep", "lockstep, direct kernels"  # names of our ways


def without_clearly_slower(turns):
    """The names of our ways, and of the peer's ways whose better speed so far is at least CLEARLY_SLOWER of the
    fastest one. For take_turns()."""
    best = {name: max((speed for speed in speeds(results) if speed), default=0) for name, results in turns.items()}
    fastest = max((speed for name, speed in best.items() if not name.startswith(OWN)), default=0)
    return [name for name, speed in best.items() if name.startswith(OWN) or speed >= CLEARLY_SLOWER * fastest]


def in_all_turns(turns):
    """The ways with the most turns: a way that took fewer was clearly slower, or failed."""
    count = {name: sum(result is not None for result in results) for name, results in turns.items()}
    return {name: results for name, results in turns.items() if count[name] == max(count.values())}


def compare(turns):
    """Compares OWN with the peer's fastest way by the median of the ratios of each turn. All ways except OWN and
    DIRECT are the peer's. DIRECT, if it was measured, is compared with the same way of the peer."""
    ours = turns.get(OWN, [])
    row = {"lockstep": [result for result in ours if result],
           "samples_per_second": median_speed(ours) if ours else None,
           "turns": {name: speeds(results) for name, results in turns.items()}}
    peers = in_all_turns({name: results for name, results in turns.items() if name not in (OWN, DIRECT)})
    best = max(peers, key=lambda name: median_speed(peers[name]), default=None)
    if peers:
        version = next(result["version"] for result in peers[best] if result)
        row["pytorch"] = {"version": version, "best": best, "samples_per_second": median_speed(peers[best])}
        row |= paired(ours, peers[best])
    if DIRECT in turns:
        row["direct"] = {"samples_per_second": median_speed(turns[DIRECT]),
                         **(paired(turns[DIRECT], peers[best]) if peers else {})}
    return row


def compare_fastest(turns):
    """Compares the fastest of our ways, whose names begin with OWN, except DIRECT, with the peer's fastest way."""
    ours = [name for name in turns if name.startswith(OWN) and name != DIRECT]
    peers = {name: results for name, results in turns.items() if not name.startswith(OWN)}
    if not ours or not peers:
        return {}
    ours, peers = in_all_turns({name: turns[name] for name in ours}), in_all_turns(peers)
    best, peer = (max(names, key=lambda name: median_speed(turns[name])) for names in (ours, peers))
    return {"best": best, "samples_per_second": median_speed(turns[best]),
            "pytorch": {"best": peer, "samples_per_second": median_speed(turns[peer])}, **paired(turns[best], turns[peer])}


def with_spread(row):
    low, high = row["ratio_spread"]
    return f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"


def summary(row):
    """One line to print."""
    text = f"{row['samples_per_second'] or 0:8.1f} samples/s"
    if "pytorch" in row:
        peer = row["pytorch"]
        text += f"   PyTorch {peer['version']} ({peer['best']}) {peer['samples_per_second']:8.1f}"
    if "ratio" in row:
        text += f"   ratio {with_spread(row)}"
    if "ratio" in row.get("direct", {}):
        text += f", direct kernels {with_spread(row['direct'])}"
    return text
