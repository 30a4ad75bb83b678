#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how training scales: samples per second of `lockstep train` on 1, 2, 4, .. ranks, on random
images: strong scaling (constant global batch) and weak scaling (constant batch per rank), in turns, with the
efficiency relative to one rank. Ranks share this machine. With --rate they run on nodes of this machine that
are joined by links of that rate (tests/nodes.sh). With --mpirun they run on its hosts. `--model vgg11_bn --image 224`
communicates much (129 M parameters), `--model resnet50` little.

Efficiency is samples/s / (ranks x samples/s of one rank), the median over the turns. Ranks of one machine
share its cores, so with more compute threads than cores no program could reach 100 %. Efficiency per core
divides by the cores that the threads can use instead of by the ranks.

The loss of a case is the time by which rank 0's step exceeds that of perfect scaling: one rank's step, times the
ratio of the batches. It is split by the step account: exposed communication without waits for late ranks, waits
for late ranks, slower compute (forward, backward and optimizer), and the rest, such as waits for data.

Exit codes: 0, 64 wrong command line, 70 a run failed, 77 this machine cannot create nodes."""

import functools
import pathlib
import shlex
import statistics
import sys
import tempfile

import chart
import record
import suite
import training_runs

MODES = ("strong", "weak")


def parse_arguments(arguments):
    parser = training_runs.argument_parser("scaling_bench.py", __doc__)
    parser.add_argument("--bin", default=str(training_runs.ROOT / "build/cpu/bin"), help="folder of the built programs")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="numbers of ranks; must include 1")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--image", type=int, default=28, help="height and width of an image in pixels")
    parser.add_argument("--batch", type=int, default=64, help="batch of each rank in weak scaling")
    parser.add_argument("--global-batch", type=int, help="batch of all ranks in strong scaling (default: --batch times the largest number of ranks)")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each rank")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each run, after as many warm-up steps")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every case")
    parser.add_argument("--rate", default=training_runs.SHARED, help="rate of each node's link, such as 1gbit; none: no limit (default: one node)")
    parser.add_argument("--ranks-per-node", type=int, default=1, help="ranks on each node, with --rate")
    training_runs.add_host_arguments(parser)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="set this key in lockstep train")
    parser.add_argument("--json", type=pathlib.Path, help="write the result to this file, and a chart (.svg) beside it")
    parser.add_argument("--redraw", type=pathlib.Path, metavar="FILE", help="only draw the chart of this result")
    options = parser.parse_args(arguments)
    options.ranks = sorted(set(options.ranks))
    options.global_batch = options.global_batch or options.batch * options.ranks[-1]
    if options.ranks[0] != 1:
        parser.error("--ranks must include 1, because efficiency is relative to one rank")
    if "strong" in options.modes and any(options.global_batch % ranks for ranks in options.ranks):
        parser.error(f"--global-batch {options.global_batch} must be divisible by each of {options.ranks} ranks")
    if options.rate != training_runs.SHARED and any(r % options.ranks_per_node for r in options.ranks if r > 1):
        parser.error(f"--ranks {options.ranks} must be divisible by --ranks-per-node {options.ranks_per_node}")
    return options


def batch_of(options, mode, ranks):
    """The batch of each rank."""
    return options.global_batch // ranks if mode == "strong" else options.batch


def cores_for(ranks, threads, cores):
    return min(ranks * threads, cores)


def lost(step, one, batches):
    """The parts of a step's loss in ms. one: the step of one rank; batches: the ratio of the step's batch to its."""
    late = step.get("late_ms", 0)
    lost = step["step_ms"] - batches * one["step_ms"]
    communication = step["exposed_ms"] - late - batches * one["exposed_ms"]
    compute = step["compute_ms"] - batches * one["compute_ms"]
    return {"lost_ms": lost, "communication_ms": communication, "late_ranks_ms": late, "compute_ms": compute,
            "rest_ms": lost - communication - late - compute}


def rows_of(options, turns, cores):
    """turns: per_step() of every turn, by (mode, ranks). cores: None if the ranks may use other machines."""
    rows = []
    for (mode, ranks), steps in turns.items():
        speeds = [step["samples_per_second"] for step in steps]
        typical, least, most = training_runs.middle(speeds)
        ratios = [speed / one["samples_per_second"] for speed, one in zip(speeds, turns[mode, 1])]
        ratio, low, high = training_runs.middle(ratios)
        row = {"mode": mode, "ranks": ranks, "batch_per_rank": batch_of(options, mode, ranks),
               "global_batch": ranks * batch_of(options, mode, ranks), "samples_per_second": typical,
               "samples_per_second_spread": [least, most], "speedup": ratio, "speedup_spread": [low, high],
               "efficiency": ratio / ranks, "efficiency_spread": [low / ranks, high / ranks], "turns": speeds}
        if ranks > 1:
            batches = batch_of(options, mode, ranks) / batch_of(options, mode, 1)
            losses = [lost(step, one, batches) for step, one in zip(steps, turns[mode, 1])]
            row["lost"] = {part: statistics.median(each[part] for each in losses) for part in losses[0]}
        if cores:
            share = cores_for(ranks, options.threads, cores) / cores_for(1, options.threads, cores)
            row |= {"cores": cores_for(ranks, options.threads, cores), "efficiency_per_core": ratio / share}
        rows.append(row)
    return rows


def line_of(row):
    text = training_runs.tell(f"{row['mode']:<6} {training_runs.counted(row['ranks'], 'rank'):>8} x batch {row['batch_per_rank']:<5}",
                              row["samples_per_second"], *row["samples_per_second_spread"], "samples/s")
    text += f"   efficiency {100 * row['efficiency']:.0f} %"
    if "efficiency_per_core" in row:
        text += f", per core {100 * row['efficiency_per_core']:.0f} % of {row['cores']}"
    if parts := row.get("lost"):
        text += (f"\n{'':<8}lost {parts['lost_ms']:.1f} ms a step: exposed communication {parts['communication_ms']:.1f}, "
                 f"late ranks {parts['late_ranks_ms']:.1f}, slower compute {parts['compute_ms']:.1f}, rest {parts['rest_ms']:.1f}")
    return text


def draw(result):
    """The chart of a result, as SVG text."""
    def series(mode, value, spread, scale=1):
        family = MODES.index(mode)
        points = [(row["ranks"], scale * row[value], *(scale * edge for edge in row[spread]))
                  for row in result["rows"] if row["mode"] == mode]
        return chart.Series(f"{mode} scaling", points, family=family)
    modes = [mode for mode in MODES if any(row["mode"] == mode for row in result["rows"])]
    ranks = sorted({row["ranks"] for row in result["rows"]})
    one = next(row for row in result["rows"] if row["mode"] == modes[-1] and row["ranks"] == 1)["samples_per_second"]
    speed = [series(mode, "samples_per_second", "samples_per_second_spread") for mode in modes]
    speed.append(chart.Series(f"{modes[-1]}, one rank times ranks", [(r, one * r) for r in ranks], dashed=True, family=6,
                              markers=False))
    efficiency = [series(mode, "efficiency", "efficiency_spread", 100) for mode in modes]
    if result.get("cores"):
        most = [(r, 100 * cores_for(r, result["threads"], result["cores"]) / cores_for(1, result["threads"],
                 result["cores"]) / r) for r in ranks]
        efficiency.append(chart.Series("all that the cores allow", most, dashed=True, family=6, markers=False))
    return chart.svg(
        f"{result['model']}, {training_runs.counted(result['threads'], 'thread')} a rank, {result['link']}",
        [chart.Panel("Throughput", "ranks", "samples/s", speed, log_x=True),
         chart.Panel("Efficiency against one rank", "ranks", "%", efficiency, log_x=True, y_most=100)],
        f"Medians of {training_runs.counted(result['rounds'], 'turn')}, bars from the least to the most; {result['date']}")


def measure(options, folder):
    training = training_runs.Training(f"{options.bin}/lockstep", options.model, options.image, options.steps,
                                      options.threads, options.set, folder)

    def steps(mode, ranks):
        launch = training_runs.launcher(ranks, options.rate, options.ranks_per_node, options.mpirun)
        return training.run(launch, ranks, batch_of(options, mode, ranks))
    cases = [(mode, ranks) for ranks in options.ranks for mode in options.modes]
    turns = suite.take_turns({case: functools.partial(steps, *case) for case in cases}, options.rounds)
    cores = None if options.mpirun else record.cores()
    rows = rows_of(options, turns, cores)
    link = {training_runs.SHARED: "one node, shared memory"}.get(
        options.rate, f"nodes of {options.ranks_per_node} on one machine, links of {options.rate}")
    return {"benchmark": "scaling", "model": options.model, "image": [options.image, options.image, 1],
            "threads": options.threads, "steps": options.steps, "rounds": options.rounds, "cores": cores,
            "link": f"mpirun {options.mpirun}" if options.mpirun else link, "rows": rows}


def run(options, arguments):
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(options, pathlib.Path(folder))
    print("\n".join(line_of(row) for row in result["rows"]))
    if options.json:
        command = shlex.join(["benchmarks/scaling_bench.py", *arguments])
        result = {**record.circumstances(command, f"{options.bin}/lockstep"), **result}
        record.write(options.json, result)
        options.json.with_suffix(".svg").write_text(draw(result))


if __name__ == "__main__":
    sys.exit(training_runs.main("scaling_bench.py", parse_arguments, run, sys.argv[1:], draw))
