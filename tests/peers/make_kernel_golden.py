#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/peers/golden/kernels: PyTorch's results of single kernels in float64, for
kernels_golden_test.cpp.

    python tests/peers/make_kernel_golden.py                          writes the files
    python tests/peers/make_kernel_golden.py --check --program build/cpu/bin/kernels_golden_test --seeds 20
                                                                      compares them with this PyTorch, then has the
                                                                      program compare 20 sets of other random cases

Needs torch and numpy; the files name their versions. For each case N and result NAME a file has

  N.NAME        the result, rounded to fp32
  N.NAME.bound  largest accepted error of an fp32 kernel: see kernel_peers.py

and the cases in its metadata. Inputs are not in the files: see kernel_cases.py. --check works without
--program. Without PyTorch the exit code is 77: skipped.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
try:
    import numpy as np
    import torch
except ImportError as missing:
    print(f"Skipped: {missing}. LOCKSTEP_PEER_PYTHON can name a Python that has torch and numpy.")
    sys.exit(SKIPPED)

import files
import kernel_cases
import kernel_peers

FOLDER = pathlib.Path(__file__).parent / "golden" / "kernels"
SEED = 12


def compute(family, case):
    """{name: fp32 array} of results and bounds, the bounds rounded up."""
    tensors = {}
    for name, (exact, bound) in kernel_peers.PEERS[family](case).items():
        assert not np.isnan(exact).any() and not np.isnan(bound).any(), (family, case, name)
        with np.errstate(over="ignore"):
            tensors[name] = exact.ravel().astype(np.float32)
            bound = bound.ravel()
            tensors[f"{name}.bound"] = np.where(bound > 0, np.nextafter(bound.astype(np.float32), np.float32(np.inf)),
                                                np.float32(0))
    return tensors


def usable_cases(family, seed):
    """[(case, results)] for one file: the number of cases is that of the family."""
    found = []
    for case in kernel_cases.cases(family, seed):
        try:
            found.append((case, compute(family, case)))
        except kernel_peers.Undecided:
            continue
        if len(found) == kernel_cases.FAMILIES[family][1]:
            return found


def write(folder, seed):
    folder.mkdir(parents=True, exist_ok=True)
    for family in kernel_cases.FAMILIES:
        found = usable_cases(family, seed)
        tensors = {f"{i}.{name}": array for i, (_, results) in enumerate(found) for name, array in results.items()}
        files.write_safetensors(folder / f"{family}.safetensors", tensors, {
            "made by": f"tests/peers/make_kernel_golden.py, PyTorch {torch.__version__}, numpy {np.__version__}",
            "cases": json.dumps([case for case, _ in found])})


def check():
    """Computes the files' cases again: True if this PyTorch agrees with the files to the last bit but one."""
    good = True
    for family in kernel_cases.FAMILIES:
        path = FOLDER / f"{family}.safetensors"
        stored = files.read_safetensors(path)
        for i, case in enumerate(json.loads(files.read_metadata(path)["cases"])):
            for name, array in compute(family, case).items():
                kept = stored[f"{i}.{name}"]
                if not np.allclose(array, kept, rtol=2.0**-20 if name.endswith(".bound") else 2.0**-23, atol=2.0**-149):
                    print(f"{family} {i}: {name} differs from the golden file")
                    good = False
    return good


def run_other_seeds(program, seeds):
    good = True
    for seed in range(SEED + 1, SEED + 1 + seeds):
        with tempfile.TemporaryDirectory() as folder:
            write(pathlib.Path(folder), seed)
            ended = subprocess.run([program, "--gtest_brief=1"], env={**os.environ, "LOCKSTEP_KERNEL_GOLDEN": folder})
        if ended.returncode != 0:
            print(f"seed {seed}: {program} ended with {ended.returncode}")
            good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; compare the files with this PyTorch")
    parser.add_argument("--program", help="with --check: kernels_golden_test, to be run on other random cases, too")
    parser.add_argument("--seeds", type=int, default=10, help="sets of other random cases")
    arguments = parser.parse_args()
    if not arguments.check:
        write(FOLDER, SEED)
        return 0
    good = check()
    if arguments.program:
        good = run_other_seeds(arguments.program, arguments.seeds) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
