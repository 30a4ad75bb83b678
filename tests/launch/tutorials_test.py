#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every command of a page in order, in one folder, with fewer steps and images.

  tutorials_test.py PAGE BIN [LINES]    BIN: the folder of the program lockstep; LINES: most lines of the page (200)

Each block of commands must end with 0, or with the code that the comment "# exit code N" of its last line
gives, or with 77 where this machine has no nodes (tests/nodes.sh). An output block's line that begins with
"lockstep: " must be printed as it is. The folder is the repository's root for the commands, also as
/PATH/TO/lockstep."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import training_runs  # noqa: E402

# Fewer steps and images, smaller images and batches, fewer cases. As with 1001 samples in batches of 50, three ranks
# cannot share the tail batch of 53 samples in batches of 8 equally.
SHORTER = [
    (r"(photos\.py photos)", r"\1 --train 140 --test 20 --factor 4"),
    (r"train_samples=1001", "train_samples=53"),
    (r"^(?!.*height)(.*data\.synthetic\.channels=1)", r"\1 --set data.synthetic.height=8 --set data.synthetic.width=8"),
    (r"train\.steps=(\$\(\([^)]*\)\)|\d+)", "train.steps=6"),
    (r"train\.epochs=\d+", "train.epochs=1"),
    (r"^steps = \d+", "steps = 6"),
    (r"--seconds \d+", "--seconds 1"),
    (r"(lockstep tune .*)--minutes \d+", r"\1--steps 40"),
    (r"(overlap_bench\.py)(.* --buckets [\d.]+)[\d. ]*( [\d.]+)",
     r"\1 --model mlp --image 8 --batch 4 --steps 2 --rounds 1\2\3"),
    (r"(lockstep (train|profile) (?:fashion_mnist|cifar10)\w+)(?!.*train\.(steps|epochs))", r"\1 --set train.steps=6"),
    (r"(lockstep (?:train|profile|plan|find-batch|tune) fashion_mnist_\w+)(?!.*data\.(?:format|path))",
     r"\1 --set data.path=images"),
    (r"(lockstep (?:train|profile|plan|tune) fashion_mnist_\w+)(?!.*train\.batch)", r"\1 --set train.batch=8"),
    (r"train\.batch=\d\d+", "train.batch=8"),
    (r"train\.batch=\$batch", "train.batch=$((batch / 16 + 1))"),
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
    if done.returncode == 77 and re.search(r"tests/nodes\.sh|overlap_bench", commands):
        print(f"left out, because this machine has no nodes:\n{commands}")
    elif done.returncode != code:
        sys.exit(f"exit code {done.returncode} instead of {code}:\n{shortened(commands)}\n{done.stdout}")
    return done.stdout


def main():
    page, programs = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    text = page.read_text()
    most = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    assert len(text.splitlines()) <= most, f"{page} has more than {most} lines"
    blocks = blocks_of(text)
    commands = [content for language, content in blocks if language == "sh"]
    assert len(commands) >= 5, page
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    exports = ""  # each block is a shell of its own
    output = ""
    with tempfile.TemporaryDirectory(prefix="lockstep_tutorial_") as folder:
        here = pathlib.Path(folder)
        (here / "build/cpu").mkdir(parents=True)
        (here / "build/cpu/bin").symlink_to(programs)
        # The last epoch is always evaluated, so few test images save more time than few steps.
        (here / "images").mkdir()
        training_runs.write_images(here / "images", 8192, 256, 28)
        for name in ("tests", "benchmarks", "launch"):
            (here / name).symlink_to(ROOT / name)
        for block in commands:
            block = block.replace("/PATH/TO/lockstep", folder)
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
