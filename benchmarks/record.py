#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stores a benchmark's result together with its machine, versions, revision, date and command; without them a
number cannot be judged or repeated. Runs COMMAND with --json, adds these five fields, and writes FILE:

  benchmarks/record.py benchmarks/results/allreduce_2_ranks.json -- mpirun -np 2 build/cpu/bin/allreduce_bench"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import subprocess

import suite

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIELDS = ("machine", "versions", "revision", "date", "command")


def first_line_with(path, start):
    for line in pathlib.Path(path).read_text().splitlines():
        if line.startswith(start):
            return line.replace("=", ":", 1).split(":", 1)[1].strip().strip('"')
    return ""


def output_of(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    except OSError:  # the program does not exist
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def revision():
    """The measured commit, marked if tracked files differ from it. In a bundle, the content of its file
    `version`."""
    bundled = ROOT / "version"
    if bundled.is_file():
        return bundled.read_text().strip()
    commit = output_of("git", "rev-parse", "HEAD")
    if not commit:
        return ""
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no", "--", ":!benchmarks/results")
    return commit + (", changed since" if changed else "")


def portable(command):
    """The command with absolute paths reduced to file names."""
    return shlex.join(pathlib.PurePath(word).name if word.startswith("/") else word for word in shlex.split(command))


def versions_in(info):
    """The lines of `lockstep info` by name, without the presets. Skips indented lines, which continue the
    line above."""
    lines = [line.split() for line in info.splitlines() if line[:1].strip()]
    return {name: " ".join(rest) for name, *rest in lines if name != "presets"}


def processor():
    """The processor's name and its largest instruction set. Virtual machines hide the models of AMD's
    processors, so their generation follows from family and model (AMD's revision guides)."""
    name = first_line_with("/proc/cpuinfo", "model name")
    flags = first_line_with("/proc/cpuinfo", "flags").split()
    sets = [text for flag, text in (("amx_bf16", "AMX"), ("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags]
    facts = sets[:1]
    if name == "AMD EPYC":
        family, model = (int(first_line_with("/proc/cpuinfo", key) or 0) for key in ("cpu family", "model\t"))
        zen = {26: 5 if model < 0x50 or 0x60 <= model < 0x80 else None, 25: 4 if 0x10 <= model < 0x20 or 0x60 <= model < 0xb0 else 3,
               23: 1 if model < 0x30 else 2}.get(family)
        facts = ([f"Zen {zen}"] if zen else []) + facts
    return f"{name} ({', '.join(facts)})" if facts else name


def cores():
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def circumstances(command, lockstep=ROOT / "build/cpu/bin/lockstep"):
    """The five fields for this machine at this time. The versions come from `lockstep info`. A field that
    cannot be determined is empty, and missing() reports it."""
    return {"machine": {"processor": processor(), "cores": cores(),
                        "system": first_line_with("/etc/os-release", "PRETTY_NAME"), "kernel": platform.release()},
            "versions": versions_in(output_of(lockstep, "info")),
            "revision": revision(),
            "date": datetime.date.today().isoformat(),
            "command": portable(command)}


def lacking(result):
    there = {field for field in FIELDS if result.get(field)}
    if any(word.startswith("/") for word in (result.get("command") or "").split()):
        there.discard("command")
    return [field for field in FIELDS if field not in there]


def missing(document):
    """The fields that a result lacks, as "field" or "part: field". A command with absolute paths counts as
    missing because it cannot be repeated on another machine. A file is one result, or has parts with their
    own fields."""
    lacks = lacking(document)
    parts = {name: part for name, part in document.items() if isinstance(part, dict) and "command" in part}
    if not lacks or not parts:
        return lacks
    found = []
    for name, part in document.items():
        if name in parts:
            found += [f"{name}: {field}" for field in lacking(part)]
        elif not isinstance(part, str):
            found.append(f"{name}: {', '.join(FIELDS)}")
    return found


def write(file, result):
    """Replaces the file in one step, so that an interrupted program leaves the old one."""
    text = json.dumps(result, indent=1) + "\n"
    if file.exists() and not file.is_file():  # such as /dev/null
        file.write_text(text)
        return
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("command", nargs="+", help="command after --, of a program that has the flag --json")
    parser.add_argument("--lockstep", default=ROOT / "build/cpu/bin/lockstep", help="program whose `info` lists the versions")
    options = parser.parse_args()
    done = suite.execute_with_json(options.command)
    if done.status != "ok":
        parser.exit(70, f"record.py: {done.text}: {done.reason}\n")
    here = circumstances(shlex.join(options.command), options.lockstep)
    machine = {**(done.result.get("machine") or {}), **here["machine"]}  # a program may know more, such as its compiler
    write(options.file, {**here, **done.result, "machine": machine})


if __name__ == "__main__":
    main()
