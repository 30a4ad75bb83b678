#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how much communication the backward pass hides: step time and exposed communication of
`lockstep train` on random images, in turns over links, gradient codecs (comm.codec) and bucket sizes, with
and without overlap (comm.overlap), and with and without an exchange that continues into the next step
(comm.cross_barrier). Links are "shared" (ranks of one node, shared memory) and rates of tests/nodes.sh: nodes
on this machine joined by links of that rate ("none": no limit). With --mpirun there is one link, "hosts".

Exposed communication is the time that a step waits for communication after the backward pass, by the step
account. The hidden share is 1 - exposed time with overlap / exposed time without it, the median over the
turns. It is negative where overlap exposes more. Where metrics.jsonl accounts for communication, the result
also has its overlap ratio and the time on the wire. Each link is a separate part of the file. A run keeps the
links that it does not measure.

Exit codes: 0, 64 wrong command line, 70 a run failed, 77 this machine cannot create nodes."""

import functools
import json
import pathlib
import shlex
import statistics
import sys
import tempfile

import chart
import record
import suite
import training_runs


def parse_arguments(arguments):
    parser = training_runs.argument_parser("overlap_bench.py", __doc__)
    parser.add_argument("--bin", default=str(training_runs.ROOT / "build/cpu/bin"), help="folder of the built programs")
    parser.add_argument("--links", nargs="+", default=[training_runs.SHARED, "1gbit", "200mbit"])
    parser.add_argument("--buckets", type=float, nargs="+", default=[1, 4, 25], metavar="MIB",
                        help="capacities of middle buckets; the first and the last have at most 1 MiB")
    parser.add_argument("--codecs", nargs="+", default=[""], metavar="CODEC",
                        help="values of comm.codec, measured in turns (default: the configuration's)")
    parser.add_argument("--overlap", choices=["both", "on"], default="both", help="both: measure also without overlap")
    parser.add_argument("--cross-barrier", choices=["off", "on", "both"], default="off",
                        help="on: with comm.cross_barrier if there is overlap; both: measure also without")
    training_runs.add_host_arguments(parser)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ranks-per-node", type=int, default=1, help="ranks on each node")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--image", type=int, default=32, help="height and width of an image in pixels")
    parser.add_argument("--batch", type=int, default=32, help="samples per step and rank")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each rank")
    parser.add_argument("--steps", type=int, default=4, help="timed steps of each run; each warm-up epoch has as many")
    parser.add_argument("--warm-epochs", type=int, default=1,
                        help="warm-up epochs before the timed one; use more if the first steps are trials, as with codec auto")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every case")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="set this key in lockstep train")
    parser.add_argument("--json", type=pathlib.Path, help="write the result to this file, and a chart (.svg) beside it")
    parser.add_argument("--redraw", type=pathlib.Path, metavar="FILE", help="only draw the chart of this result")
    options = parser.parse_args(arguments)
    if options.mpirun:
        options.links = ["hosts"]
    if options.ranks < 2 or options.ranks % options.ranks_per_node:
        parser.error(f"--ranks {options.ranks}: at least 2 ranks are needed, in nodes of {options.ranks_per_node}")
    if options.ranks == options.ranks_per_node and not options.mpirun and set(options.links) != {training_runs.SHARED}:
        parser.error(f"--links {' '.join(options.links)}: the {options.ranks} ranks of one node have no link; give --links shared")
    if min(options.buckets) <= 0:
        parser.error("--buckets must be larger than 0")
    if options.warm_epochs < 1:
        parser.error("--warm-epochs must be at least 1")
    if len(set(options.codecs)) < len(options.codecs):
        parser.error("--codecs lists a codec twice")
    return options


def settings_of(bucket, overlap, codec="", crosses=False):
    edge = min(1, bucket)
    settings = [f"comm.bucket_mib=[{edge:g}, {bucket:g}, {edge:g}]", f"comm.overlap={'true' if overlap else 'false'}"]
    if crosses:
        settings.append("comm.cross_barrier=true")
    return [*settings, f'comm.codec="{codec}"'] if codec else settings


def cases_of(options):
    """The cases to measure, as (bucket, overlap, codec, cross_barrier)."""
    ways = [(True, crosses) for crosses in (False, True) if options.cross_barrier in ("both", "on" if crosses else "off")]
    if options.overlap == "both":
        ways.append((False, False))
    return [(bucket, overlap, codec, crosses) for bucket in options.buckets for codec in options.codecs
            for overlap, crosses in ways]


def hidden_shares(on, off):
    """The hidden share of each turn that exposes communication without overlap."""
    return [1 - a["exposed_ms"] / b["exposed_ms"] for a, b in zip(on, off) if b["exposed_ms"] > 0]


def rows_of(turns):
    """turns: the results of Training.run of every turn, by case."""
    rows = []
    for (bucket, overlap, codec, crosses), steps in turns.items():
        row = {"bucket_mib": bucket, "overlap": overlap, **({"codec": codec} if codec else {}),
               **({"cross_barrier": True} if crosses else {})}
        for name in ("step_ms", "exposed_ms", "exposed_share", "samples_per_second"):
            typical, least, most = training_runs.middle([step[name] for step in steps])
            row |= {name: typical, f"{name}_spread": [least, most]}
        if overlap and (shares := hidden_shares(steps, turns.get((bucket, False, codec, False), []))):
            typical, least, most = training_runs.middle(shares)
            row |= {"hidden_share": typical, "hidden_share_spread": [least, most]}
        if all("wire_ms" in step for step in steps):
            row |= {"accounted_overlap": statistics.median(step["overlap"] for step in steps),
                    "wire_ms": statistics.median(step["wire_ms"] for step in steps)}
        rows.append({**row, "turns": steps})
    return rows


def line_of(link, row):
    case = f"{row['bucket_mib']:>5g} MiB overlap {'on ' if row['overlap'] else 'off'}"
    if row.get("cross_barrier"):
        case += " crossing"
    if "codec" in row:
        case += f" {row['codec']:<8} {row['samples_per_second']:>7,.1f} samples/s"
    text = training_runs.tell(f"{link:<8} {case} step", row["step_ms"], *row["step_ms_spread"], "ms")
    text += f"   exposed {row['exposed_ms']:,.1f} ms, {100 * row['exposed_share']:.0f} %"
    if "hidden_share" in row:
        text += f"   hidden {100 * row['hidden_share']:.0f} %"
    if "wire_ms" in row:
        text += f"   wire {row['wire_ms']:,.1f} ms, overlap {100 * row['accounted_overlap']:.0f} % by the account"
    return text


def draw(document):
    """The chart of a file, as SVG text."""
    by_link = training_runs.parts_of(document)

    def panel(title, label, value):
        series = []
        codecs = [(link, codec) for link, part in by_link.items()
                  for codec in dict.fromkeys(row.get("codec", "") for row in part["rows"])]
        for family, (link, codec) in enumerate(codecs):
            for overlap, crosses in ((True, False), (True, True), (False, False)):
                points = [(row["bucket_mib"], row[value], *row[f"{value}_spread"]) for row in document[link]["rows"]
                          if row["overlap"] == overlap and row.get("codec", "") == codec
                          and row.get("cross_barrier", False) == crosses]
                way = "crossing" if crosses else f"overlap {'on' if overlap else 'off'}"
                name = ", ".join(part for part in (link, codec, way) if part)
                if points:
                    series.append(chart.Series(name, points, dashed=not overlap or crosses, family=family))
        return chart.Panel(title, "capacity of middle buckets (MiB)", label, series, log_x=True)
    parts = list(by_link.values())
    first = parts[0]
    fewest, most = (pick(part["rounds"] for part in parts) for pick in (min, max))
    rounds = training_runs.counted(most, "turn") if fewest == most else f"{fewest} to {most} turns"
    return chart.svg(
        f"{first['model']}, {first['ranks']} ranks of {training_runs.counted(first['threads'], 'thread')}, "
        f"batch {first['batch_per_rank']} each",
        [panel("Step", "ms", "step_ms"), panel("Exposed communication of a step", "ms", "exposed_ms")],
        f"Medians of {rounds}, bars from the least to the most; {first['date']}")


def measure(options, link, folder):
    training = training_runs.Training(f"{options.bin}/lockstep", options.model, options.image, options.steps,
                                      options.threads, options.set, folder, options.warm_epochs)
    launch = training_runs.launcher(options.ranks, link, options.ranks_per_node, options.mpirun)

    def step(*case):
        return training.run(launch, options.ranks, options.batch, settings_of(*case))
    turns = suite.take_turns({case: functools.partial(step, *case) for case in cases_of(options)}, options.rounds)
    return {"model": options.model, "image": [options.image, options.image, 1], "ranks": options.ranks,
            "ranks_per_node": options.ranks if link == training_runs.SHARED else options.ranks_per_node,
            "batch_per_rank": options.batch, "threads": options.threads, "steps": options.steps,
            "rounds": options.rounds, "rows": rows_of(turns)}


def run(options, arguments):
    document = {"benchmark": "overlap"}
    if options.json and options.json.exists():
        document = json.loads(options.json.read_text())
    command = shlex.join(["benchmarks/overlap_bench.py", *arguments])
    for link in options.links:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            part = measure(options, link, pathlib.Path(folder))
        document[link] = {**record.circumstances(command, f"{options.bin}/lockstep"), **part}
        print("\n".join(line_of(link, row) for row in part["rows"]), flush=True)
        if options.json:
            record.write(options.json, document)
            options.json.with_suffix(".svg").write_text(draw(document))


if __name__ == "__main__":
    sys.exit(training_runs.main("overlap_bench.py", parse_arguments, run, sys.argv[1:], draw))
