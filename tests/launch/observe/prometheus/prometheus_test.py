#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""prometheus_test.py LOCKSTEP MPIEXEC: tests the metrics that a training gives to Prometheus, as a file and over
HTTP. They are read by Prometheus' own parser if the Python package prometheus_client is installed
(LOCKSTEP_PROMETHEUS names its folder), and by promtool if that is installed."""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

LOCKSTEP = MPIEXEC = None
ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "benchmarks"))
import training_runs

SAMPLE = re.compile(r'(\w+)\{(.*)\} (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples_in(text):
    """[(name, {label: value}, number)] of the lines that are no comments."""
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            found.append((name, dict(LABEL.findall(labels)), float(value)))
    return found


def values(text, name, **labels):
    return [value for each, own, value in samples_in(text)
            if each == name and all(own.get(label) == wanted for label, wanted in labels.items())]


class Prometheus(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.run_dir, self.metrics = self.folder / "a \"run\"", self.folder / "metrics"
        training_runs.write_images(self.folder, 512, 64, 28)
        self.log = self.folder / "log"

    def command(self, *settings):
        whole = [f"data.path=\"{self.folder}\"", "train.epochs=1000000", "train.batch=16", "train.threads=1", "comm.timeout_seconds=3600",
                 "model.name=\"mlp\"", "run.monitor_seconds=0.1", "run.measure_peak=false", f"run.dir='{self.run_dir}'",
                 *settings]
        return [MPIEXEC, "--oversubscribe", "--bind-to", "none", "-np", "2", LOCKSTEP, "train", "fashion_mnist_cnn",
                *training_runs.overrides(whole)]

    def train(self, *settings, environment=None):
        """Starts a training in the background, which the end of the test stops. Its steps leave the processors
        idle for the monitor, which only runs on idle ones."""
        command = [*self.command(*settings), "--inject", "slow:rank=0,step=1,ms=5"]
        with open(self.log, "w") as log:
            job = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(environment or {})})
        self.addCleanup(self.stop, job)
        return job

    def stop(self, job):
        """Ranks whose launcher is killed would still write to the folder that the test removes."""
        if job.poll() is None:
            job.send_signal(signal.SIGUSR1)
        job.wait()

    def wait_for(self, job, find):
        """The first true result of find(), for at most two minutes."""
        for _ in range(2400):
            if found := find():
                return found
            self.assertIsNone(job.poll(), self.log.read_text())
            time.sleep(0.05)
        self.fail(f"the condition did not hold within two minutes: {self.log.read_text()}")

    def file(self):
        files = list(self.metrics.glob("*.prom"))
        return files[0] if files else None

    def text(self):
        file = self.file()
        return file.read_text() if file else ""

    def text_of_steps(self, job):
        """The metrics of a training that has taken steps on both ranks, with figures of the last second."""
        return self.wait_for(job, lambda: next((text for text in [self.text()]
                                                if len(values(text, "lockstep_busy_ratio")) == 2), None))

    def end(self, job):
        job.send_signal(signal.SIGUSR1)
        self.assertEqual(job.wait(), 75, self.log.read_text())

    def test_file_has_the_figures_of_all_ranks_and_is_removed_at_the_end(self):
        job = self.train(f"run.prometheus_dir=\"{self.metrics}\"")
        before = self.text_of_steps(job)
        for rank in ("0", "1"):
            labels = dict(run=str(self.run_dir).replace('"', '\\"'), host=os.uname().nodename, rank=rank, device="cpu")
            (busy,) = values(before, "lockstep_busy_ratio", **labels)
            self.assertTrue(0 <= busy <= 1)
            (steps,) = values(before, "lockstep_steps_total", **labels)
            self.assertGreater(steps, 0)
            (rate,) = values(before, "lockstep_samples_per_second", **labels)
            self.assertGreater(rate, 0)
            self.assertEqual(len(values(before, "lockstep_loss", **labels)), 1)
            self.assertEqual(values(before, "lockstep_rank_state", state="died", **labels), [0])
            self.assertAlmostEqual(sum(values(before, "lockstep_phase_ratio", **labels)), 1, places=6)
            self.assertEqual(len(values(before, "lockstep_phase_ratio", phase="exposed_communication", **labels)), 1)
        self.assertEqual(len(values(before, "lockstep_warnings_total", kind="straggler")), 1)
        self.assertGreater(values(before, "lockstep_host_memory_used_bytes")[0], 1e6)
        steps = values(before, "lockstep_steps_total", rank="0")[0]
        phases = sum(values(before, "lockstep_phase_seconds_total", rank="0", phase="forward"))
        after = self.wait_for(job, lambda: next((text for text in [self.text()]
                                                 if sum(values(text, "lockstep_steps_total", rank="0")) > steps + 20), None))
        self.assertGreater(values(after, "lockstep_phase_seconds_total", rank="0", phase="forward")[0], phases)
        (accuracy,) = values(after, "lockstep_test_accuracy_ratio", rank="1")  # epochs have 16 steps
        self.assertTrue(0 <= accuracy <= 1)
        self.assertIn(str(self.file()), self.log.read_text())
        self.end(job)
        self.assertEqual(list(self.metrics.iterdir()), [])

    def test_readers_never_see_a_part_of_the_file(self):
        job = self.train(f"run.prometheus_dir=\"{self.metrics}\"", "run.monitor_seconds=0.001")
        self.text_of_steps(job)
        last = None
        for _ in range(5000):
            text = self.text()
            self.assertTrue(text.startswith("# HELP ") and text.endswith("\n"), text)
            self.assertEqual(text.count("\nlockstep_warnings_total{"), 9)  # the end of the page
            last = text if last is None else last
        self.wait_for(job, lambda: self.text() != last)  # the monitor only runs on idle processors
        self.assertEqual([path.suffix for path in self.metrics.glob("*.prom")], [".prom"])

    def test_prometheus_parsers_accept_the_metrics(self):
        sys.path[:0] = [path for path in [os.environ.get("LOCKSTEP_PROMETHEUS")] if path]
        try:
            from prometheus_client.parser import text_string_to_metric_families
        except ImportError:
            self.skipTest("the Python package prometheus_client is not installed")
        job = self.train(f"run.prometheus_dir=\"{self.metrics}\"", "run.measure_peak=true")
        text = self.text_of_steps(job)
        families = list(text_string_to_metric_families(text))
        self.assertGreater(len(families), 20)
        seen = set()
        for family in families:
            self.assertTrue(family.documentation, family.name)
            self.assertIn(family.type, ("gauge", "counter"))
            self.assertTrue(family.samples, family.name)
            for sample in family.samples:
                self.assertIn(sample.name, (family.name, family.name + "_total"))
                self.assertEqual(sample.labels["run"], str(self.run_dir))
                series = (sample.name, tuple(sorted(sample.labels.items())))
                self.assertNotIn(series, seen)
                seen.add(series)
        self.assertEqual(len(seen), len(samples_in(text)))
        if tool := shutil.which("promtool"):
            checked = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True)
            self.assertEqual((checked.returncode, checked.stderr), (0, ""))
            rules = subprocess.run([tool, "check", "rules", str(ROOT / "launch/prometheus/alerts.yaml")],
                                   capture_output=True, text=True)
            self.assertEqual(rules.returncode, 0, rules.stdout + rules.stderr)

    def test_http_serves_the_metrics_at_loopback(self):
        job = self.train("run.prometheus_address=\"0\"", f"run.prometheus_dir=\"{self.metrics}\"")
        (url,) = self.wait_for(job, lambda: re.findall(r"http://127\.0\.0\.1:\d+/metrics", self.log.read_text()))

        def scraped():
            try:
                with urllib.request.urlopen(url) as response:
                    self.assertEqual(response.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
                    return response.read().decode()
            except urllib.error.HTTPError as error:
                self.assertEqual(error.code, 503)  # no sample yet
                return ""

        text = self.wait_for(job, lambda: next((text for text in [scraped()] if values(text, "lockstep_busy_ratio")), None))
        self.assertEqual(values(text, "lockstep_ranks"), [2])
        for request, code in ((url[:-len("metrics")], 404), (urllib.request.Request(url, data=b"x"), 405)):
            with self.assertRaises(urllib.error.HTTPError) as told:
                urllib.request.urlopen(request)
            self.assertEqual(told.exception.code, code)
        slow = socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0])))
        self.addCleanup(slow.close)
        slow.sendall(b"GET /met")
        (steps,) = values(self.text_of_steps(job), "lockstep_steps_total", rank="0")
        # A slow client does not delay the training and its file. The server waits two seconds for it.
        self.wait_for(job, lambda: values(self.text(), "lockstep_steps_total", rank="0")[0] > steps)
        slow.close()
        self.wait_for(job, lambda: values(scraped(), "lockstep_steps_total", rank="0")[0] > steps)
        self.end(job)
        with self.assertRaises(urllib.error.URLError):
            urllib.request.urlopen(url)

    def test_port_in_use_ends_the_job_before_the_first_step(self):
        other = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(other.close)
        port = other.getsockname()[1]
        done = subprocess.run(self.command(f"run.prometheus_address=\"{port}\""), capture_output=True, text=True)
        self.assertEqual(done.returncode, 78, done.stderr)
        (line,) = [line for line in done.stderr.splitlines() if "run.prometheus_address" in line]
        self.assertIn(str(port), line)
        self.assertIn("in use", line)
        self.assertFalse((self.run_dir / "steps.jsonl").exists())

    def test_impossible_settings_are_refused(self):
        for settings, word in ((["run.prometheus_address=\"localhost\""], "ADDRESS:PORT"),
                               ([f"run.prometheus_dir=\"{self.metrics}\"", "run.monitor_seconds=0"], "run.monitor_seconds")):
            done = subprocess.run(self.command(*settings)[6:], capture_output=True, text=True)
            self.assertEqual(done.returncode, 78, done.stderr)
            self.assertIn(word, done.stderr)

    def test_folder_that_cannot_be_written_does_not_end_the_training(self):
        self.metrics.write_text("a file")
        done = subprocess.run(self.command(f"run.prometheus_dir=\"{self.metrics}\"", "train.steps=20"), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("training continues without metrics for Prometheus"), 1, done.stderr)

    def monitor(self, *flags):
        return subprocess.run([LOCKSTEP, "monitor", "--from", str(self.metrics), *flags], capture_output=True, text=True)

    def test_monitor_shows_the_files(self):
        self.metrics.mkdir()
        told = self.monitor()
        self.assertEqual((told.returncode, told.stdout.count("\n")), (0, 1), told.stdout + told.stderr)
        job = self.train(f"run.prometheus_dir=\"{self.metrics}\"")
        self.text_of_steps(job)

        def look():
            lines = self.monitor("--json").stdout.splitlines()
            ranks = json.loads(lines[0])["jobs"][0]["here"] if lines else []
            return ranks if len(ranks) == 2 and all(rank["busy"] is not None for rank in ranks) else None

        ranks = self.wait_for(job, look)
        self.assertEqual([rank["rank"] for rank in ranks], [0, 1])
        self.assertEqual(ranks[0]["host"], os.uname().nodename)
        (own,) = json.loads(subprocess.run([LOCKSTEP, "monitor", str(self.run_dir), "--json"], capture_output=True,
                                           text=True).stdout)["jobs"]
        self.assertEqual([rank["process"] for rank in ranks], [rank["process"] for rank in own["here"]])
        table = self.monitor(str(self.run_dir)).stdout
        self.assertRegex(table, r"\n +0 cpu +\w+ .*\n +1 cpu ")
        self.assertIn(str(self.run_dir), table)
        self.assertNotIn("cpu", self.monitor(str(self.folder / "other")).stdout)
        self.assertEqual(subprocess.run([LOCKSTEP, "monitor", "--from", str(self.folder / "none")], capture_output=True).returncode, 74)
        self.end(job)
        self.assertEqual(self.monitor("--json").stdout, "")

    def test_new_start_replaces_the_file_of_a_killed_job(self):
        def processes():
            found = {int(labels["process"]) for _, labels, _ in samples_in(self.text()) if "process" in labels}
            return found if len(found) == 2 else None

        job = self.train(f"run.prometheus_dir=\"{self.metrics}\"")
        ranks = self.wait_for(job, processes)
        file = self.file()
        for process in ranks:
            with contextlib.suppress(ProcessLookupError):  # mpirun ends the second rank once the first has ended
                os.kill(process, signal.SIGKILL)
        job.wait()
        with open(self.run_dir / "run.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits for rank 0: mpirun does not wait for ranks that it has killed
        self.assertTrue(file.exists())
        left = file.with_name(file.name.replace(os.uname().nodename, "lost-node"))
        shutil.copy(file, left)  # as of a node that the new start does not have
        job = self.train(f"run.prometheus_dir=\"{self.metrics}\"")
        self.wait_for(job, lambda: not left.exists())
        self.text_of_steps(job)
        self.assertEqual(list(self.metrics.glob("*.prom")), [file])
        self.end(job)

    def test_nodes_write_a_file_each(self):
        nodes = [str(ROOT / "tests/nodes.sh"), "none", "2", "1"]
        held = self.folder / "held"
        command = [*nodes, *self.command(f"run.prometheus_dir=\"{self.metrics}\"", "run.prometheus_address=\"0\"", "train.steps=40")[6:]]
        with open(self.log, "w") as log:
            job = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "LOCKSTEP_HOLD": f"step:0:{held}"})
        self.addCleanup(self.kill_nodes, job)
        while not (job.poll() is not None or len(list(self.metrics.glob("*.prom"))) == 2):
            time.sleep(0.02)
        if job.poll() == 77:
            self.skipTest(self.log.read_text())
        self.assertIsNone(job.poll(), self.log.read_text())
        views = [json.loads(line) for line in self.monitor("--json").stdout.splitlines()]
        self.assertEqual(sorted(rank["rank"] for view in views for job_ in view["jobs"] for rank in job_["here"]), [0, 1])
        self.assertEqual(len({view["host"] for view in views}), 2)
        self.assertEqual(len({view["jobs"][0]["job"] for view in views}), 1)
        tables = self.monitor().stdout
        self.assertEqual(len(re.findall(r"\brank +device +state\b", tables)), 2, tables)
        self.wait_for(job, held.exists)
        held.unlink()
        self.assertEqual(job.wait(), 0, self.log.read_text())
        self.assertEqual(self.log.read_text().count("metrics for Prometheus: "), 2, self.log.read_text())
        self.assertEqual(list(self.metrics.iterdir()), [])

    def kill_nodes(self, job):
        if job.poll() is None:
            job.kill()
        job.wait()

    def test_refused_resume_keeps_the_file_of_a_killed_job(self):
        def trained(*flags):
            command = self.command(f"run.prometheus_dir=\"{self.metrics}\"", "train.steps=2", "run.checkpoint_every=2")[6:]
            return subprocess.run([*command, *flags], capture_output=True, text=True)

        done = trained()
        self.assertEqual(done.returncode, 0, done.stderr)
        left = pathlib.Path(re.search(r"metrics for Prometheus: .*: (.*\.prom)", done.stdout)[1])
        left.write_text("left")
        done = trained("--set", "model.mlp.width=8", "--resume", "auto", "--resume-with", "model.mlp.width")
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertIn("another network", done.stderr)
        self.assertEqual(left.read_text(), "left")


if __name__ == "__main__":
    LOCKSTEP, MPIEXEC = os.path.abspath(sys.argv[1]), sys.argv[2]
    del sys.argv[1:3]
    # Without the proxy that http_proxy may name.
    urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler({})))
    unittest.main()
