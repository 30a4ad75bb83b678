#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks that start ranks, codec_bench and loader_bench on small inputs, as a user would. The
argument is the folder of programs. Checks that results exist and are complete and verified, not the measured
values."""

import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import training_runs  # noqa: E402

BIN = pathlib.Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else ROOT / "build/cpu/bin"
HERE = "--host localhost:2 --oversubscribe --bind-to none"  # this machine, named as a host
LITTLE = ["--model", "mlp", "--image", "8", "--steps", "2", "--rounds", "1", "--bin", BIN]


def run(command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def png(side):
    """A PNG file of an RGB image."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress((b"\0" + bytes(3 * side)) * side)) + chunk(b"IEND", b""))


class Benchmarks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.json = pathlib.Path(folder.name) / "result.json"

    def result_of(self, command):
        done = run([*command, "--json", self.json])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(self.json.read_text()), done.stdout

    def test_allreduce_bench_verifies_every_collective_in_every_way(self):
        kinds = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier"]
        result, output = self.result_of(
            ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", BIN / "allreduce_bench", "-b", "4K", "-e", "8K",
             "-f", "2", "-n", "2", "-w", "1", "--collective", ",".join(kinds)])
        self.assertEqual(output.count("# Out of bounds values : 0 OK"), 6)
        rows = result["rows"]
        for kind in kinds:
            sizes = [0] if kind == "barrier" else [4096, 8192]
            self.assertEqual(sorted({row["bytes"] for row in rows if row["collective"] == kind}), sizes)
            self.assertLessEqual({"window", "plain", "mpi"}, {row["way"] for row in rows if row["collective"] == kind})
        for row in rows:
            self.assertEqual(row["in_place"]["wrong"], 0)
            self.assertGreater(row["in_place"]["time_us"], 0)
        self.assertEqual(result["ranks"], 2)

    def test_codec_bench_measures_every_codec(self):
        result, output = self.result_of([BIN / "codec_bench", "--model", "mlp", "--image", "8", "--batch", "2",
                                         "--repeats", "1"])
        rows = {(row["codec"], row["function"]): row for row in result["encodings"]}
        self.assertEqual(set(rows), {(codec, function) for codec in ("fp16", "bf16", "int8", "sign")
                                     for function in ("encode", "decode")})
        self.assertEqual(rows["int8", "encode"]["bytes_per_element"], 12 + 260 / 256, "value, residual, new residual, record")
        self.assertTrue(all(row["of_copy"] > 0 for row in rows.values()))
        self.assertEqual([row["codec"] for row in result["step"]["codecs"]],
                         ["fp16", "bf16", "int8", "sign", "powersgd", "topk", "dgc"])
        self.assertRegex(output, r"int8\b.*\bencode\b")

    def test_loader_bench_has_every_stage(self):
        settings = ["data.format=synthetic", "data.synthetic.height=16", "data.synthetic.width=16",
                    "data.synthetic.train_samples=500", "data.synthetic.test_samples=20"]
        records = self.json.parent / "records"
        done = run([BIN / "lockstep", "pack", "cifar10_resnet20", records, "--as", "jpeg", *training_runs.overrides(settings)])
        self.assertEqual(done.returncode, 0, done.stderr)
        result, output = self.result_of([BIN / "loader_bench", "cifar10_resnet20", "--set", "data.format=records", "--set",
                                         f"data.path={records}", "--set", "train.batch=20", "--samples", "90", "--turns", "2",
                                         "--threads", "1", "2", "--cold"])
        rows = result["result"]["rows"]
        self.assertEqual([(row["stage"], row["threads"]) for row in rows[:-1]],
                         [("copy", 1), ("stored", 1), ("decode", 1), ("read", 1), ("loader", 1), ("kept", 1), ("read", 2),
                          ("loader", 2), ("kept", 2)])
        self.assertEqual(rows[-1]["stage"], "augment")
        self.assertTrue(all(row["samples_per_second"] > 0 for row in rows))
        self.assertIn("; 100 a turn", output, "whole batches")
        self.assertEqual(rows[2]["of_decode"]["median"], 1)
        self.assertGreater(result["result"]["files_megabytes_per_second"]["median"], 0)
        self.assertLessEqual({row["stage"] for row in rows}, set(output.split()))

    def png_images(self):
        images = self.json.parent / "images"
        for folder in ("train/cat", "train/dog", "test/cat", "test/dog"):
            (images / folder).mkdir(parents=True)
            for number in range(10):
                (images / folder / f"{number}.png").write_bytes(png(32))
        return images

    def test_loader_bench_compares_only_jpeg_with_libjpeg_turbo(self):
        images = self.png_images()
        result, _ = self.result_of([BIN / "loader_bench", "cifar10_resnet20", "--set", f"data.path={images}", "--set",
                                    "train.batch=5", "--samples", "10", "--turns", "1", "--threads", "1"])
        rows = result["result"]["rows"]
        self.assertEqual([row["stage"] for row in rows], ["copy", "stored", "read", "loader", "kept", "augment"])
        self.assertEqual([row["of_decode"] for row in rows], [None] * len(rows))

    def test_loader_bench_refuses_a_damaged_image(self):
        images = self.png_images()
        (images / "train/dog/5.png").write_bytes(png(32)[:-30])
        done = run([BIN / "loader_bench", "cifar10_resnet20", "--set", f"data.path={images}", "--set", "train.batch=5",
                    "--samples", "20", "--turns", "1", "--threads", "2"])
        self.assertEqual(done.returncode, 65, done.stdout + done.stderr)
        self.assertIn("dog/5.png", done.stderr)

    def test_fine_tuning_batches_train_by_equal_samples(self):
        settings = ["data.format=synthetic", "data.synthetic.height=32", "data.synthetic.width=32", "data.synthetic.channels=3",
                    "data.synthetic.train_samples=16", "data.synthetic.test_samples=10", "data.resize=40", "train.threads=1",
                    "kernels.choose=direct", "model.name=cnn"]
        command = [ROOT / "benchmarks/fine_tuning_batches.py", "--lockstep", BIN / "lockstep", *training_runs.overrides(settings)]
        result, output = self.result_of([*command, "--batches", "1", "4", "--samples", "8"])
        self.assertEqual([(row["batch"], row["steps"], row["samples"]) for row in result["rows"]], [(1, 8, 8), (4, 2, 8)])
        for row in result["rows"]:
            self.assertTrue(0 <= row["busy"] <= 1 and row["memory_bytes"] > 1e6 and row["samples_per_second"] > 0, row)
        self.assertEqual(len(re.findall(r"(?m)^batch +\d+ .* samples/s .* GiB", output)), 2, output)
        self.assertEqual(run([*command, "--batches", "3", "--samples", "8", "--json", self.json]).returncode, 64)

    def test_gossip_bench_measures_all_reduce_and_ring(self):
        result, output = self.result_of(
            # As a user starts it, without OMP_WAIT_POLICY: the benchmark then restarts itself
            # (launch/train/watch/waiting.h).
            ["env", "-u", "OMP_WAIT_POLICY", "mpirun", "--oversubscribe", "--bind-to", "none", "-np", "3",
             BIN / "gossip_bench", "--image", "8", "--batch", "2",
             "--batch-ms", "4", "--steps", "5", "--rounds", "1"])
        self.assertEqual([(row["topology"], row["slowed"]) for row in result["rows"]],
                         [("all", False), ("all", True), ("ring", False), ("ring", True)])
        self.assertTrue(all(row["others_steps_per_second"] > 0 for row in result["rows"]))
        self.assertEqual(result["ranks"], 3)
        self.assertEqual(result["options"]["kernels"], "direct")
        for topology in ("all", "ring"):
            self.assertEqual(len(re.findall(rf"(?m)^ *{topology}\b.* steps/s", output)), 2, output)

    def test_benchmarks_refuse_flags_that_they_do_not_use(self):
        for program in ("gossip_bench", "guards_bench"):
            for flag in (["--kernels", "time"], ["--precision", "bf16"], ["--device", "cuda"], ["--recompute"]):
                self.assertEqual(run([BIN / program, *flag]).returncode, 64, [program, *flag])

    def test_guards_bench_sums_the_costs_of_all_checks(self):
        launch = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", BIN / "guards_bench", "--model", "mlp",
                  "--image", "8", "--batch", "2", "--blocks", "2"]
        result, output = self.result_of([*launch, "--steps", "3"])
        self.assertEqual(sorted(result["parts"]), ["between_steps", "comparisons", "own_time", "records", "watchdog"])
        self.assertAlmostEqual(result["sum_of_parts"], sum(result["parts"].values()))
        self.assertGreater(result["collectives_per_step"], 0)
        self.assertLessEqual(set(result["parts"]), set(output.split()))
        result, output = self.result_of([*launch, "--snapshot"])
        self.assertGreater(result["snapshot_ms"], 0)
        self.assertIn(f"{result['snapshot_ms']:.1f} ms", output)

    def test_allreduce_bench_has_other_types_and_names_ways_without_them(self):
        result, output = self.result_of([BIN / "allreduce_bench", "-b", "4K", "-e", "4K", "-n", "1", "-w", "0", "-d", "half",
                                         "-o", "max"])
        self.assertRegex(output, r"(?m)^#.*\bmpi\b.*(16-bit|half)")
        self.assertEqual({(row["way"], row["type"], row["redop"]) for row in result["rows"]},
                         {("window", "half", "max"), ("plain", "half", "max")})

    def test_allreduce_bench_compares_with_plain_tcp(self):
        result, output = self.result_of(
            ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "3", BIN / "allreduce_bench", "-b", "4K", "-e", "4M",
             "-f", "1024", "-n", "2", "-w", "1", "--ways", "plain,tcp"])
        self.assertEqual({(row["way"], row["in_place"]["wrong"]) for row in result["rows"]}, {("plain", 0), ("tcp", None)})
        self.assertGreater(min(row["in_place"]["busbw_gb_per_s"] for row in result["rows"]), 0)

    def test_allreduce_bench_refuses_a_way_that_is_not_available(self):
        done = run([BIN / "allreduce_bench", "--ways", "plain,mpi", "-d", "half"])
        self.assertEqual(done.returncode, 78, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"--ways mpi\b.*(16-bit|half)")
        done = run([BIN / "allreduce_bench", "-b", "2M", "-e", "1M"])
        self.assertEqual(done.returncode, 64, done.stdout + done.stderr)

    def test_scaling_bench_draws_its_results(self):
        result, output = self.result_of([ROOT / "benchmarks/scaling_bench.py", "--ranks", "1", "2", "--batch", "4",
                                         "--mpirun", HERE, *LITTLE])
        self.assertEqual([(row["mode"], row["ranks"], row["global_batch"]) for row in result["rows"]],
                         [("strong", 1, 8), ("weak", 1, 4), ("strong", 2, 8), ("weak", 2, 8)])
        for row in result["rows"]:
            self.assertRegex(output, rf"(?m)^{row['mode']}\b.*\b{row['ranks']} rank.*\b{100 * row['efficiency']:.0f} %")
            if row["ranks"] > 1:
                self.assertIn(f"lost {row['lost']['lost_ms']:.1f} ms a step", output)
        self.check_chart()

    def test_codec_accuracy_resumes_after_an_interruption(self):
        data = self.json.parent / "images"
        data.mkdir()
        training_runs.write_images(data, train=1024, test=64, side=8)
        command = [ROOT / "benchmarks/codec_accuracy.py", "--bin", BIN, "--data", data, "--epochs", "2", "--seeds", "0"]
        self.result_of([*command, "--ways", "none"])
        first = json.loads(self.json.read_text())["fashion_mnist_cnn"]["runs"]
        document, output = self.result_of([*command, "--ways", "none", "int8"])
        runs = document["fashion_mnist_cnn"]["runs"]
        self.assertEqual(runs[:1], first, "the first run must not be repeated")
        self.assertNotEqual(*(run["command"] for run in runs), "each run has its command")
        self.assertEqual([(run["way"], run["seed"], [epoch["steps"] for epoch in run["epochs"]]) for run in runs],
                         [("none", 0, [2, 4]), ("int8", 0, [2, 4])])
        fewer = {row["way"]: row["fewer_bytes"] for row in document["fashion_mnist_cnn"]["summary"]}
        self.assertEqual(fewer["none"], 1)
        self.assertGreater(fewer["int8"], 3.5)
        self.assertRegex(output, r"(?m)^int8\b.* -0\.3\b")  # the least difference that is accepted
        self.check_chart()

    def test_links_bench_measures_hosts(self):
        document, output = self.result_of([ROOT / "benchmarks/links_bench.py", "--bin", BIN, "--mpirun", HERE, "--links", "10gbit",
                                           "--nodes", "2", "--sizes", "64K", "64K", "--iters", "2"])
        row, = document["10gbit, 2 hosts"]["rows"]
        self.assertIn(f"of tcp {100 * row['of_tcp']:4.0f} %", output)
        self.assertIn(f"time {row['time_us']:>10.1f} us   algbw {row['algbw_gb_per_s']:7.3f} GB/s   busbw {row['busbw_gb_per_s']:7.3f} GB/s", output)

    def test_links_bench_compares_with_plain_tcp(self):
        command = [ROOT / "benchmarks/links_bench.py", "--bin", BIN, "--links", "1gbit", "--nodes", "2", "--sizes", "64K",
                   "256K", "--iters", "2", "--json", self.json]
        done = run(command)
        if done.returncode == 77:
            self.skipTest(done.stderr)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = json.loads(self.json.read_text())["1gbit, 2 nodes"]["rows"]
        self.assertEqual([row["bytes"] for row in rows], [64 << 10, 256 << 10])
        for row in rows:
            self.assertAlmostEqual(row["of_tcp"], row["busbw_gb_per_s"] / row["tcp_gb_per_s"])
        self.check_chart(lines=1)

    def test_overlap_bench_draws_its_results(self):
        result, output = self.result_of([ROOT / "benchmarks/overlap_bench.py", "--mpirun", HERE, "--buckets", "1",
                                         "--batch", "4", *LITTLE])
        rows = result["hosts"]["rows"]
        self.assertEqual([(row["bucket_mib"], row["overlap"]) for row in rows], [(1, True), (1, False)])
        self.assertTrue(all(row["step_ms"] > row["exposed_ms"] >= 0 for row in rows))
        for row in rows:
            self.assertIn(f"{row['exposed_ms']:,.1f} ms", output)
        self.check_chart()

    def test_overlap_bench_compares_codecs_in_turns(self):
        result, output = self.result_of([ROOT / "benchmarks/overlap_bench.py", "--links", "shared", "--buckets", "1",
                                         "--batch", "4", "--overlap", "on", "--codecs", "none", "int8", "--set",
                                         "comm.compress_within_node=true", *LITTLE])
        rows = result["shared"]["rows"]
        self.assertEqual([(row["codec"], row["overlap"]) for row in rows], [("none", True), ("int8", True)])
        for row in rows:
            self.assertRegex(output, rf"\b{row['codec']}\b.* {row['samples_per_second']:,.1f} samples/s")
        self.check_chart()

    def check_chart(self, lines=2):
        root = xml.etree.ElementTree.parse(self.json.with_suffix(".svg")).getroot()
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertGreaterEqual(len(root.findall("{http://www.w3.org/2000/svg}polyline")), lines)


if __name__ == "__main__":
    unittest.main()
