#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/peers/golden: results of a few training steps in PyTorch, for golden_test.cpp.

    python tests/peers/make_golden.py [CASE ..]

Needs torch and numpy; the files name their versions. For each parameter and running statistic NAME a file has

  NAME          its change by the training, computed in fp64 (a sketch of it if it is long)
  NAME.errors   relative errors of the change in PyTorch in fp32, and with weights, activations and their
                gradients in bf16 (autocast): the errors of the formats, to compare Lockstep's with

and for loss and test_loss an array [3, steps]: in fp64, fp32 and bf16. The metadata has the configuration for
the same training in Lockstep. Initial values and samples are not in the files: golden_cases.py and
golden_formulas.h compute them by the same formulas.
"""

import argparse
import json
import pathlib

import numpy as np
import torch

import files
import golden_cases
import models
import optimizers

FOLDER = pathlib.Path(__file__).parent / "golden"
PRECISIONS = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


def freeze(model, prefixes):
    """Freezes modules by prefix: their parameters are not trained, and their batch norm uses running
    statistics."""
    for name, module in model.named_modules():
        if any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes):
            module.eval()
            module.requires_grad_(False)


class Run:
    """The training of a case in one precision."""

    def __init__(self, case, precision):
        self.case = case
        self.half = precision == "bf16"
        self.dtype = torch.float64 if precision == "fp64" else torch.float32
        self.model = models.build(case.network, case.channels, golden_cases.CLASSES, case.image, 0.0, case.batch_norm)
        state = self.model.state_dict()
        self.start = {name: golden_cases.start(name, tuple(tensor.shape))
                      for name, tensor in state.items() if tensor.is_floating_point()}
        self.model.load_state_dict({name: torch.from_numpy(array) for name, array in self.start.items()}, strict=False)
        self.model.to(self.dtype)
        freeze(self.model, case.frozen)
        self.optimizer = optimizers.make(self.model, case.optimizer)
        self.losses = {"loss": [], "test_loss": []}

    def train(self):
        for _ in range(self.case.steps):
            self.model.train()
            freeze(self.model, self.case.frozen)
            loss = self.loss_of("train", self.case.label_smoothing)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.model.eval()
            with torch.no_grad():
                test_loss = self.loss_of("t10k", 0.0)
            self.losses["loss"].append(loss.item())
            self.losses["test_loss"].append(test_loss.item())

    def loss_of(self, split, label_smoothing):
        images, labels = golden_cases.samples(self.case, split)
        pixels = torch.from_numpy(images).to(self.dtype).permute(0, 3, 1, 2) / 255
        pixels = ((pixels - golden_cases.MEAN) / golden_cases.DEVIATION).contiguous()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            logits = self.model(pixels)
        return torch.nn.functional.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(),
                                                 torch.from_numpy(labels.astype(np.int64)),
                                                 label_smoothing=label_smoothing)

    def changes(self):
        state = self.model.state_dict()
        return {name: state[name].numpy().astype(np.float64) - array for name, array in self.start.items()}


def configuration(case):
    """The configuration in TOML, without the paths."""
    settings = {
        "model": {"name": case.network, "batch_norm": case.batch_norm, "dropout": 0, "freeze": list(case.frozen)},
        "data": {"mean": [golden_cases.MEAN] * case.channels, "deviation": [golden_cases.DEVIATION] * case.channels},
        "train": {"epochs": case.steps, "label_smoothing": case.label_smoothing},
        "optimizer": case.optimizer,
    }
    lines = []
    for section, keys in settings.items():
        lines += [f"[{section}]"] + [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def relative_error(array, exact):
    size = np.linalg.norm(exact)
    return float(np.linalg.norm(array - exact) / size) if size > 0 else 0.0


def make(case):
    runs = {precision: Run(case, precision) for precision in PRECISIONS}
    for run in runs.values():
        run.train()
    exact = runs["fp64"].changes()
    others = [runs["fp32"].changes(), runs["bf16"].changes()]
    tensors = {kind: np.array([run.losses[kind] for run in runs.values()], np.float32)
               for kind in ("loss", "test_loss")}
    for name, change in exact.items():
        tensors[name] = golden_cases.sketch(name, change).astype(np.float32)
        tensors[f"{name}.errors"] = np.array([relative_error(other[name], change) for other in others], np.float32)
    metadata = {
        "made by": f"tests/peers/make_golden.py, PyTorch {torch.__version__}, numpy {np.__version__}",
        "case": json.dumps({key: getattr(case, key) for key in ("batch", "image", "channels", "steps")}),
        "configuration": configuration(case),
    }
    path = FOLDER / f"{case.name}.safetensors"
    files.write_safetensors(path, tensors, metadata)
    errors = np.array([tensors[f"{name}.errors"] for name in exact])
    medians, largest = np.median(errors, axis=0), errors.max(axis=0)
    moved = [np.linalg.norm(change) / np.linalg.norm(runs["fp64"].start[name]) for name, change in exact.items()]
    print(f"{case.name:18} {path.stat().st_size:8} bytes, moved by {np.median(moved):.1e}; errors: fp32 median "
          f"{medians[0]:.1e}, largest {largest[0]:.1e}; bf16 {medians[1]:.1e}, {largest[1]:.1e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="all by default")
    chosen = parser.parse_args().cases
    FOLDER.mkdir(exist_ok=True)
    for case in golden_cases.CASES:
        if not chosen or case.name in chosen:
            make(case)


if __name__ == "__main__":
    main()
