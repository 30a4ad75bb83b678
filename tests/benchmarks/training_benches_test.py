#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests how scaling_bench, overlap_bench, links_bench, codec_accuracy and idle_causes compute figures from runs, that
they are skipped without nodes, how benchmarks end, which errors of programs they report, and which retries test_runs
lists."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import codec_accuracy  # noqa: E402
import first_start  # noqa: E402
import idle_causes  # noqa: E402
import idle_ladder  # noqa: E402
import links_bench  # noqa: E402
import overlap_bench  # noqa: E402
import predict_rate  # noqa: E402
import scaling_bench  # noqa: E402
import suite  # noqa: E402
import test_runs  # noqa: E402
import training_runs  # noqa: E402

ACCOUNT = {"data_wait": 1.0, "forward": 2.0, "backward": 4.0, "exposed_communication": 2.0, "optimizer": 0.5, "rest": 0.5}


def refused(parse, arguments):
    """The exit code for these arguments; None if they are accepted."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            parse(arguments)
        except SystemExit as end:
            return end.code
    return None


class Runs(unittest.TestCase):
    def test_the_last_epoch_counts(self):
        epochs = [{"steps": 5}, {"steps": 10, "samples_per_second": 64.0, "train_seconds": 10.0, "account": ACCOUNT}]
        self.assertEqual(training_runs.per_step(epochs), {"samples_per_second": 64.0, "step_ms": 2000.0, "compute_ms": 1300.0,
                                                          "exposed_ms": 400.0, "exposed_share": 0.2})

    def test_an_account_of_communication_is_used_if_there_is_one(self):
        epochs = [{"steps": 4, "samples_per_second": 1.0, "train_seconds": 1.0, "account": ACCOUNT,
                   "communication": {"steps": 4, "overlap": 0.75, "wire_seconds": 2.0, "wire_bytes_per_second": 1e8,
                                     "exposed": {"late_seconds": 0.4}}}]
        row = training_runs.per_step(epochs)
        self.assertAlmostEqual(row["late_ms"], 100)
        self.assertEqual((row["overlap"], row["wire_ms"]), (0.75, 500.0))
        epochs[0]["communication"]["overlap"] = None  # nothing was sent
        self.assertNotIn("wire_ms", training_runs.per_step(epochs))

    def test_launchers(self):
        shared = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np"]
        self.assertEqual(training_runs.launcher(2), [*shared, "2"])
        self.assertEqual(training_runs.launcher(1, "1gbit"), [*shared, "1"], "one rank needs no link")
        self.assertEqual(training_runs.launcher(4, "1gbit", 2)[-3:], ["1gbit", "2", "2"])
        self.assertEqual(training_runs.launcher(4, mpirun="--host a:2,b:2"), ["mpirun", "--host", "a:2,b:2", "-np", "4"])
        self.assertEqual(training_runs.launcher(4, mpirun="srun --mpi=pmix"), ["srun", "--mpi=pmix", "-n", "4"])

    def test_write_images_writes_the_requested_number(self):
        with tempfile.TemporaryDirectory() as folder:
            training_runs.write_images(pathlib.Path(folder), train=3, test=2, side=5)
            self.assertEqual((pathlib.Path(folder) / "train-images-idx3-ubyte").stat().st_size, 16 + 3 * 25)
            self.assertEqual((pathlib.Path(folder) / "t10k-labels-idx1-ubyte").read_bytes()[8:], b"\0\1")

    def test_predict_rate_reads_small_and_large_rates(self):
        for told, rate in (("0.25", 0.25), ("3.4", 3.4), ("15", 15), ("1,234", 1234)):
            self.assertEqual(predict_rate.turn_of(f"103 images in 9.50 s: {told} images/s, busy 5 %"),
                             {"images": 103, "images_per_second": rate, "busy": 0.05})

    def test_programs_may_start_mpirun_as_root(self):
        with mock.patch.dict(os.environ, {"KEPT": "1"}):
            os.environ.pop("OMPI_ALLOW_RUN_AS_ROOT", None)
            found = suite.execute(["env"], environment={"ADDED": "1"}).output.splitlines()
        self.assertLessEqual({"KEPT=1", "ADDED=1", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}, set(found))

    def test_cpu_suite_writes_its_file_after_each_part(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            bench = """import json, sys; json.dump({"ratio": 1, "share_outside_kernels": 0}, open(sys.argv[-1], "w"))"""
            for program, text in (("engine_bench", f"#!{sys.executable}\n{bench}\n"), ("step_bench", "#!/bin/sh\nkill -9 $PPID\n")):
                (folder / program).write_text(text)
                (folder / program).chmod(0o755)
            command = [sys.executable, "-B", ROOT / "benchmarks/cpu_suite.py", "--bin", folder, "--json", folder / "result.json"]
            subprocess.run([*command, "--only", "engine", "recompute"], env={**os.environ, "TMPDIR": name}, capture_output=True)
            self.assertEqual(json.loads((folder / "result.json").read_text())["engine"]["ratio"], 1)
            self.assertNotEqual(subprocess.run([*command, "--only", "no_part"], capture_output=True).returncode, 0)

    def test_cpu_suite_trains_many_ranks_for_few_steps(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "mpirun").write_text(f"""#!{sys.executable}
import json, pathlib, sys
told = dict(word.split("=", 1) for word in sys.argv if "=" in word)
assert int(told["train.steps"]) > 0  # 0: all epochs
pathlib.Path(told["run.dir"]).mkdir(exist_ok=True)
pathlib.Path(told["run.dir"], "metrics.jsonl").write_text(json.dumps({{"samples_per_second": int(told["train.threads"])}}))
""")
            (pathlib.Path(folder) / "mpirun").chmod(0o755)
            command = [sys.executable, "-B", ROOT / "benchmarks/cpu_suite.py", "--only", "ranks", "--threads", "50", "--rounds", "1"]
            done = subprocess.run(command, env={**os.environ, "PATH": folder}, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout.split()[-1]), (0, "0.020"), done.stderr)

    def test_a_part_that_fails_keeps_its_old_result(self):
        with tempfile.TemporaryDirectory() as folder:
            bench = """import json, sys; json.dump(dict(samples_per_second=1, resident_peak_bytes=2, resident_baseline_bytes=1,
                       planned_bytes=1), open(sys.argv[-1], "w"))"""
            program, file = (pathlib.Path(folder) / name for name in ("step_bench", "result.json"))
            program.write_text(f"#!{sys.executable}\n{bench}\n")
            program.chmod(0o755)
            old = {"benchmark": "cpu_suite", "engine": {"ratio": 1}, "step cnn": {"ratio": 2},
                   "beside the build before": {"steps": []}}
            file.write_text(json.dumps(old))
            command = [sys.executable, "-B", ROOT / "benchmarks/cpu_suite.py", "--bin", folder, "--python", "/no/python",
                       "--only", "engine", "step", "before", "--models", "cnn", "--rounds", "1", "--json", file]
            done = subprocess.run(command, capture_output=True)
            self.assertIn(b"cnn ", done.stdout)
            self.assertEqual((done.returncode, json.loads(file.read_text())), (1, old), done.stderr)


class Retries(unittest.TestCase):
    def test_failed_tries_and_jobs_that_ended_before_their_fault_are_retries(self):
        cases = xml.etree.ElementTree.fromstring(
            "<testsuite><testcase name='a'><system-out>ok</system-out></testcase><testcase name='b'/><testcase name='c'>"
            "<system-out>a job ended before its fault, with comm.timeout_seconds=2; its output:</system-out></testcase></testsuite>")
        said = "1/3 Test #1: a ......***Failed    1.00 sec\n    Test #1: a ......   Passed    1.00 sec\n"
        self.assertEqual(test_runs.retried(said, cases), ["a", "c"])


def training_of(way, seed, accuracy, bytes_per_step):
    epochs = [{"steps": 10 * (i + 1), "train_loss": 0.5, "test_loss": 0.5, "accuracy": value,
               "bytes_per_step": bytes_per_step} for i, value in enumerate(accuracy)]
    return {"way": way, "seed": seed, "revision": "abc", "epochs": epochs}


class Accuracy(unittest.TestCase):
    def test_invalid_arguments_are_refused(self):
        for arguments in ([], ["--json", "result.json", "--task", "cifar10_resnet20", "--link", "1gbit"]):
            self.assertEqual(refused(codec_accuracy.parse_arguments, arguments), 64, arguments)
        for arguments in (["--redraw", "result.json"], ["--redraw=result.json"], ["--json", "result.json", "--link", "1gbit"]):
            self.assertIsNone(refused(codec_accuracy.parse_arguments, arguments), arguments)

    def test_runs_are_compared_with_runs_of_the_same_seed(self):
        part = {"runs": [training_of("none", 0, [80, 90], 100), training_of("none", 1, [80, 92], 100),
                         training_of("int8", 1, [70, 91.5], 25), training_of("int8", 2, [70, 99], 50)]}
        row = codec_accuracy.summary(part, "int8")
        self.assertEqual((row["seeds"], row["accuracy"], row["points"], row["fewer_bytes"]), ([1], 91.5, -0.5, 4))
        line = codec_accuracy.line_of(row)
        for fact in ("-0.3", "MISSED", "1/4.0"):
            self.assertIn(fact, line)
        self.assertIsNone(codec_accuracy.summary(part, "sign"))

    def test_runs_of_two_revisions_are_named(self):
        part = {"revision": "abc", "runs": [training_of("none", 0, [80], 100), training_of("none", 1, [80], 100),
                                            training_of("int8", 0, [80], 25), training_of("int8", 1, [80], 25)]}
        self.assertEqual(codec_accuracy.summary(part, "int8")["seeds_of_two_revisions"], [])
        part["runs"][3] |= {"revision": "def", "date": "2026-01-02"}
        row = codec_accuracy.summary(part, "int8")
        self.assertEqual(row["seeds_of_two_revisions"], [1])
        self.assertIn("two revisions: seed 1", codec_accuracy.line_of(row))
        told = codec_accuracy.circumstances_of({**part, "date": "2026-01-01", "command": "bench"}, part["runs"][3])
        self.assertEqual((told["revision"], told["date"], told["command"]), ("def", "2026-01-02", "bench"))

    def test_runs_of_other_epochs_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "result.json"
            file.write_text(json.dumps({"fashion_mnist_cnn": {"runs": [training_of("none", 0, [80, 90], 100)]}}))
            arguments = ["--json", str(file), "--epochs", "3", "--bin", folder]
            with self.assertRaisesRegex(training_runs.Failed, r"\b2 epochs, not of 3\b"):
                codec_accuracy.run(codec_accuracy.parse_arguments(arguments), arguments)

    def test_a_way_without_messages_has_no_ratio_of_bytes(self):
        part = {"runs": [training_of("none", 0, [80, 90], 100), training_of("gossip on a ring", 0, [80, 89.5], 0)]}
        row = codec_accuracy.summary(part, "gossip on a ring")
        self.assertIsNone(row["fewer_bytes"])
        line = codec_accuracy.line_of(row)
        self.assertIn("-1.0", line)
        for fact in ("MISSED", "1/"):
            self.assertNotIn(fact, line)

    def test_the_chart_over_time_has_the_timed_ways(self):
        part = {"date": "2026-01-01", "runs": [training_of("none", 0, [80, 90], 100), training_of("int8", 0, [70, 91], 25)]}
        document = {"benchmark": "codec_accuracy", "fashion_mnist_cnn": part}
        self.assertEqual(codec_accuracy.draw(document).count(">int8<"), 1)
        part["link"] = {"rate": "200mbit", "rows": [{"way": "int8", "step_ms": 50.0}]}
        drawn = codec_accuracy.draw(document)
        self.assertIn("200mbit", drawn)
        self.assertEqual(drawn.count(">int8<"), 2)
        self.assertEqual(drawn.count(">none<"), 1)


class IdleCauses(unittest.TestCase):
    def test_an_unknown_cause_is_refused(self):
        arguments = ["--images", "images", "--json", "result.json", "--only"]
        self.assertEqual(refused(idle_causes.parse_arguments, [*arguments, "memry"]), 64)
        self.assertEqual(idle_causes.parse_arguments([*arguments, "memory"]).only, "memory")

    def test_a_gain_compares_rates_of_one_turn(self):
        event = {"cause": "data", "key": "train.batch", "value": 2, "text": "idle", "samples_per_second": 1,
                 "samples_per_second_estimated": 2}
        rates, events = iter([10, 20, 40]), iter([[], [event]])  # the first turn has no event
        case = idle_causes.Case("data", "a test", {})
        with mock.patch.multiple(idle_causes, train=lambda *_: None, rate_of=lambda _: next(rates)), \
                mock.patch.object(training_runs, "lines_of", lambda _: next(events)):
            measured = idle_causes.measure(types.SimpleNamespace(repeats=2), case, pathlib.Path("runs"))
        row = idle_causes.row_of(case, *measured)
        self.assertEqual((row["gained_percent"], row["samples_per_second_changed"]), (100, 40))


LINE = 74 * "-"
PRIMARY_JOB = f"""{LINE}
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{LINE}
"""
DETECTED = f"""{LINE}
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[33519,1],1]
  Exit code:    65
{LINE}
"""
ABORTED = f"""{LINE}
MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD
with errorcode 65.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
{LINE}
"""
REMARKS = """[host:09635] 1 more process has sent help message help-mpi-api.txt / mpi-abort
[host:09635] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages
"""
KILLED = f"{LINE}\nmpirun noticed that process rank 1 with PID 12 on node host exited on signal 9 (Killed).\n{LINE}\n"


class Errors(unittest.TestCase):
    def reason_of(self, output):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "output").write_text(output)
            run = suite.execute(["sh", "-c", 'cat "$0"; exit 65', f"{folder}/output"])
        self.assertEqual((run.status, run.output), ("failed", output))
        with self.assertRaises(training_runs.Failed) as failed:
            training_runs.succeeded(run)
        return str(failed.exception).partition("exit code 65: ")[2]

    def test_the_error_of_a_rank_is_reported_and_not_the_footer_of_mpirun(self):
        error = "lockstep: data.path: no such folder\n"
        for output in (error + PRIMARY_JOB + DETECTED, error + PRIMARY_JOB + error + DETECTED, ABORTED + error + REMARKS):
            self.assertEqual(set(self.reason_of("epoch 1\n\n" + output).splitlines()), {"epoch 1", error.strip()}, output)
        self.assertIn("exited on signal 9", self.reason_of(error + PRIMARY_JOB + KILLED))

    def test_the_footer_is_reported_if_there_is_nothing_else(self):
        self.assertIn("Exit code:    65", self.reason_of(PRIMARY_JOB + DETECTED))


class Ends(unittest.TestCase):
    def test_a_program_or_folder_that_is_missing_ends_a_benchmark_with_exit_code_70(self):
        for bench, arguments in ((first_start, ["--lockstep", "/no/such/program"]),
                                 (idle_ladder, ["--images", "/no/such/folder", "--json", "/dev/null"])):
            with contextlib.redirect_stderr(io.StringIO()) as told:
                self.assertEqual(training_runs.main("bench", bench.parse_arguments, bench.run, arguments), 70)
            self.assertIn(arguments[1], told.getvalue())

    def test_idle_ladder_draws_its_own_result(self):
        rungs = [{"change": change, "busy": busy, "samples_per_second": 100 * busy}
                 for change, busy in ((None, 0.5), ("train.batch=4", 0.95))]
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(idle_ladder, "climb", return_value=rungs):
            file = pathlib.Path(folder) / "ladder.json"
            for arguments in (["--images", "images", "--json", str(file)], ["--redraw", str(file)]):
                self.assertEqual(training_runs.main("idle_ladder.py", idle_ladder.parse_arguments, idle_ladder.run, arguments,
                                                    idle_ladder.draw), 0)
            self.assertIn("train.batch=4", file.with_suffix(".svg").read_text())
            rungs.pop()
            self.assertEqual(idle_ladder.run(idle_ladder.parse_arguments(["--images", "images", "--json", str(file)]), []), 1)


class Scaling(unittest.TestCase):
    def test_invalid_arguments_are_refused(self):
        for arguments in (["--ranks", "2", "4"], ["--global-batch", "30", "--ranks", "1", "4"],
                          ["--rate", "1gbit", "--ranks-per-node", "2", "--ranks", "1", "3"], ["--modes", "sideways"]):
            self.assertEqual(refused(scaling_bench.parse_arguments, arguments), 64, arguments)

    def test_efficiency_is_the_median_of_ratios_within_a_turn(self):
        options = scaling_bench.parse_arguments(["--ranks", "1", "4", "--batch", "8", "--threads", "1"])
        def step(speed):
            return {"samples_per_second": speed, "step_ms": 1, "exposed_ms": 0, "compute_ms": 1}
        turns = {("weak", 1): [step(10), step(20), step(10)], ("weak", 4): [step(30), step(40), step(10)]}
        one, four = scaling_bench.rows_of(options, turns, cores=2)
        self.assertEqual((one["efficiency"], one["efficiency_per_core"]), (1, 1))
        self.assertEqual(four["speedup_spread"], [1, 3])
        self.assertEqual(four["efficiency"], 2 / 4)
        self.assertEqual((four["cores"], four["efficiency_per_core"]), (2, 1), "four ranks share two cores")
        self.assertEqual(four["samples_per_second"], 30)
        self.assertNotIn("cores", scaling_bench.rows_of(options, turns, cores=None)[1])

    def test_the_parts_of_a_loss_add_up_to_it(self):
        one = {"step_ms": 20, "exposed_ms": 0, "compute_ms": 18}
        four = {"step_ms": 13, "exposed_ms": 5, "late_ms": 2, "compute_ms": 7}
        self.assertEqual(scaling_bench.lost(four, one, 1 / 4),
                         {"lost_ms": 8, "communication_ms": 3, "late_ranks_ms": 2, "compute_ms": 2.5, "rest_ms": 0.5})

    def test_batches(self):
        options = scaling_bench.parse_arguments(["--ranks", "1", "2", "4", "--batch", "16"])
        self.assertEqual([scaling_bench.batch_of(options, "strong", ranks) for ranks in (1, 2, 4)], [64, 32, 16])
        self.assertEqual([scaling_bench.batch_of(options, "weak", ranks) for ranks in (1, 2, 4)], [16, 16, 16])


class Overlap(unittest.TestCase):
    def test_invalid_arguments_are_refused(self):
        for arguments in (["--ranks", "1"], ["--ranks", "3", "--ranks-per-node", "2"], ["--ranks-per-node", "2"], ["--buckets", "0"],
                          ["--warm-epochs", "0"], ["--codecs", "int8", "int8"], ["--overlap", "off"]):
            self.assertEqual(refused(overlap_bench.parse_arguments, arguments), 64, arguments)

    def test_hosts_are_one_link(self):
        self.assertEqual(overlap_bench.parse_arguments(["--mpirun", "--host a,b"]).links, ["hosts"])
        self.assertEqual(refused(links_bench.parse_arguments, ["--mpirun", "--host a,b"]), 64, "which rate?")
        self.assertEqual(links_bench.parse_arguments(["--mpirun", "--host a,b", "--links", "25gbit"]).links, ["25gbit"])

    def test_buckets_smaller_than_the_edges_are_equal(self):
        self.assertEqual(overlap_bench.settings_of(0.5, True), ["comm.bucket_mib=[0.5, 0.5, 0.5]", "comm.overlap=true"])
        self.assertEqual(overlap_bench.settings_of(25, False), ["comm.bucket_mib=[1, 25, 1]", "comm.overlap=false"])
        self.assertEqual(overlap_bench.settings_of(25, True, "int8")[-1], 'comm.codec="int8"')

    def test_cross_barrier_adds_cases_to_those_that_wait(self):
        def ways(*arguments):
            options = overlap_bench.parse_arguments(["--buckets", "1", *arguments])
            return [(overlap, crosses) for _, overlap, _, crosses in overlap_bench.cases_of(options)]
        self.assertEqual(ways(), [(True, False), (False, False)])
        self.assertEqual(ways("--overlap", "on", "--cross-barrier", "both"), [(True, False), (True, True)])
        self.assertEqual(ways("--cross-barrier", "on"), [(True, True), (False, False)])
        self.assertEqual(overlap_bench.settings_of(1, True, "fp16", True)[2:],
                         ["comm.cross_barrier=true", 'comm.codec="fp16"'])

    def test_the_hidden_share_is_of_exposure_without_overlap(self):
        def step(milliseconds, exposed):
            return {"step_ms": milliseconds, "exposed_ms": exposed, "exposed_share": exposed / milliseconds,
                    "samples_per_second": 1000 / milliseconds}
        turns = {(25, True, "", False): [step(100, 10), step(100, 20), step(100, 30)],
                 (25, False, "", False): [step(150, 40), step(150, 40), step(150, 40)],
                 (25, True, "int8", False): [step(80, 5)],
                 (25, True, "", True): [step(90, 10), step(90, 10), step(90, 10)]}
        on, off, compressed, crossing = overlap_bench.rows_of(turns)
        self.assertEqual((crossing["cross_barrier"], crossing["hidden_share"]), (True, 0.75))
        self.assertNotIn("cross_barrier", on)
        self.assertEqual(compressed["codec"], "int8")
        self.assertNotIn("hidden_share", compressed, "there is no measurement without overlap")
        self.assertNotIn("codec", on)
        self.assertEqual((on["hidden_share"], on["hidden_share_spread"]), (0.5, [0.25, 0.75]))
        self.assertNotIn("hidden_share", off)
        self.assertEqual((on["step_ms"], on["exposed_ms"]), (100, 20))

    def test_without_nodes_it_is_skipped_by_name(self):
        with tempfile.TemporaryDirectory() as folder:  # the only folder on PATH: no unshare
            (pathlib.Path(folder) / "bash").symlink_to("/bin/bash")
            done = subprocess.run([sys.executable, "-B", ROOT / "benchmarks/overlap_bench.py", "--links", "1gbit",
                                   "--bin", folder], env={**os.environ, "PATH": folder}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertRegex(done.stderr, r"(?m)^Skipped: .*\bis not installed")


if __name__ == "__main__":
    unittest.main()
