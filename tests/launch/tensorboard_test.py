#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tensorboard_test.py LOCKSTEP: what a training leaves for TensorBoard is, step by step, what it leaves in metrics.jsonl
and, under step/, in steps.jsonl: as protobuf's protoc reads it, with the checksums of each record made here anew, and as TensorBoard itself does, where the
Python package is there. A training that goes on leaves one file without a gap or a doubled step."""

import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = None

CRC_TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    CRC_TABLE.append(byte)


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def payloads(data):
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == masked_crc(data[:8]), "the length's checksum"
        payload, foot = data[12:12 + length], data[12 + length:16 + length]
        assert struct.unpack("<I", foot)[0] == masked_crc(payload), "the payload's checksum"
        yield payload
        data = data[16 + length:]


def decoded(payload):
    """(step, {tag: value}) by protoc, which knows nothing of the format but numbers of fields."""
    text = subprocess.run(["protoc", "--decode_raw"], input=payload, capture_output=True, check=True).stdout.decode()
    step = re.search(r"^2: (\d+)$", text, re.MULTILINE)
    values = re.findall(r'1: "([^"]+)"\n\s*2: (0x[0-9a-f]+)', text)
    return (int(step[1]) if step else 0,
            {tag: struct.unpack("<f", struct.pack("<I", int(bits, 16)))[0] for tag, bits in values})


def numbers(line, path=""):
    found = {}
    for name, value in line.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{path}{name}/")
        elif isinstance(value, (int, float)) and path + name not in ("epoch", "steps"):
            found[path + name] = value
    return found


class TensorBoard(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_dir = pathlib.Path(folder.name) / "run"

    def train(self, steps, *more):
        settings = ["train.epochs=3", "run.log_every=1", f"train.steps={steps}", "train.batch=30000", "model.name=\"mlp\"",
                    f"run.dir=\"{self.run_dir}\""]
        done = subprocess.run([LOCKSTEP, "train", "fashion_mnist_cnn", *(p for s in settings for p in ("--set", s)), *more],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def event_file(self):
        (file,) = (self.run_dir / "tensorboard").iterdir()
        self.assertIn("tfevents", file.name)
        return file

    def lines(self, name):
        return list(map(json.loads, (self.run_dir / name).read_text().splitlines()))

    def steps_of_metrics(self):
        return [line["steps"] for line in self.lines("metrics.jsonl")]

    def steps_of_series(self):
        return [line["step"] for line in self.lines("steps.jsonl")]

    def expected(self):
        """(step, its numbers): of a step behind which an epoch ended its own line comes first."""
        series = [(line["step"], 0, {f"step/{tag}": value for tag, value in numbers(line).items() if tag not in ("step", "time")})
                  for line in self.lines("steps.jsonl")]
        epochs = [(line["steps"], 1, numbers(line)) for line in self.lines("metrics.jsonl")]
        return [(step, values) for step, _, values in sorted(series + epochs, key=lambda entry: entry[:2])]

    def expect_what_lines_say(self, found):
        expected = self.expected()
        self.assertEqual([step for step, _ in found], [step for step, _ in expected])
        for (step, values), (_, wanted) in zip(found, expected):
            self.assertEqual(set(values), set(wanted))
            for tag, value in values.items():
                self.assertTrue(math.isclose(value, wanted[tag], rel_tol=1e-6, abs_tol=1e-30), (step, tag))

    def events(self):
        first, *rest = payloads(self.event_file().read_bytes())
        self.assertIn(b"brain.Event:2", first)
        return [decoded(payload) for payload in rest]

    def test_files_say_what_metrics_say(self):
        self.train(6)
        self.assertEqual(len(self.steps_of_metrics()), 3)
        self.assertEqual(self.steps_of_series(), [1, 2, 3, 4, 5, 6])
        self.expect_what_lines_say(self.events())

    def test_lines_of_steps_add_up_to_those_of_epochs(self):
        self.train(6)
        for epoch in self.lines("metrics.jsonl"):
            steps = [line for line in self.lines("steps.jsonl") if line["epoch"] == epoch["epoch"]]
            self.assertEqual(sum(line["steps"] for line in steps), 2)
            self.assertAlmostEqual(sum(line["loss"] for line in steps) / 2, epoch["train_loss"], places=6)
            for phase in ("forward", "backward", "exposed_communication", "optimizer"):
                self.assertAlmostEqual(sum(line["account"][phase] for line in steps), epoch["account"][phase], places=5)

    def test_a_training_that_goes_on_has_one_file_without_a_gap(self):
        self.train(3, "--set", "run.checkpoint_every=1")  # in mid-epoch: its line gives way to that of the whole
        self.assertEqual(self.steps_of_metrics(), [2, 3])
        self.train(6, "--resume", "auto", "--resume-with", "train.steps")
        self.assertEqual(self.steps_of_metrics(), [2, 4, 6])
        self.assertEqual(self.steps_of_series(), [1, 2, 3, 4, 5, 6])
        self.expect_what_lines_say(self.events())

    def test_tensorboard_reads_them(self):
        sys.path[:0] = [path for path in [os.environ.get("LOCKSTEP_TENSORBOARD")] if path]
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            self.skipTest("the Python package tensorboard is not installed")
        self.train(6)
        accumulator = EventAccumulator(str(self.run_dir / "tensorboard"))
        accumulator.Reload()
        found = {}
        for tag in accumulator.Tags()["scalars"]:
            for event in accumulator.Scalars(tag):
                found.setdefault((event.step, not tag.startswith("step/")), {})[tag] = event.value
        self.expect_what_lines_say([(step, values) for (step, _), values in sorted(found.items())])


if __name__ == "__main__":
    LOCKSTEP = os.path.abspath(sys.argv.pop(1))
    unittest.main()
