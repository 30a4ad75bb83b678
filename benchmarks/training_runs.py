# SPDX-License-Identifier: Apache-2.0
"""Runs `lockstep train` on random images for the benchmarks, on ranks that share this machine, on nodes of
this machine with links of a given rate (tests/nodes.sh), or on mpirun's hosts, and reads the runs'
metrics.jsonl."""

import argparse
import dataclasses
import json
import pathlib
import random
import shlex
import statistics
import struct
import sys

import suite

ROOT = pathlib.Path(__file__).resolve().parent.parent
NODES = ROOT / "tests/nodes.sh"
SHARED = "shared"  # the link between ranks of one node
CLASSES = 10


class Skipped(Exception):
    """This machine cannot create nodes; the message has the reason."""


class Failed(Exception):
    """A run ended with an error."""


def write_images(folder, train, test, side):
    """Writes a dataset in IDX format: `train` and `test` random grey images of side x side pixels."""
    noise = random.Random(0)
    for split, count in (("train", train), ("t10k", test)):
        (folder / f"{split}-images-idx3-ubyte").write_bytes(
            struct.pack(">4I", 0x803, count, side, side) + noise.randbytes(count * side * side))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2I", 0x801, count) + bytes(i % CLASSES for i in range(count)))


def first_images(images, folder, counts):
    """A folder with the first images of each class: counts gives their number for each split; None: all."""
    for split, count in counts.items():
        for kind in sorted((images / split).iterdir()):
            (folder / split / kind.name).mkdir(parents=True)
            for image in sorted(kind.iterdir())[:count]:
                (folder / split / kind.name / image.name).symlink_to(image.resolve())
    return folder


def argument_parser(name, description):
    """A parser that ends with exit code 64 on a wrong command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: parser.exit(64, f"{name}: {message}; see --help\n")
    return parser


def add_host_arguments(parser):
    parser.add_argument("--mpirun", default="", metavar="WORDS",
                        help="start ranks with these words instead of on this machine: arguments of mpirun, such as \"--host a:4,b:4\", "
                        "or in an allocation of Slurm \"--map-by ppr:4:node\" or \"srun --mpi=pmix\"")
    parser.add_argument("--folder", type=pathlib.Path, help="folder for files that every host must see, with --mpirun (default: the system's for temporary files)")


def launcher(ranks, link=SHARED, ranks_per_node=1, mpirun=""):
    """The words that start a command on `ranks` ranks. link: SHARED, or a rate of tests/nodes.sh, which puts
    ranks_per_node ranks on each node. mpirun: the value of --mpirun; link is then ignored."""
    words = shlex.split(mpirun)
    if words[:1] == ["srun"]:
        return [*words, "-n", str(ranks)]
    if words:
        return ["mpirun", *words, "-np", str(ranks)]
    if link == SHARED or ranks <= ranks_per_node:
        return ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
    return [str(NODES), link, str(ranks // ranks_per_node), str(ranks_per_node)]


def overrides(settings):
    """The words --set KEY=VALUE for a dictionary of settings, or for a list of "KEY=VALUE"."""
    if isinstance(settings, dict):
        settings = [f"{key}={value}" for key, value in settings.items()]
    return [word for setting in settings for word in ("--set", setting)]


def succeeded(run):
    """Returns the run. Throws Failed if it failed."""
    if run.status != "ok":
        raise Failed(f"{run.text}: {run.reason}")
    return run


def lines_of(path):
    """The objects of a JSON lines file; empty if the file does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def parts_of(document):
    """The parts of a result that have their own fields, by name."""
    return {name: part for name, part in document.items() if isinstance(part, dict)}


def per_step(epochs):
    """Speed and times per step of the last epoch. epochs: lines of metrics.jsonl; the earlier ones are
    warm-up. Has overlap and wire_ms if the epoch accounts for communication."""
    last = epochs[-1]
    steps = last["steps"] - (epochs[-2]["steps"] if len(epochs) > 1 else 0)
    account = last["account"]
    exposed = account["exposed_communication"]
    compute = sum(account.get(part, 0) for part in ("forward", "backward", "optimizer"))
    row = {"samples_per_second": last["samples_per_second"], "step_ms": 1e3 * last["train_seconds"] / steps,
           "compute_ms": 1e3 * compute / steps,
           "exposed_ms": 1e3 * exposed / steps, "exposed_share": exposed / sum(account.values())}
    communication = last.get("communication") or {}
    if "late_seconds" in communication.get("exposed", {}):
        row["late_ms"] = 1e3 * communication["exposed"]["late_seconds"] / (communication.get("steps") or steps)
    if communication.get("overlap") is not None:  # None if nothing was sent
        row |= {"overlap": communication["overlap"],
                "wire_ms": 1e3 * communication["wire_seconds"] / (communication.get("steps") or steps)}
    return row


# Codecs without warm-up, because runs are short.
STEADY_CODECS = {"comm.powersgd.start_step": 0, "comm.topk.warmup_steps": 0, "comm.dgc.warmup_steps": 0}


@dataclasses.dataclass
class Training:
    """Settings of all runs. A run has warm_epochs + 1 epochs of `steps` steps; only the last epoch is
    measured."""
    lockstep: str
    model: str
    image: int
    steps: int
    threads: int
    settings: list  # "section.key=value"
    folder: pathlib.Path  # for images and metrics; must be visible to all hosts
    warm_epochs: int = 1  # epochs before the measured one

    def images_for(self, global_batch):
        folder = self.folder / f"images_{global_batch}"
        if not folder.exists():
            folder.mkdir()
            write_images(folder, self.steps * global_batch, global_batch, self.image)
        return folder

    def command(self, ranks, batch, settings=()):
        """Returns the command and the folder of its metrics."""
        run_dir = self.folder / "run"
        told = {"model.name": f'"{self.model}"', "data.format": '"idx"',
                "data.path": f'"{self.images_for(ranks * batch)}"', "run.dir": f'"{run_dir}"', "run.checkpoint_minutes": 0,
                "train.batch": batch,
                "train.epochs": self.warm_epochs + 1, "train.threads": self.threads, "optimizer.learning_rate": 0.01,
                **STEADY_CODECS}
        config = self.folder / "config.toml"
        config.write_text("".join(f"{name} = {value}\n" for name, value in told.items()))
        return [self.lockstep, "train", str(config), *overrides([*self.settings, *settings])], run_dir

    def run(self, launch, ranks, batch, settings=()):
        """Runs the training and returns its per_step(). Throws Skipped and Failed."""
        command, run_dir = self.command(ranks, batch, settings)
        for old in run_dir.glob("metrics*.jsonl"):
            old.unlink()
        done = suite.execute([*launch, *command])
        if done.exit_code == 77:
            raise Skipped(suite.last_lines(done.output, 1))
        succeeded(done)
        return per_step(lines_of(run_dir / "metrics.jsonl"))


def middle(values):
    """(median, least, most)"""
    return statistics.median(values), min(values), max(values)


def counted(count, noun):
    return f"{count} {noun}" + ("" if count == 1 else "s")


def tell(name, value, least, most, unit):
    return f"{name} {value:,.1f} {unit} ({least:,.1f} to {most:,.1f})"


def main(name, parse_arguments, run, arguments, draw=None):
    """Runs a benchmark program and returns its exit code, which is that of run(), or 0. draw: --redraw FILE only
    draws the chart of FILE again."""
    options = parse_arguments(arguments)
    if draw and options.redraw:
        options.redraw.with_suffix(".svg").write_text(draw(json.loads(options.redraw.read_text())))
        return 0
    try:
        return run(options, arguments) or 0
    except Skipped as reason:
        print(reason, file=sys.stderr)
        return 77
    except (Failed, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 70
