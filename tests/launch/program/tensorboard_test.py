#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tensorboard_test.py LOCKSTEP: tests that the event files of a training agree, step by step, with
metrics.jsonl and (under step/) with steps.jsonl. They are read by protobuf's protoc, with recomputed
checksums of each record, and by TensorBoard itself if its Python package is installed. Texts must equal
config.toml and run.json. Histograms must be those of the exported weights and of the gradients that changed
them. A resumed training writes a new file: readers see no gap and no duplicate step, and an open file is
never shortened."""

import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "benchmarks"))
import training_runs

LOCKSTEP = None
IMAGES = 512
NEEDS_PROTOC = unittest.skipUnless(shutil.which("protoc"), "protoc is not installed (Debian: protobuf-compiler)")

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
    """(step, {tag: value}, True if a run starts), decoded by protoc without the schema, by field numbers."""
    text = subprocess.run(["protoc", "--decode_raw"], input=payload, capture_output=True, check=True).stdout.decode()
    step = re.search(r"^2: (\d+)$", text, re.MULTILINE)
    values = re.findall(r'1: "([^"]+)"\n\s*2: (0x[0-9a-f]+)', text)
    return (int(step[1]) if step else 0,
            {tag: struct.unpack("<f", struct.pack("<I", int(bits, 16)))[0] for tag, bits in values},
            re.search(r"^7 {\n  1: 1\n}", text, re.MULTILINE) is not None)


def tensors_of(path):
    """{name: values} of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    found = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            found[name] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return found


def numbers(line, path=""):
    found = {}
    for name, value in line.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{path}{name}/")
        elif isinstance(value, (int, float)) and path + name not in ("epoch", "steps", "account_steps"):
            found[path + name] = value
    return found


class TensorBoard(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_dir = pathlib.Path(folder.name) / "run"
        self.images = pathlib.Path(folder.name)
        training_runs.write_images(self.images, IMAGES, 100, 28)

    def train(self, steps, *more, ranks=1, batch=IMAGES // 2):
        settings = [f"data.path=\"{self.images}\"", "train.epochs=3", "run.log_every=1", f"train.steps={steps}", f"train.batch={batch}", "model.name=\"mlp\"",
                    f"run.dir=\"{self.run_dir}\""]
        launcher = training_runs.launcher(ranks) if ranks > 1 else []
        done = subprocess.run([*launcher, LOCKSTEP, "train", "fashion_mnist_cnn", *training_runs.overrides(settings), *more],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def event_files(self):
        files = sorted((self.run_dir / "tensorboard").iterdir())
        self.assertTrue(all("tfevents" in file.name for file in files))
        return files

    def lines(self, name):
        return list(map(json.loads, (self.run_dir / name).read_text().splitlines()))

    def steps_of_metrics(self):
        return [line["steps"] for line in self.lines("metrics.jsonl")]

    def steps_of_series(self):
        return [line["step"] for line in self.lines("steps.jsonl")]

    def expected(self):
        """[(step, numbers)]. At the last step of an epoch, the line of the step precedes the line of the
        epoch."""
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
        """[(step, values)] as TensorBoard reads them: the start of a run drops earlier events of its step or
        a later one."""
        found = []
        for file in self.event_files():
            first, *rest = payloads(file.read_bytes())
            self.assertIn(b"brain.Event:2", first)
            for step, values, starts in map(decoded, rest):
                if starts:
                    found = [(earlier, old) for earlier, old in found if earlier < step]
                if values:  # texts and histograms have no scalars
                    found.append((step, values))
        return found

    @NEEDS_PROTOC
    def test_event_files_match_the_metrics_and_steps_add_up_to_epochs(self):
        self.train(6)
        self.assertEqual(len(self.steps_of_metrics()), 3)
        self.assertEqual(self.steps_of_series(), [1, 2, 3, 4, 5, 6])
        self.expect_what_lines_say(self.events())
        for epoch in self.lines("metrics.jsonl"):
            steps = [line for line in self.lines("steps.jsonl") if line["epoch"] == epoch["epoch"]]
            self.assertEqual(sum(line["steps"] for line in steps), 2)
            self.assertAlmostEqual(sum(line["loss"] for line in steps) / 2, epoch["train_loss"], places=6)
            for phase in ("forward", "backward", "exposed_communication", "optimizer"):
                self.assertAlmostEqual(sum(line["account"][phase] for line in steps), epoch["account"][phase], places=5)

    @NEEDS_PROTOC
    def test_resumed_training_has_no_gap_and_shortens_no_file(self):
        # Without checkpoints only the ends of epochs, every 2 steps, would end a line.
        lines = ("--set", "run.log_every=100")
        self.train(4, *lines, "--set", "run.checkpoint_every=3", "--set", "run.keep=9")
        shutil.rmtree(self.run_dir / "checkpoints/step-000000004")  # as if the run had been killed after step 4
        (before,) = self.event_files()
        bytes_before = before.read_bytes()
        self.train(6, *lines, "--resume", "auto", "--resume-with", "train.steps")
        self.assertEqual(before.read_bytes(), bytes_before)
        self.assertEqual(len(self.event_files()), 2)
        self.assertEqual(self.steps_of_metrics(), [2, 4, 6])
        self.assertEqual([(line["step"], line["steps"]) for line in self.lines("steps.jsonl")],
                         [(2, 2), (3, 1), (4, 1), (6, 2)])
        self.expect_what_lines_say(self.events())

    def test_open_reader_sees_each_step_once_after_a_resume(self):
        self.need_tensorboard()
        self.train(4, "--set", "run.checkpoint_every=2", "--set", "run.keep=9")
        reader = self.accumulator()
        shutil.rmtree(self.run_dir / "checkpoints/step-000000004")
        self.train(6, "--resume", "auto", "--resume-with", "train.steps")
        reader.Reload()
        self.assertEqual([event.step for event in reader.Scalars("step/loss")], [1, 2, 3, 4, 5, 6])

    def accumulator(self):
        """TensorBoard's reader, with all events loaded."""
        accumulator = self.event_accumulator(str(self.run_dir / "tensorboard"),
                                             size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
        accumulator.Reload()
        return accumulator

    def need_tensorboard(self):
        sys.path[:0] = [path for path in [os.environ.get("LOCKSTEP_TENSORBOARD")] if path]
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            self.skipTest("the Python package tensorboard is not installed")
        self.event_accumulator = EventAccumulator

    def test_tensorboard_reads_configuration_and_machine(self):
        self.need_tensorboard()
        self.train(3, "--set", "run.checkpoint_every=1")
        first = (self.run_dir / "config.toml").read_text()
        self.train(6, "--resume", "auto", "--resume-with", "train.steps")
        accumulator = self.accumulator()
        self.assertEqual(set(accumulator.Tags()["tensors"]), {"run/config", "run/machine"})
        for tag, files in (("run/config", [first, (self.run_dir / "config.toml").read_text()]),
                           ("run/machine", [None, (self.run_dir / "run.json").read_text()])):
            self.assertEqual(accumulator.SummaryMetadata(tag).plugin_data.plugin_name, "text")
            events = accumulator.Tensors(tag)
            self.assertEqual([event.step for event in events], [0, 3])
            for event, file in zip(events, files):
                (text,) = event.tensor_proto.string_val
                if file is not None:  # a block of code in Markdown is indented
                    self.assertEqual("".join(f"    {line}\n" for line in file.splitlines()).strip(), text.decode().strip())

    def test_tensorboard_shows_texts_as_blocks_of_code(self):
        self.need_tensorboard()
        from tensorboard import plugin_util
        self.train(1)
        (event,) = self.accumulator().Tensors("run/config")
        html = plugin_util.markdown_to_safe_html(event.tensor_proto.string_val[0])
        self.assertIn("<pre><code>", html)
        self.assertEqual(html.count("<pre>"), 1)
        self.assertNotIn("<h1>", html)

    def test_histograms_match_the_exported_tensors(self):
        self.need_tensorboard()
        exported = self.run_dir.parent / "end.safetensors"
        self.train(4, "--set", "run.histograms=2", "--export", str(exported))
        accumulator = self.accumulator()
        tensors = tensors_of(exported)
        tags = {f"{kind}/{name}" for kind in ("weights", "gradients") for name in tensors}
        self.assertEqual(set(accumulator.Tags()["histograms"]), tags)
        for name, values in tensors.items():
            (event,) = accumulator.Histograms(f"weights/{name}")  # written only for the second of two epochs
            self.assertEqual(event.step, 4)
            told = event.histogram_value
            self.assertEqual((told.min, told.max, told.num), (min(values), max(values), len(values)))
            self.assertTrue(math.isclose(told.sum, math.fsum(values), rel_tol=1e-9, abs_tol=1e-9), name)
            squares = math.fsum(value * value for value in values)
            self.assertTrue(math.isclose(told.sum_squares, squares, rel_tol=1e-9), name)
            begin = told.min
            for limit, count in zip(told.bucket_limit, told.bucket):
                width = 1e-9 * (told.max - told.min)  # values at a limit may be in either bucket
                least = sum(begin + width < value < limit - width for value in values)
                most = sum(begin - width <= value <= limit + width for value in values)
                self.assertTrue(least <= count <= most, (name, limit, least, count, most))
                begin = limit
            self.assertEqual(sum(told.bucket), len(values))
            (event,) = accumulator.Histograms(f"gradients/{name}")
            self.assertEqual(sum(event.histogram_value.bucket), len(values))

    def expect_gradients_to_move_weights(self, *more, ranks, tolerance):
        """Each step uses all samples and is an epoch. Checks that weights change by -learning rate x
        gradient."""
        self.train(3, "--set", "run.histograms=1", "--set", "optimizer.momentum=0",
                   "--set", "optimizer.weight_decay=0", *more, ranks=ranks, batch=IMAGES // ranks)
        accumulator = self.accumulator()
        rates = [line["learning_rate"] for line in self.lines("metrics.jsonl")]
        norms = [line["gradient_norm"] for line in self.lines("steps.jsonl")]
        weights = {tag[8:]: [event.histogram_value.sum for event in accumulator.Histograms(tag)]
                   for tag in accumulator.Tags()["histograms"] if tag.startswith("weights/")}
        gradients = {tag: [event.histogram_value for event in accumulator.Histograms("gradients/" + tag)] for tag in weights}
        for tag in weights:
            for step in (1, 2):
                moved = weights[tag][step - 1] - weights[tag][step]
                scale = math.sqrt(gradients[tag][step].sum_squares * gradients[tag][step].num)  # bound of |sum|
                self.assertLess(abs(moved / rates[step] - gradients[tag][step].sum), tolerance * scale, (tag, step))
        for step in range(3):
            norm = math.sqrt(sum(told[step].sum_squares for told in gradients.values()))
            self.assertTrue(math.isclose(norm, norms[step], rel_tol=1e-5), (norm, norms[step]))

    def test_gradient_histograms_show_the_mean_over_all_samples(self):
        self.need_tensorboard()
        self.expect_gradients_to_move_weights(ranks=2, tolerance=1e-5)

    def test_gradient_histograms_exclude_the_loss_scale(self):
        self.need_tensorboard()
        self.expect_gradients_to_move_weights("--set", "train.precision=fp16", ranks=1, tolerance=1e-4)

    def test_histograms_change_no_bit_of_training(self):
        digests = []
        for every in (0, 1):
            digest = self.run_dir.parent / f"digest{every}"
            self.train(4, "--set", f"run.histograms={every}", "--digest", str(digest))
            digests.append(digest.read_text())
        self.assertEqual(*digests)

    def test_tensorboard_reads_the_scalars(self):
        self.need_tensorboard()
        self.train(6)
        accumulator = self.accumulator()
        found = {}
        for tag in accumulator.Tags()["scalars"]:
            for event in accumulator.Scalars(tag):
                found.setdefault((event.step, not tag.startswith("step/")), {})[tag] = event.value
        self.expect_what_lines_say([(step, values) for (step, _), values in sorted(found.items())])


if __name__ == "__main__":
    LOCKSTEP = os.path.abspath(sys.argv.pop(1))
    unittest.main()
