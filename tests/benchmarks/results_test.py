#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that every committed result has its machine, versions, revision, date and command, and that the pages
and charts agree with the results."""

import json
import pathlib
import re
import shutil
import statistics
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks/peers")]

import accuracy_chart  # noqa: E402
import codec_accuracy  # noqa: E402
import data_wait  # noqa: E402
import idle_ladder  # noqa: E402
import links_bench  # noqa: E402
import overlap_bench  # noqa: E402
import readme_table  # noqa: E402
import record  # noqa: E402
import scaling_bench  # noqa: E402
import suite  # noqa: E402

COMPLETE = {"machine": {"cores": 2}, "versions": {"Lockstep": "1"}, "revision": "abc", "date": "2026-01-01",
            "command": "bench"}
# A hash, or the version of a bundle.
REVISION = re.compile(r"[0-9a-f]{7,40}|Lockstep [\d.]+, commit [0-9a-f]{7,40}, CUDA (ON|OFF)")
# benchmarks/README.md has their reasons.
REVISION_IN_WORDS = {"predict_rate.json", "first_start.json", "gpu_kernels_of_a_step.json", "gpu_fine_tuning.json"}


def committed(name):
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())


def objects_in(value, above=None):
    """Every JSON object in the value, with the object that contains it."""
    if isinstance(value, dict):
        yield value, above
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects_in(each, value if isinstance(value, dict) else above)


class CommittedResults(unittest.TestCase):
    def test_results_are_complete_and_the_pages_show_them(self):
        self.assertEqual(readme_table.problems(ROOT), [])

    def test_charts_agree_with_their_results(self):
        draw = {"scaling": scaling_bench.draw, "overlap": overlap_bench.draw, "links": links_bench.draw,
                "codec_accuracy": codec_accuracy.draw, "accuracy_beside_pytorch": accuracy_chart.draw, "idle_ladder": idle_ladder.draw}
        for file in (ROOT / "benchmarks/results").glob("*.svg"):
            result = json.loads(file.with_suffix(".json").read_text())
            self.assertEqual(file.read_text(), draw[result["benchmark"]](result), f"redraw {file.name} with --redraw")

    def test_every_comparison_on_a_gpu_has_a_row(self):
        compared = {(name, case): each["ratio"] for name in ("gpu_speed", "gpu_second")
                    for case, each in committed(name)["comparisons"].items() if "ratio" in each}
        self.assertEqual(set(readme_table.GPU_CASES), set(compared))
        for page in ("benchmarks/README.md", "README.md"):
            self.assertIn(f"({min(compared.values()):.2f}x;", (ROOT / page).read_text(), f"{page}: the lowest ratio")

    def test_the_front_page_has_the_lowest_ratio_of_a_step_on_a_cpu(self):
        ratios = [each["ratio"] for file in (ROOT / "benchmarks/results").glob("cpu_suite*.json")
                  for name, part in json.loads(file.read_text()).items() if name.startswith("step ")
                  for each in (part, part.get("any_precision", {})) if "ratio" in each]
        self.assertIn(f"({min(ratios):.2f}x, from", (ROOT / "README.md").read_text())

    def test_a_ratio_that_contradicts_the_medians_is_not_alone(self):
        page = (ROOT / "benchmarks/README.md").read_text()
        for file in (ROOT / "benchmarks/results").glob("*.json"):
            for row, above in objects_in(json.loads(file.read_text())):
                peer = row.get("pytorch") or (above or {}).get("pytorch") or {}
                if "of_copy" in row and "copy_gigabytes_per_second" in row and file.stem == "codecs":
                    ratio, medians = row["of_copy"], row["gigabytes_per_second"] / row["copy_gigabytes_per_second"]
                    both = f"{100 * medians:.0f} % by the medians"
                elif "link" in row and file.stem == "links":
                    least = min((each for each in row["rows"] if each["bytes"] >= 1 << 20), key=lambda each: each["of_tcp"])
                    ratio, medians = least["of_tcp"], least["busbw_gb_per_s"] / least["tcp_gb_per_s"]
                    both = f"{row['nodes']} nodes {100 * ratio:.0f} % ({100 * medians:.0f} % by the medians)"
                elif "gained_percent" in row:
                    ratio, medians = 1 + row["gained_percent"] / 100, row["samples_per_second_changed"] / row["samples_per_second"]
                    both = f"{100 * (medians - 1):+.1f} % by the medians"
                elif "ratio" in row and isinstance(peer, dict) and "samples_per_second" in peer and "samples_per_second" in row:
                    ratio, medians = row["ratio"], row["samples_per_second"] / peer["samples_per_second"]
                    both = f"{medians:.2f}x by the medians"
                else:
                    continue
                self.assertTrue(readme_table.agree(ratio, medians) or both in page, f"{file.name}: {ratio} and {medians}")

    def test_each_revision_is_a_commit_or_an_exception_that_the_page_names(self):
        in_words = {file.name for file in (ROOT / "benchmarks/results").glob("*.json")
                    for each, _ in objects_in(json.loads(file.read_text()))
                    if "revision" in each and not REVISION.fullmatch(each["revision"])}
        self.assertEqual(in_words, REVISION_IN_WORDS)
        page = (ROOT / "benchmarks/README.md").read_text()
        for name in in_words:
            self.assertIn(f"`{name}`", page)

    def test_the_summary_of_codecs_is_that_of_their_runs(self):
        for part in committed("codec_accuracy").values():
            if isinstance(part, dict):
                found = (codec_accuracy.summary(part, way) for way in codec_accuracy.WAYS)
                self.assertEqual(part["summary"], [row for row in found if row])

    def test_the_summary_of_the_plan_is_that_of_its_turns(self):
        result = committed("plan_validation")
        errors = [abs(error) for row in result["table"] if not row["fitted"] for error in row["errors"]]
        self.assertEqual((result["median_error"], result["largest_error"]), (statistics.median(errors), max(errors)))


class Rows(unittest.TestCase):
    def test_both_ratios_are_shown_where_they_disagree(self):
        row, peer = {"samples_per_second": 90, "ratio": 1.2, "ratio_spread": [0.8, 1.5]}, {"samples_per_second": 100}
        self.assertEqual(readme_table.times(row, peer), "0.90x by the medians; in turns 1.20x, from 0.80x to 1.50x")
        self.assertEqual(readme_table.times({**row, "ratio": 0.95}, peer), "0.95x, from 0.80x to 1.50x")
        self.assertIn("0.90x by the medians", readme_table.times({**row, "ratio": 0.7}, peer))

    def test_an_all_reduce_with_a_large_spread_has_no_ratio(self):
        rows = {(1, "window"): {"time_us": 2, "speed_over_mpi": 3, "speed_over_mpi_spread": [1, 11]}, (1, "gloo"): {"time_us": 8}}
        self.assertEqual(readme_table.faster_than(rows, 1), "")
        rows[1, "window"]["speed_over_mpi_spread"] = [1, 9]
        self.assertEqual(readme_table.faster_than(rows, 1), ", 3.00x as fast as `MPI_Allreduce` (from 1.00x to 9.00x) and 4.00x as fast as "
                         "Gloo (by the median times)")
        rows[1, "window"]["speed_over"] = {way: {"median": 5, "spread": [4, 6]} for way in ("mpi", "gloo")}
        self.assertEqual(readme_table.faster_than(rows, 1).count("5.00x"), 2)

    def test_only_clearly_slower_ways_of_the_peer_are_dropped_after_two_turns(self):
        parts = [part for file in ("cpu_suite", "cpu_suite_amx", "cpu_suite_zen5") for part in committed(file).items()]
        for name, part in parts:
            turns = part.get("turns", {}) if isinstance(part, dict) else {}
            ways = {way: [speed for speed in speeds if speed] for way, speeds in turns.items() if not way.startswith(suite.OWN)}
            if name == "step cnn" and part["date"] == "2026-11-27":
                continue  # cpu.md says so
            fastest = max((max(speeds) for speeds in ways.values()), default=0)
            for way, speeds in ways.items():
                self.assertGreaterEqual(len(speeds), 2, f"{name}: {way}")
                if len(speeds) < part["rounds"]:
                    self.assertLess(max(speeds), suite.CLEARLY_SLOWER * fastest, f"{name}: {way}")

    def test_a_step_has_the_threads_of_its_result(self):
        results = committed("cpu_suite")
        results["step resnet18"]["lockstep"][0]["options"]["threads"] = 1
        for row in (readme_table.step("step resnet18", "`resnet18`"), readme_table.any_precision("resnet18")):
            self.assertTrue(row(lambda _, part: results[part])[0].endswith(", 1 thread"))

    def test_the_example_has_what_the_program_prints(self):
        epoch = {"epoch": 1, "busy": 0.941, "peak": 0.306, "train_loss": 0.14, "test_loss": 0.2131, "test_accuracy": 0.926,
                 "samples_per_second": 16772.4, "communication": {
                     "steps": 10, "exposed_seconds": 0.002, "hidden_seconds": 0.004, "overlap": 2 / 3, "wire_seconds": 0.005,
                     "wire_bytes_per_second": 3.14e9}}
        self.assertEqual(readme_table.quickstart_example(lambda _: {"epochs": [epoch]}), "```\nepoch 1/1  busy 94 %  peak 31 %  loss 0.140  "
                         "test loss 0.213  accuracy 92.60 %  16,772 samples/s\n  comm 0.6 ms a step  66.7 % hidden  | wire 0.5 ms "
                         "(3.1 GB/s)\n```")

    def test_the_wait_for_data_is_measured_for_every_preset(self):
        presets = {file.stem for file in (ROOT / "launch/presets").glob("*.toml")}
        self.assertEqual(set(data_wait.PRESETS), presets)
        options = data_wait.parse_arguments(["--json", "result.json"])
        self.assertEqual({name for name in presets if data_wait.data_of(name, options)[1] == "files"},
                         {name for name in presets if name.startswith("fashion_mnist")})
        result = {"rows": [{"preset": name, "data": "computed", "ranks": ranks, "step_ms": 1, "data_wait_share_spread": [0, share * ranks]}
                           for name, share in (("cifar10_resnet20", 0.005), ("shapes_unet", 0.001)) for ranks in (1, 2)]}
        what, text, _ = readme_table.data_wait(lambda _: result)
        self.assertEqual(what, "wait for data, 2 presets, one rank and two (`cifar10_resnet20`, `shapes_unet` with computed data)")
        self.assertEqual(text, "at most 1.00 % of a step in any turn (`cifar10_resnet20`, 1.0 ms a step); "
                         "of the others at most 0.20 % of a step in any turn (`shapes_unet`, 1.0 ms a step)")


class Missing(unittest.TestCase):
    def test_a_complete_result_lacks_nothing(self):
        self.assertEqual(record.missing({**COMPLETE, "rows": []}), [])

    def test_every_field_is_required(self):
        for field in record.FIELDS:
            self.assertEqual(record.missing({**COMPLETE, field: None}), [field])
            self.assertEqual(record.missing({name: value for name, value in COMPLETE.items() if name != field}), [field])

    def test_a_command_contains_no_folder_of_a_machine(self):
        self.assertEqual(record.missing({**COMPLETE, "command": "suite.py --python /home/me/bin/python"}), ["command"])
        told = record.circumstances("suite.py --models 'resnet18 bf16' --python /home/me/bin/python3 --rounds 3")
        self.assertEqual(told["command"], "suite.py --models 'resnet18 bf16' --python python3 --rounds 3")

    def test_every_part_must_be_complete(self):
        document = {"benchmark": "suite", "one": dict(COMPLETE), "two": dict(COMPLETE)}
        self.assertEqual(record.missing(document), [])
        del document["two"]["date"]
        self.assertEqual(record.missing(document), ["two: date"])

    def test_a_part_without_any_field_is_found(self):
        self.assertEqual(len(record.missing({"one": dict(COMPLETE), "two": {"ratio": 2}})), 1)
        self.assertEqual(len(record.missing({"one": dict(COMPLETE), "two": None})), 1)

    def test_an_empty_result_lacks_every_field(self):
        self.assertEqual(record.missing({}), list(record.FIELDS))

    def test_a_new_record_is_complete(self):
        told = record.circumstances("bench", lockstep="/no/such/program")
        self.assertEqual(set(told), set(record.FIELDS))
        self.assertTrue(told["machine"]["processor"])
        self.assertEqual(told["versions"], {}, "versions that cannot be found must be missing")

    def test_a_record_counts_the_cores_that_the_program_may_use(self):
        with mock.patch.object(record.os, "sched_getaffinity", return_value={3, 5, 7}):
            self.assertEqual(record.circumstances("bench")["machine"]["cores"], 3)

    def test_a_record_has_the_machine_of_this_process_and_what_only_the_program_knows(self):
        with tempfile.TemporaryDirectory() as name:
            program, file = (pathlib.Path(name) / each for each in ("program.py", "result.json"))
            machine = {"cores": 99, "processor": "any", "compiler": "g++ 12"}
            program.write_text(f"import json, sys; json.dump({{'machine': {machine}, 'ratio': 2}}, open(sys.argv[-1], 'w'))")
            with mock.patch.object(sys, "argv", ["record.py", "--lockstep", "/no/such/program", str(file), "--", sys.executable,
                                                 str(program)]):
                record.main()
            result = json.loads(file.read_text())
        self.assertEqual(result["ratio"], 2)
        self.assertEqual({field: result["machine"][field] for field in machine},
                         {"cores": record.cores(), "processor": record.processor(), "compiler": "g++ 12"})

    def test_a_result_is_replaced_in_one_step(self):
        with tempfile.TemporaryDirectory() as name:
            file, old, device = (pathlib.Path(name) / each for each in ("result.json", "old.json", "device.json"))
            record.write(file, {"ratio": 1})
            old.hardlink_to(file)
            record.write(file, {"ratio": 2})
            self.assertEqual([json.loads(each.read_text())["ratio"] for each in (old, file)], [1, 2])
            device.symlink_to("/dev/null")
            record.write(device, {"ratio": 1})
            self.assertTrue(device.is_symlink())
            self.assertEqual(len(list(pathlib.Path(name).iterdir())), 3)

    def test_a_second_line_of_presets_contains_no_version(self):
        told = "Lockstep 0.1.0\ncpu      2 cores; oneDNN 2.6.3\npresets  cifar10_resnet18,\n         fashion_mnist_mlp\n"
        self.assertEqual(record.versions_in(told), {"Lockstep": "0.1.0", "cpu": "2 cores; oneDNN 2.6.3"})


class Check(unittest.TestCase):
    """Works on a copy of the pages and results."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        shutil.copytree(ROOT / "benchmarks/results", self.root / "benchmarks/results")
        for page in readme_table.PAGES:
            (self.root / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / page, self.root / page)

    def test_an_edited_table_is_found(self):
        page = self.root / "README.md"
        page.write_text(page.read_text().replace(" samples/s", " samples per second"))
        self.assertEqual(len(readme_table.problems(self.root)), 1)

    def test_a_new_result_changes_the_pages(self):
        file = self.root / "benchmarks/results/quickstart.json"
        result = json.loads(file.read_text())
        result["epochs"][-1]["test_accuracy"] = 0.5
        file.write_text(json.dumps(result))
        self.assertEqual(len(readme_table.problems(self.root)), 2)

    def test_a_result_without_its_date_is_refused(self):
        file = self.root / "benchmarks/results/quickstart.json"
        result = json.loads(file.read_text())
        del result["date"]
        file.write_text(json.dumps(result))
        self.assertEqual(readme_table.problems(self.root), ["benchmarks/results/quickstart.json lacks date"])

    def test_a_new_file_must_be_complete_too(self):
        (self.root / "benchmarks/results/new.json").write_text('{"machine": {"cores": 1}}')
        self.assertEqual(len(readme_table.problems(self.root)), len(record.FIELDS) - 1)


if __name__ == "__main__":
    unittest.main()
