#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""templates_test.py REPOSITORY LOCKSTEP: ends jobs of two ranks as the templates for systemd and Kubernetes
do: the unit's command gets its KillSignal, or the pods' preStop hooks run one after the other. Each time the
ranks save and end with code 75 within the template's grace period, which is longer than theirs, and the same
command resumes. slurm_test executes Slurm's template; here its controller does not answer. The hooks find
processes by name, so they run in a PID namespace."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

REPOSITORY = LOCKSTEP = None
SETTINGS = {"data.format": "synthetic", "data.synthetic.height": 8, "data.synthetic.width": 8, "data.synthetic.channels": 1,
            "data.synthetic.train_samples": 4096, "data.synthetic.test_samples": 64, "data.mean": "[]", "data.deviation": "[]",
            "train.batch": 16, "train.epochs": 100000, "train.threads": 1, "kernels.choose": "direct", "run.measure_peak": "false",
            "run.monitor_seconds": 0, "run.log_every": 1}
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def flags():
    return [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]


class Templates(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_templates_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.run_dir = self.folder / "run"
        self.newest = ""

    def expect_saved(self, code, codes=(75,)):
        """Expects one of the exit codes and a checkpoint of a later step than in the call before. A start that did not
        resume would have moved the earlier checkpoints aside."""
        said = (self.folder / "log").read_text()
        self.assertIn(code, codes, said)
        saved = max(self.run_dir.glob("checkpoints/step-*"))
        self.assertGreater(saved.name, self.newest, said)
        self.newest = saved.name
        self.assertEqual(json.loads((saved / "manifest.json").read_text())["ranks"], 2)
        self.assertFalse((self.run_dir / "checkpoints.1").exists(), said)

    def start(self, command):
        log = (self.folder / "log").open("ab")
        self.addCleanup(log.close)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=ENVIRONMENT,
                                   cwd=self.folder, start_new_session=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def wait_for_steps(self, process, more_than=0):
        steps = self.run_dir / "steps.jsonl"
        while not steps.exists() or len(steps.read_text().splitlines()) <= more_than:
            self.assertIsNone(process.poll(), (self.folder / "log").read_text())
            time.sleep(0.02)

    def test_systemd_stop_saves_and_the_next_start_resumes(self):
        text = (REPOSITORY / "launch/systemd/lockstep@.service").read_text()
        unit = dict(line.split("=", 1) for line in text.replace("\\\n", "").splitlines() if "=" in line and line[0] != "#")
        words = shlex.split(unit["ExecStart"].replace("%i", "name"))
        words[words.index("-np") + 1] = "2"
        given = {"/usr/bin/mpirun": "mpirun", "/usr/local/bin/lockstep": LOCKSTEP,
                 "/etc/lockstep/name.toml": "fashion_mnist_mlp", "run.dir=/var/lib/lockstep/name": f"run.dir={self.run_dir}"}
        self.assertTrue(given.keys() <= set(words), words)
        command = [given.get(word, word) for word in words] + flags()
        grace = float(re.search(r"run\.grace_seconds=(\d+)", unit["ExecStart"])[1])
        self.assertGreater(float(unit["TimeoutStopSec"]), grace)
        done = 0
        for start in range(2):
            process = self.start(command)
            self.wait_for_steps(process, done)
            process.send_signal(getattr(signal, unit["KillSignal"]))  # KillMode=mixed: to the main process
            code = process.wait(grace)
            self.expect_saved(code)
            done = len((self.run_dir / "steps.jsonl").read_text().splitlines())
        # A stop (75) counts as success. Without a stop, exit code 75 (a hang) starts the job again.
        self.assertIn("75", unit["SuccessExitStatus"].split())
        self.assertIn("75", unit["RestartForceExitStatus"].split())
        self.assertNotIn("75", unit["RestartPreventExitStatus"].split())

    def test_kubernetes_hooks_save_alone_and_in_sequence(self):
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if subprocess.run([*apart, "true"], capture_output=True).returncode:
            self.skipTest("this user may not create a PID namespace")
        text = (REPOSITORY / "launch/kubernetes/mpijob.yaml").read_text()
        hooks = [json.loads(f"[{found}]") for found in re.findall(r"command: \[(\"sh\", \"-c\", .*)\]", text)]
        self.assertEqual(len(hooks), 2)  # the launcher's, and the workers'
        grace = float(re.search(r"run\.grace_seconds=(\d+)", text)[1])
        for allowed in re.findall(r"terminationGracePeriodSeconds: (\d+)", text):
            self.assertGreater(float(allowed), grace)
        told = re.search(r"- lockstep\n(.*?)lifecycle:", text, re.DOTALL)[1]
        words = re.findall(r"- (\S+)\n", told)
        self.assertEqual(words[:2], ["train", "cifar10_resnet18"])
        words = [LOCKSTEP, "train", "fashion_mnist_mlp"] + [
            f"run.dir={self.run_dir}" if word.startswith("run.dir=") else word for word in words[2:]] + flags()
        (self.folder / "prterun").symlink_to(shutil.which("mpirun"))  # the name of Open MPI 5's process
        for launcher, order in (("mpirun", (0,)), ("prterun", (0,)), ("mpirun", (1,)), ("mpirun", (0, 1)), ("mpirun", (1, 0))):
            script = self.folder / "script.sh"
            lines = [f"PATH=$PATH:$PWD {launcher} --bind-to none -np 2 {shlex.join(words)} >log 2>&1 &", "job=$!",
                     "seen=$(cat run/steps.jsonl 2>/dev/null | wc -l)",
                     "until [ $(cat run/steps.jsonl 2>/dev/null | wc -l) -gt $seen ] || ! kill -0 $job; do sleep 0.05; done",
                     # The next hook starts when the first one's signal has arrived.
                     *(f"{shlex.join(hooks[which])} & until grep -q SIGUSR1 log || ! kill -0 $job; do sleep 0.05; done"
                       for which in order), "wait $job"]
            script.write_text("\n".join(lines) + "\n")
            done = subprocess.run([*apart, "timeout", "120", "bash", script], cwd=self.folder, env=ENVIRONMENT, capture_output=True)
            # After the workers' hook the ranks may have ended when mpirun gets the signal: it then dies of the signal
            # while it cleans up. The template's restartPolicy starts the launcher again after either code.
            self.expect_saved(done.returncode, (75, 128 + signal.SIGUSR1) if order == (1, 0) else (75,))

    def slurm_job(self, squeue_fails=0, scontrol_fails=0):
        """Runs Slurm's template with ranks that end with 75. The first calls of squeue and scontrol fail. Returns its exit
        code, its output and the calls."""
        calls = self.folder / "calls"
        calls.unlink(missing_ok=True)
        count = f"echo ${{0##*/}} >>{calls}; [ $(grep -c ^${{0##*/}} {calls}) -gt %d ] || exit 1; "
        for name, lines in {"srun": "exit 75", "squeue": count % squeue_fails + "echo RUNNING",
                            "scontrol": count % scontrol_fails + "kill $PPID",  # requeuing ends the script
                            "sleep": ""}.items():
            (self.folder / name).write_text(f"#!/bin/sh\n{lines}\n")
            (self.folder / name).chmod(0o755)
        done = subprocess.run(["bash", REPOSITORY / "launch/slurm/train.sbatch", "fashion_mnist_mlp"], capture_output=True, text=True,
                              env={**ENVIRONMENT, "PATH": f"{self.folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7",
                                   "SLURM_JOB_NODELIST": "node"})
        names = calls.read_text().split()
        return done.returncode, done.stdout + done.stderr, (names.count("squeue"), names.count("scontrol"))

    def test_slurm_job_is_requeued_when_the_controller_answers_again(self):
        code, said, calls = self.slurm_job(squeue_fails=2, scontrol_fails=2)
        self.assertEqual((code, calls), (-signal.SIGTERM, (3, 3)), said)
        self.assertNotIn("not requeued", said)

    def test_slurm_job_reports_that_it_was_not_requeued(self):
        for command, calls_expected in (("squeue", (30, 0)), ("scontrol", (1, 30))):
            with self.subTest(command=command):
                code, said, calls = self.slurm_job(**{f"{command}_fails": 1000})
                self.assertEqual((code, calls), (75, calls_expected), said)
                self.assertRegex(said, f"{command}.*not requeued")


if __name__ == "__main__":
    REPOSITORY, LOCKSTEP = pathlib.Path(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
    unittest.main()
