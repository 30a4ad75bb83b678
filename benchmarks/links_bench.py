#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of a link does an all-reduce between nodes use? Runs `allreduce_bench` on nodes of this machine
that are joined by links of a rate (tests/nodes.sh), or with --mpirun on its hosts, one rank per node:
Lockstep's all-reduce from plain memory, in turns with plain TCP connections between all nodes that carry the
same bytes, in both directions at once and without adding. With --mpirun, --links has one entry, the rate of the
hosts' links.

  link    payload rate of the link: 1,448 of the 1,514 bytes of a TCP frame
  ours    bus bandwidth of the in-place all-reduce: bytes that each node sends (and receives) over the time
  of tcp  ours over plain TCP's in the same turns: median, least and most over the rounds
  of link ours over the link's; small messages exceed the link's rate because a link passes bursts of 256 KiB

At high rates on few cores, plain TCP alone uses all cores. Each (link, nodes) is a separate part of the file.
A run keeps the parts that it does not measure.

Exit codes: 0, 64 wrong command line, 70 a run failed, 77 this machine cannot create nodes."""

import json
import pathlib
import re
import shlex
import sys
import tempfile

import chart
import record
import suite
import training_runs

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def parse_arguments(arguments):
    parser = training_runs.argument_parser("links_bench.py", __doc__)
    parser.add_argument("--bin", default=str(training_runs.ROOT / "build/cpu/bin"), help="folder of the built programs")
    training_runs.add_host_arguments(parser)
    parser.add_argument("--way", choices=["plain", "window", "nccl"], default="plain", help="way of Lockstep's all-reduce (nccl: on GPUs)")
    parser.add_argument("--links", nargs="+", default=["200mbit", "1gbit", "10gbit"])
    parser.add_argument("--nodes", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--sizes", nargs=2, default=["64K", "64M"], metavar=("LEAST", "MOST"), help="smallest and largest size; the factor between sizes is 4")
    parser.add_argument("--iters", type=int, default=5, help="timed turns of each run")
    parser.add_argument("--rounds", type=int, default=1, help="runs of every case")
    parser.add_argument("--json", type=pathlib.Path, help="write the result to this file, and a chart (.svg) beside it")
    parser.add_argument("--redraw", type=pathlib.Path, metavar="FILE", help="only draw the chart of this result")
    options = parser.parse_args(arguments)
    if unknown := [link for link in options.links if not re.fullmatch(r"[0-9.]+(k|m|g)bit", link)]:
        parser.error(f"--links {unknown[0]} is not a rate such as 200mbit or 1gbit")
    if options.mpirun and len(options.links) > 1:
        parser.error("--mpirun needs --links RATE: the hosts' links have one rate")
    if min(options.nodes) < 2:
        parser.error(f"--nodes {min(options.nodes)}: at least 2 nodes are needed")
    return options


def link_gb_per_s(link):
    """Payload rate of the link in GB/s."""
    return float(link[:-4]) * UNITS[link[-4:]] / 8e9 * 1448 / 1514


def run_once(options, link, nodes):
    """nccl-tests' columns in place, as {bytes: {way: columns}}."""
    launch = [str(training_runs.NODES), link, str(nodes), "1"]
    if options.mpirun:
        launch = training_runs.launcher(nodes, mpirun=options.mpirun)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file = pathlib.Path(folder) / "result.json"
        least, most = options.sizes
        command = [*launch, f"{options.bin}/allreduce_bench", "-b", least, "-e", most,
                   "-f", "4", "-n", str(options.iters), "-w", "1", "--ways", f"{options.way},tcp", "--json", str(file)]
        done = suite.execute(command)
        if done.exit_code == 77:
            raise training_runs.Skipped(suite.last_lines(done.output, 1))
        training_runs.succeeded(done)
        rows = json.loads(file.read_text())["rows"]
    found = {}
    for row in rows:
        found.setdefault(row["bytes"], {})[row["way"]] = row["in_place"]
    return found


def rows_of(rounds, link, way):
    rows = []
    for size in rounds[0]:
        def middle(column, of=way):
            return training_runs.middle([found[size][of][column] for found in rounds])
        ours, least, most = middle("busbw_gb_per_s")
        tcp = middle("busbw_gb_per_s", "tcp")[0]
        share, *spread = training_runs.middle([found[size][way]["busbw_gb_per_s"] / found[size]["tcp"]["busbw_gb_per_s"] for found in rounds])
        rows.append({"bytes": size, "time_us": middle("time_us")[0], "algbw_gb_per_s": middle("algbw_gb_per_s")[0], "busbw_gb_per_s": ours, "busbw_spread": [least, most], "tcp_gb_per_s": tcp,
                     "of_tcp": share, "of_tcp_spread": spread, "of_link": ours / link_gb_per_s(link)})
    return rows


def line_of(name, row):
    """The columns of nccl-tests' all_reduce_perf, beside plain TCP."""
    return (f"{name:<16} size {row['bytes']:>10} B   time {row['time_us']:>10.1f} us   algbw {row['algbw_gb_per_s']:7.3f} GB/s   "
            f"busbw {row['busbw_gb_per_s']:7.3f} GB/s   plain TCP {row['tcp_gb_per_s']:7.3f} GB/s   of tcp {100 * row['of_tcp']:4.0f} %   "
            f"of link {100 * row['of_link']:4.0f} %")


def draw(document):
    """The chart of a file, as SVG text."""
    parts = list(training_runs.parts_of(document).values())
    links = dict.fromkeys(part["link"] for part in parts)
    panels = []
    for link in links:
        series = [chart.Series(f"{part['nodes']} nodes", [(row["bytes"] / 2**20, 100 * row["of_tcp"],
                                                           *(100 * share for share in row["of_tcp_spread"]))
                                                          for row in part["rows"]])
                  for part in parts if part["link"] == link]
        panels.append(chart.Panel(f"Links of {link}", "size of the all-reduce (MiB)", "% of plain TCP", series, log_x=True,
                                  y_most=100))
    fewest, most = (pick(part["rounds"] for part in parts) for pick in (min, max))
    rounds = training_runs.counted(most, "round") if fewest == most else f"{fewest} to {most} rounds"
    return chart.svg("All-reduce between nodes of one rank, against plain TCP both ways at once", panels,
                     f"Medians of {rounds}, bars from the least to the most; {parts[0]['date']}")


def run(options, arguments):
    document = {"benchmark": "links"}
    if options.json and options.json.exists():
        document = json.loads(options.json.read_text())
    command = shlex.join(["benchmarks/links_bench.py", *arguments])
    for link in options.links:
        for nodes in options.nodes:
            rounds = [run_once(options, link, nodes) for _ in range(options.rounds)]
            name = f"{link}, {nodes} {'hosts' if options.mpirun else 'nodes'}"
            document[name] = {**record.circumstances(command, f"{options.bin}/lockstep"), "link": link, "nodes": nodes, "way": options.way,
                              "iters": options.iters, "rounds": options.rounds, "rows": rows_of(rounds, link, options.way)}
            print("\n".join(line_of(name, row) for row in document[name]["rows"]), flush=True)
            if options.json:
                record.write(options.json, document)
                options.json.with_suffix(".svg").write_text(draw(document))


if __name__ == "__main__":
    sys.exit(training_runs.main("links_bench.py", parse_arguments, run, sys.argv[1:], draw))
