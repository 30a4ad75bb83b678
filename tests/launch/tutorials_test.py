#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every command of a tutorial in order, in one folder, with fewer steps and images.

  tutorials_test.py PAGE BIN    BIN: the folder of the program lockstep

Each block of commands must end with 0, or with the code that the comment "# exit code N" of its last line
gives. An output block's line that begins with "lockstep: " must be printed as it is."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

# Fewer steps and images.
SHORTER = [
    (r"(photos\.py photos)", r"\1 --train 140 --test 20"),
    (r"train\.steps=(\$\(\([^)]*\)\)|\d+)", "train.steps=6"),
    (r"train\.epochs=\d+", "train.epochs=1"),
    (r"^steps = \d+", "steps = 6"),
    (r"--seconds \d+", "--seconds 1"),
    (r"(lockstep (train|profile) (?:fashion_mnist|cifar10)\w+)(?!.*train\.(steps|epochs))", r"\1 --set train.steps=6"),
]


def blocks_of(text):
    """The (language, content) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shortened(commands):
    joined = commands.replace("\\\n", " ")
    for pattern, shorter in SHORTER:
        joined = re.sub(pattern, shorter, joined, flags=re.MULTILINE)
    return joined


def run(commands, folder, environment):
    wanted = re.findall(r"# exit code (\d+)$", commands, re.MULTILINE)
    done = subprocess.run(["bash", "-e", "-c", shortened(commands)], cwd=folder, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", timeout=300)
    code = int(wanted[-1]) if wanted else 0
    if done.returncode != code:
        sys.exit(f"exit code {done.returncode} instead of {code}:\n{shortened(commands)}\n{done.stdout}")
    return done.stdout


def main():
    page, programs = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    text = page.read_text()
    assert len(text.splitlines()) <= 200, "a tutorial has at most 200 lines"
    blocks = blocks_of(text)
    commands = [content for language, content in blocks if language == "sh"]
    assert len(commands) >= 5, page
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "OMP_WAIT_POLICY": "passive"}
    exports = ""  # each block is a shell of its own
    output = ""
    with tempfile.TemporaryDirectory(prefix="lockstep_tutorial_") as folder:
        (pathlib.Path(folder) / "photos.py").write_bytes((page.parent / "photos.py").read_bytes())
        for block in commands:
            output += run(exports + block, folder, environment)
            exports += "".join(line + "\n" for line in block.splitlines() if line.startswith("export "))
    flat = " ".join(output.split())
    for language, content in blocks:
        if language == "sh":
            continue
        for line in content.splitlines():
            if line.startswith("lockstep: ") and line not in flat:
                sys.exit(f"{page} shows this line, which no command printed:\n{line}\n{output}")


if __name__ == "__main__":
    main()
