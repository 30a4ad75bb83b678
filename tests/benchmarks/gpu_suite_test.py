#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rehearses the run kit (benchmarks/gpu_suite.py) without a GPU: with the bundle of a build (the argument is
its folder), and with fake programs and a fake GPU, where some programs hang, crash or print without end. The
kit finds neither xz, zstd nor mpirun, and as a program it has no network. The time limits are checked with a
clock that a busy machine does not advance."""

import contextlib
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_plan  # noqa: E402
import gpu_suite  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else ROOT / "build/cpu"
HIDDEN = re.compile(r"(un|lz)?(xz|lzma).*|.*zst.*|mpi.*|orte.*|prte.*|apt.*|nvidia-smi|ncu|compute-sanitizer")

gpu_suite.POLL_SECONDS = 0.002  # time in this process is mostly virtual

# Importing modules and site packages would take most of a fake program's time, and a test starts dozens of them.
PROGRAM = r"""#!{python} -IS
import json, os, signal, sys, time
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
def value(flag): return words[words.index(flag) + 1] if flag in words else ""
def write_text(*path, text=""):
    with open(os.path.join(*path), "w") as file: file.write(text)
def write(**result):
    if value("--json"): write_text(value("--json"), text=json.dumps(result))
def first_time(what):
    try: os.mkdir(os.path.join(os.getcwd(), "seen " + what)); return True
    except FileExistsError: return False
def step(**digests): write(samples_per_second=1000, version="planted", **digests)
HANGING = {folder!r} + "/hanging"
def wait_forever():
    write_text(HANGING, str(os.getpid()))
    while True: time.sleep(1000)
def leave_process():
    import subprocess
    subprocess.Popen(["tail", "-f", {folder!r} + "/left"], start_new_session=True)
def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_process()
    wait_forever()
def case(name, *ends):
    print("[ RUN      ]", name, flush=True)
    for end in ends: print(f"[{{end:>9}} ] {{name}} (1 ms)", flush=True)
{body}
"""
FLOOD_AND_STEP = """
if value("--batch") == "512":  # 20 MB, more than the log may have
    for _ in range(20): os.write(1, b"flood " * 166666 + b"\\n")
step(eager_digest="a", recorded_digest="a")
"""
PLANTED = {
    "bin/lockstep": """
folder = next((word.split("=", 1)[1] for word in words if word.startswith("run.dir=")), "")
if folder:
    os.makedirs(folder)
    write_text(folder, "metrics.jsonl", text=json.dumps({{"test_accuracy": 0.94}}))
""",
    "bin/step_bench": FLOOD_AND_STEP,
    "bin/kernel_bench": """
leave_process()
os.kill(os.getpid(), signal.SIGSEGV)
""",
    "bin/graph_bench": "write(ratio=2)",
    "tests/core_cuda_test": "case('Cuda.Copies', 'OK')",
    "tests/cuda_trainer_test": "case('CudaTraining.Learns', 'OK')",
    "tests/kernels_cuda_test": """
if not any("Crashes" in word for word in words):
    case('Kernels.Fails', 'FAILED')
    case('Kernels.Crashes')
    os.kill(os.getpid(), signal.SIGSEGV)
case('Kernels.AfterTheCrash', 'OK')
sys.exit(0)
""",
    "tests/comm_nccl_test": "case('Nccl.Sums', 'OK')",
    "run": "case('Nccl.Sums', 'OK')",
}
# The sampler runs beside resnet50: this lets it print its samples first.
AFTER_THE_SAMPLER = """
while value("--model") == "resnet50" and not os.listdir(HANGING): time.sleep(0.01)
"""
HANGING = {
    "step_bench": """
if value("--model") == "resnet50" and first_time("resnet50"): hang()
""" + FLOOD_AND_STEP,
    "cuda_trainer_test": """
case('CudaTraining.Learns', 'OK')
case('CudaTraining.Hangs')
hang()
""",
}
TOOLS = {
    "nvidia-smi": """
print("name, power.draw [W]")
for watts in range(100, 110): print(f"planted GPU, {{watts}}", flush=True)
if "-lms" in words: wait_forever()
""",
    "ncu": """
print('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
for kernel, time, read, written in [("gemm", 10, 5, 6), ("relu", 3, 1, 1), ("gemm", 20, 7, 8)]:
    print(f'"0","{{kernel}}","gpu__time_duration.sum","ns","{{time}}"')
    print(f'"0","{{kernel}}","dram__bytes_read.sum","byte","{{read}}"')
    print(f'"0","{{kernel}}","dram__bytes_write.sum","byte","{{written}}"')
""",
    "compute-sanitizer": "print('memcheck', *words)",
    "python": """
if any("pytorch_step" in word for word in words): step()
else: os.execv(sys.executable, [sys.executable, *words])
""",
}


def write_program(path, body, folder):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PROGRAM.format(python=sys.executable, folder=str(folder),
                                   body=body.replace("{{", "{").replace("}}", "}")))
    path.chmod(0o755)


def no_network():
    """Words that start a program with only the network device lo; empty if the system does not permit it."""
    start = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if shutil.which("unshare") and subprocess.run([*start, "true"], capture_output=True).returncode == 0:
        return start
    print("left out: the test runs with network access, because this system cannot create a network namespace", file=sys.stderr)
    return []


def process_runs(number):
    try:
        return pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class VirtualClock:
    """Time passes only while every running program waits without end, so that a busy machine makes no program
    late. Such a program has created a file in the folder, named after its process id. Time passes in small
    steps, each after every thread of the kit has read the clock, so that the kit misses no deadline."""
    STEP = 0.25  # seconds

    def __init__(self, hanging):
        self.hanging, self.seconds, self.seen = hanging, 0, {}

    def now(self):
        self.seen[threading.current_thread()] = self.seconds
        return self.seconds

    def join(self, thread, end):
        while thread.is_alive() and self.seconds < end:
            thread.join(0.002)
            threads = [each for each in threading.enumerate() if each.name.startswith("program ")]
            all_hang = thread in threads and len(threads) == self.count_hanging()
            if all_hang and all(self.seen.get(each) == self.seconds for each in threads):
                self.seconds += self.STEP

    def count_hanging(self):
        for file in self.hanging.iterdir():
            if not process_runs(file.name):
                file.unlink()
        return len(list(self.hanging.iterdir()))


def kill_and_wait(group, number, kill=os.killpg):
    """Sends a signal that ends the process, and returns when it has ended."""
    kill(group, number)
    os.waitid(os.P_PID, group, os.WEXITED | os.WNOWAIT)


class Rehearsal(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.system = pathlib.Path(folder.name)  # the programs that the kit finds
        for place in ("/usr/sbin", "/sbin", "/usr/bin", "/bin"):
            for program in pathlib.Path(place).iterdir():
                if not HIDDEN.fullmatch(program.name) and not (cls.system / program.name).is_symlink():
                    (cls.system / program.name).symlink_to(program)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out, self.tools, self.hanging = self.folder / "out", self.folder / "tools", self.folder / "hanging"
        self.tools.mkdir()
        self.hanging.mkdir()
        (self.folder / "left").touch()
        self.addCleanup(self.kill_left_processes)

    def left_processes(self):
        """Processes that fake programs started in other sessions."""
        found, name = [], str(self.folder / "left").encode()
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if name in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # it has just ended
                pass
        return found

    def kill_left_processes(self):
        for process in self.left_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "LOCKSTEP_"))}
        return kept | {"PATH": f"{self.tools}:{self.system}", "TMPDIR": str(self.folder)}

    def fly(self, bundle, *arguments):
        """Runs the kit and returns its exit code, its parts and its lines."""
        done = subprocess.run(
            [*no_network(), sys.executable, "-B", ROOT / "benchmarks/gpu_suite.py", "--bundle", bundle, "--out", self.out,
             *arguments], env=self.environment(), capture_output=True, text=True)
        self.printed = done.stdout + done.stderr
        return done.returncode, *self.written()

    def rehearse(self, plan, **planted):
        """Runs the plan in this process, with fake programs and a virtual clock, and returns its parts and its
        lines."""
        bundle, images = self.planted_bundle(**planted)
        self.out.mkdir()
        options = types.SimpleNamespace(out=self.out, bundle=bundle, cifar10=images, python=str(self.tools / "python"),
                                        plan="first")
        with contextlib.redirect_stdout(io.StringIO()) as printed, \
                mock.patch.dict(os.environ, self.environment(), clear=True), \
                mock.patch.object(gpu_suite.os, "killpg", kill_and_wait):
            kit = gpu_suite.Kit(options, tempfile.mkdtemp(prefix="a blank ", dir=self.folder), VirtualClock(self.hanging))
            kit.run_plan(plan)
            kit.write_results()
            kit.keep_runs()
        kit.log.close()
        kit.lines.close()
        self.printed = printed.getvalue()
        self.assertLess(kit.now(), gpu_plan.TOTAL_SECONDS)
        return self.written()

    def written(self):
        self.assertEqual(sorted(file.name for file in self.out.iterdir()),
                         ["gpu_suite.json", "gpu_suite.jsonl", "gpu_suite.log", "runs.tar.xz"], self.printed)
        self.assertLess(max(file.stat().st_size for file in self.out.iterdir()), 16 << 20)
        lines = [json.loads(line) for line in (self.out / "gpu_suite.jsonl").read_text().splitlines()]
        self.result = json.loads((self.out / "gpu_suite.json").read_text())
        self.assertEqual(self.result["programs"], lines)
        return self.result["parts"], lines

    def planted_bundle(self, **changed):
        """Creates an archive of fake programs, and fake tools that report a GPU. Returns the archive and a folder
        of images."""
        root = self.folder / "planted/lockstep-bundle"
        for name, body in PLANTED.items():
            write_program(root / name, changed.get(os.path.basename(name), body), self.folder)
        for name, body in TOOLS.items():
            write_program(self.tools / name, body, self.folder)
        (root / "share").mkdir()
        (root / "share/version").write_text("planted, CUDA ON\n")
        (root / "env.sh").write_text("export PLANTED=1\n")
        archive = self.folder / "bundle.tar.xz"
        with tarfile.open(archive, "w:xz") as file:
            file.add(root, "lockstep-bundle")
        images = self.folder / "images/train"
        images.mkdir(parents=True)
        return archive, images.parent

    def check_times(self, parts, plan):
        """Expects that no part begins late or exceeds its limit, so that none takes the time of another
        part."""
        self.assertEqual(list(parts), [part.name for part in plan])
        for part in plan:
            self.assertLessEqual(parts[part.name]["begin"], part.begin, part.name)
            self.assertLessEqual(parts[part.name]["seconds"], part.limit, part.name)

    def test_without_a_gpu_every_part_is_skipped(self):
        if os.path.exists("/dev/nvidia0"):
            self.skipTest("this machine has a GPU")
        # Two programs and no compression, which takes half a minute. The bundle of fake programs is
        # compressed.
        archive, build = self.folder / "bundle.tar", self.folder / "build"
        (build / "bin").mkdir(parents=True)
        for name in ("CMakeCache.txt", "bin/lockstep", "bin/kernel_bench"):
            (build / name).symlink_to(BUILD / name)
        packed = subprocess.run([ROOT / "launch/bundle.sh", build, "--programs", "kit", "--limit", "200", "--output",
                                 archive], capture_output=True, text=True)
        self.assertEqual(packed.returncode, 0, packed.stderr)
        peer = os.environ.get("LOCKSTEP_PEER_PYTHON")
        # Nothing hangs, so long limits take no time.
        code, parts, lines = self.fly(archive, "--scale", "100", *(["--python", peer] if peer else []))
        self.assertEqual(code, 0, self.printed)
        self.assertEqual(list(parts), [part.name for part in gpu_plan.FIRST])
        for name in parts.keys() - {"prepare"}:
            self.assertEqual(parts[name]["status"], "skipped", parts[name])
            self.assertIn("GPU", parts[name]["reason"])
        named = {line["program"]: line for line in lines}
        for name in ("unpack", "environment", "libraries", "lockstep info"):
            self.assertEqual(named[name]["status"], "ok", named[name])
        self.assertIn("mpi", self.result["versions"])

    def check_results(self, parts, lines, failed):
        """Checks the results of the fake programs, except those that may hang."""
        self.assertEqual({name for name, part in parts.items() if part["status"] != "ok"}, failed, self.printed)
        self.assertEqual({line["program"] for line in lines} - {"read libraries", "unpack CIFAR-10"},
                         {program.name for part in gpu_plan.FIRST for program in part.programs}
                         - {"read libraries", "unpack CIFAR-10"})
        named = {line["program"]: line for line in lines}
        again = [line["result"] for line in lines if line["program"] == "kernels_cuda_test"]
        self.assertEqual([(run["open"], run["failed"], run["ok"]) for run in again],
                         [("Kernels.Crashes", ["Kernels.Fails"], 0), (None, [], 1)])
        self.assertEqual(named["kernel_bench"]["exit_code"], -signal.SIGSEGV)
        self.assertIn("-11", named["kernel_bench"]["reason"])
        self.assertEqual(named["ncu"]["result"]["kernels"]["gemm"], {"nanoseconds": 30, "launches": 2, "dram_bytes": 26})
        self.assertEqual(named["nvidia-smi samples"]["result"], {"power.draw [W]": [100, 104.5, 109]})
        # The log counts the output that it leaves out: about 20 MB.
        self.assertRegex((self.out / "gpu_suite.log").read_text(), r"\b\d[\d,]{7,} (more )?bytes")
        self.assertEqual(named["CIFAR-10 fp16"]["result"]["test_accuracy"], 0.94)

    def test_a_program_that_crashes_or_floods_does_not_end_the_kit(self):
        archive, images = self.planted_bundle(step_bench=AFTER_THE_SAMPLER + FLOOD_AND_STEP)
        # Nothing hangs, so long limits take no time.
        code, parts, lines = self.fly(archive, "--python", self.tools / "python", "--cifar10", images, "--scale", "100")
        self.assertEqual(code, 70, self.printed)
        self.check_results(parts, lines, {"tests", "kernel_bench"})
        self.assertEqual(self.result["comparisons"]["resnet50 fp16"]["ratios"], [1, 1])

    def test_a_program_that_hangs_crashes_or_floods_does_not_delay_others(self):
        parts, lines = self.rehearse(gpu_plan.FIRST, **HANGING)
        self.check_times(parts, gpu_plan.FIRST)
        self.check_results(parts, lines, {"tests", "resnet50", "kernel_bench"})
        # The first of two turns of resnet50 hangs, so only one ratio is left.
        self.assertEqual(self.result["comparisons"]["resnet50 fp16"]["ratios"], [1])
        self.assertEqual(next(line for line in lines if line["program"] == "cuda_trainer_test")["result"]["open"],
                         "CudaTraining.Hangs")
        stopped = {line["program"]: line for line in lines if line["reason"].startswith("stopped")}
        self.assertEqual(sorted(stopped), ["cuda_trainer_test", "resnet50 fp16"])
        self.assertEqual({line["exit_code"] for line in stopped.values()}, {-signal.SIGKILL})
        # The kit ends a process in another session within a second, or later if the machine is busy.
        deadline = time.monotonic() + 60
        while self.left_processes():
            self.assertLess(time.monotonic(), deadline, "a process of a program in another session must end")
            time.sleep(0.02)

    def test_a_failed_smoke_test_leads_to_diagnosis(self):
        differ = 'step(eager_digest="a1", recorded_digest="b2" if value("--model") == "resnet18" else "a1")'
        parts, lines = self.rehearse(gpu_plan.FIRST, step_bench=differ)
        self.assertIn("failed", {part["status"] for part in parts.values()})
        self.check_times(parts, [*gpu_plan.FIRST[:2], *gpu_plan.DIAGNOSIS])
        self.assertFalse([line for line in lines if line["program"].startswith("PyTorch")])
        named = {line["program"]: line for line in lines}
        for digest in ("a1", "b2"):
            self.assertIn(digest, named["smoke step"]["reason"])
        self.assertEqual(named["memcheck: --model resnet18 --batch 8"]["status"], "failed", "digests must differ here, too")
        self.assertIn("blocking launches: --model resnet18 --batch 8", named)

    def test_every_plan_ends_within_its_limit_and_its_programs_are_packed(self):
        for plan in (*gpu_plan.PLANS.values(), [*gpu_plan.FIRST[:2], *gpu_plan.DIAGNOSIS]):
            ends = [0]
            for part in plan:
                self.assertGreaterEqual(part.begin, ends[-1], part.name)
                ends.append(part.begin + part.limit)
            self.assertLessEqual(ends[-1], gpu_plan.TOTAL_SECONDS - 10, "the plan must leave time to write the results")
        packed = re.search(r"kit=\(([^)]*)\)", (ROOT / "launch/bundle.sh").read_text()).group(1).split()
        named = {name for plan in gpu_plan.PLANS.values() for part in plan for program in part.programs
                 for name in re.findall(r"{bundle}/(?:bin|tests)/(\w+)", program.command)}
        self.assertEqual(sorted(named), sorted(packed))

    def test_a_process_that_ignores_all_signals_is_abandoned(self):
        clock, sent = VirtualClock(self.hanging), []
        kit = self.kit_without_images(clock)
        command = shlex.join(["bash", "-c", f"echo $$ && touch {self.hanging}/$$ && exec sleep 100000"])
        with mock.patch.object(gpu_suite.os, "kill"), \
                mock.patch.object(gpu_suite.os, "killpg", lambda *_: sent.append(clock.seconds)):
            kit.run_part(gpu_plan.Part("stuck", 0, 10, [gpu_plan.Program("stuck", command, gpu=False)]))
        self.assertLessEqual(kit.now(), 10)
        self.assertEqual([9 <= seconds < 10 for seconds in sent], [True], "SIGKILL comes once, a second before the end")
        self.assertIsNone(kit.runs[0].exit_code)
        self.assertEqual(kit.parts["stuck"]["status"], "failed")
        self.assertIn("SIGKILL", kit.parts["stuck"]["reason"])
        os.kill(int(kit.runs[0].output), signal.SIGKILL)

    def test_a_program_of_which_no_case_runs_fails(self):
        kit = self.kit_without_images(VirtualClock(self.hanging))
        kit.run_part(gpu_plan.Part("empty", 0, 10, [gpu_plan.Program("none", "true", gpu=False, read=gpu_plan.cases)]))
        self.assertEqual((kit.parts["empty"]["status"], kit.runs[0].reason), ("failed", "no case ran"))

    def test_a_part_with_a_program_that_does_not_end_in_time_fails(self):
        clock, released = VirtualClock(self.hanging), threading.Event()
        kit = self.kit_without_images(clock)
        command = shlex.join(["bash", "-c", f"touch {self.hanging}/$$ && exec sleep 100000"])

        def block(_):
            while threading.current_thread().name == "program stuck" and not released.wait(0.002):
                clock.now()
        with mock.patch.object(gpu_suite.os, "kill"), mock.patch.object(gpu_suite.os, "killpg"), \
                mock.patch.object(gpu_suite, "kill_all", block):
            kit.run_part(gpu_plan.Part("stuck", 0, 10, [gpu_plan.Program("fine", "true", gpu=False),
                                                        gpu_plan.Program("stuck", command, gpu=False)]))
            released.set()
            for thread in threading.enumerate():
                if thread.name == "program stuck":
                    thread.join()
        os.kill(int(next(self.hanging.iterdir()).name), signal.SIGKILL)
        self.assertEqual([(run.program.name, run.status) for run in kit.runs], [("fine", "ok"), ("stuck", "failed")])
        self.assertEqual((kit.parts["stuck"]["status"], kit.parts["stuck"]["reason"]), ("failed", "stuck did not end in time"))

    def kit_without_images(self, clock):
        self.out.mkdir()
        options = types.SimpleNamespace(out=self.out, bundle=self.folder / "bundle", cifar10=None, python=sys.executable)
        kit = gpu_suite.Kit(options, str(self.folder), clock)
        self.addCleanup(kit.log.close)
        self.addCleanup(kit.lines.close)
        return kit

    def test_a_run_after_a_crash_excludes_what_the_first_run_excluded(self):
        program = self.folder / "crasher"
        write_program(program, """
case('Kernels.AfterTheCrash', 'OK') if any("Crashes" in word for word in words) else case('Kernels.Crashes')
if not any("Crashes" in word for word in words): os.kill(os.getpid(), signal.SIGSEGV)
""", self.folder)
        kit = self.kit_without_images(gpu_suite.Clock(100))
        kit.run_part(gpu_plan.Part("crash", 0, 100, [
            gpu_plan.Program("crasher", f"{program} --gtest_filter=-*Alone*", gpu=False, read=gpu_plan.cases)]))
        self.assertEqual([run.command[1:] for run in kit.runs],
                         [["--gtest_filter=-*Alone*"], ["--gtest_filter=-*Alone*:Kernels.Crashes"]])
        self.assertEqual(kit.runs[1].result["ok"], 1)

    def test_a_run_after_a_crash_has_the_later_cases_of_its_shard(self):
        program = self.folder / "sharded"
        write_program(program, """
total, index = (int(os.environ["GTEST_" + name]) for name in ("TOTAL_SHARDS", "SHARD_INDEX"))
excluded = words[0].partition("-*")[2].split(":")
for number in [number for number in range(12) if f"Many.Case{number}" not in excluded][index::total]:
    case(f"Many.Case{number}", *([] if number == 5 else ["OK"]))
    if number == 5: os.kill(os.getpid(), signal.SIGSEGV)
""", self.folder)
        kit = self.kit_without_images(gpu_suite.Clock(100))
        kit.run_part(gpu_plan.Part("crash", 0, 100, [
            gpu_plan.Program("sharded", f"{program} --gtest_filter=-*Alone*", gpu=False, read=gpu_plan.cases,
                             environment={"GTEST_TOTAL_SHARDS": "3", "GTEST_SHARD_INDEX": "2"})]))
        self.assertEqual(len(kit.runs), 2)
        begun = re.findall(r"RUN +\] Many.Case(\d+)", "".join(run.output for run in kit.runs))
        self.assertLessEqual({"2", "5", "8", "11"}, set(begun))

    def test_trainings_on_few_images_are_skipped_without_images(self):
        kit = self.kit_without_images(gpu_suite.Clock(100))
        with mock.patch.object(kit, "has_gpu", lambda: True):
            self.assertEqual(kit.obstacle(gpu_plan.fine_tuning(1, 2), [], {}), "--cifar10 is not set")

    def test_an_archive_that_python_cannot_unpack_is_refused(self):
        file = self.folder / "images.tar.zst"
        file.write_bytes(b"\x28\xb5\x2f\xfd not for this Python")
        done = subprocess.run([sys.executable, "-B", ROOT / "benchmarks/gpu_suite.py", "--bundle", self.folder, "--cifar10",
                               file, "--out", self.out], capture_output=True, text=True)
        self.assertEqual(done.returncode, 64)
        self.assertIn("zstd -dc", done.stderr)


if __name__ == "__main__":
    unittest.main()
