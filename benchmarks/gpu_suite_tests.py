# SPDX-License-Identifier: Apache-2.0
"""The tests that need a GPU, from ctest's list of them, without ctest: each program of GoogleTest cases runs once with
all of its cases, and once more for those that come after a case that ended or held up the program."""

import json
import os
import pathlib
import re
import time

import suite

FILTER = "--gtest_filter="
LINE = re.compile(r"\[ *(RUN|OK|FAILED|SKIPPED) *\] ([^\s,]+)(?:.*\((\d+) ms\))?")
PROGRAM_LIMIT = 75  # seconds
KEPT_OUTPUT = 4000  # characters of a failed case's output


class CudaTests:
    """Nothing runs after end, a time.monotonic()."""

    def __init__(self, bundle, environment, scratch, end):
        self.bundle, self.environment, self.scratch, self.end = pathlib.Path(bundle), environment, scratch, end
        self.cases = {}

    def run(self):
        """The outcome of each case, and their counts."""
        listed = self.bundle / "tests/cuda_tests.json"
        tests = json.loads(listed.read_text())["tests"] if listed.exists() else []
        if not tests:
            return {"status": "skipped", "reason": "the bundle was made from a build without tests of label cuda"}
        programs = {}
        for test in tests:
            command, environment, obstacle = self.translate(test)
            if obstacle:
                self.cases[test["name"]] = obstacle
            elif len(command) > 1 and command[1].startswith(FILTER):
                key = (command[0], tuple(sorted(environment.items())))
                programs.setdefault(key, {})[command[1].removeprefix(FILTER)] = test["name"]
            else:
                self.run_alone(test["name"], command, environment)
        for (program, environment), names in programs.items():
            self.run_cases(program, dict(environment), names)
        return self.outcome()

    def translate(self, test):
        """The command and environment of a test as they are here, or why it cannot run: "skipped" for what should be
        here, "not packed" for what belongs to a source or build folder."""
        command, obstacle = [], None
        for part in test.get("command", []):
            if part.startswith("@programs@/"):
                name = part.removeprefix("@programs@/")
                found = [self.bundle / folder / name for folder in ("tests", "bin")]
                part = str(next((file for file in found if file.exists()), ""))
                if not part:
                    obstacle = {"status": "skipped", "reason": f"the bundle has no program {name}"}
            elif "@source@" in part or "@scratch@" in part:
                needed = part.split("@")[-1].lstrip("/")
                obstacle = {"status": "not packed", "reason": f"needs {needed} of the source or build folder"}
            command.append(part)
        if not command:
            return command, {}, {"status": "skipped", "reason": "it was not built"}
        if re.match(r"(mpirun|mpiexec|orterun)", os.path.basename(command[0])):
            command[0] = self.environment.get("LOCKSTEP_MPIRUN", "")
            if not command[0]:
                obstacle = {"status": "skipped", "reason": "no Open MPI was found"}
        elif not obstacle and not command[0].startswith(str(self.bundle)):
            obstacle = {"status": "not packed", "reason": f"needs {command[0]}, which no bundle has"}
        settings = next((p["value"] for p in test.get("properties", []) if p["name"] == "ENVIRONMENT"), [])
        pairs = [setting.replace("@scratch@", str(self.scratch)).split("=", 1) for setting in settings]
        return command, {name: value for name, value in pairs}, obstacle

    def execute(self, command, environment):
        seconds = min(PROGRAM_LIMIT, self.end - time.monotonic())
        if seconds < 1:
            return suite.Run(command, "not reached", "the suite's time was over")
        return suite.execute(command, seconds, {**self.environment, **environment, "GTEST_COLOR": "no"})

    def run_alone(self, name, command, environment):
        """A test that says by its exit code how it ended: ranks under mpirun."""
        run = self.execute(command, environment)
        case = {"status": run.status, "seconds": run.seconds}
        if run.status != "ok":
            case.update(reason=run.reason, output=run.output[-KEPT_OUTPUT:])
        elif "[  SKIPPED ]" in run.output and "[       OK ]" not in run.output:
            case.update(status="skipped", reason=skip_reason(run.output))
        self.cases[name] = case

    def run_cases(self, program, environment, names):
        pending = list(names)
        while pending:
            run = self.execute([program, FILTER + ":".join(pending)], environment)
            ended, open_case = parse(run.output)
            ended = {case: outcome for case, outcome in ended.items() if case in names}
            if open_case in names:
                ended[open_case] = {"status": "failed", "output": run.output[-KEPT_OUTPUT:],
                                    "reason": f"the program ended in this case: {run.reason or 'exit code 0'}"}
            elif ended and run.status == "failed" and all(o["status"] != "failed" for o in ended.values()):
                self.cases[f"{os.path.basename(program)} after its cases"] = {"status": "failed", "reason": run.reason}
            pending = [case for case in pending if case not in ended]
            if not ended:  # not one began: nothing is to be hoped from another try
                ended = {case: {"status": "failed" if run.status == "ok" else run.status,
                                "reason": run.reason or "the program does not have this case"} for case in pending}
                pending = []
            self.cases.update({names[case]: outcome for case, outcome in ended.items()})

    def outcome(self):
        counts = {}
        for case in self.cases.values():
            counts[case["status"]] = counts.get(case["status"], 0) + 1
        status = next(s for s in ("failed", "not reached", "skipped", "ok", "not packed") if s in counts)
        result = {"status": status, "counts": counts, "cases": self.cases}
        bad = [name for name, case in self.cases.items() if case["status"] == status]
        if status != "ok":
            result["reason"] = f"{len(bad)} of {len(self.cases)}: {bad[0]}: {self.cases[bad[0]].get('reason', '')}"
        return result


def skip_reason(output):
    found = re.search(r": Skipped\n(.*?)\n\n?\[", output, re.DOTALL)
    return found.group(1).strip() if found else ""


def parse(output):
    """The outcome of each case that ended, by its name, and the case during which the program ended, if one was."""
    ended, case, begin = {}, None, 0
    for line in re.finditer(r"[^\n]*(?:\n|$)", output):
        match = LINE.search(line.group())
        if not match:
            continue
        what, name, milliseconds = match.groups()
        if what == "RUN":
            case, begin = name, line.end()
        elif name == case:
            text = output[begin:line.start()]
            ended[case] = {"status": {"OK": "ok"}.get(what, what.lower()), "milliseconds": int(milliseconds or 0)}
            if what == "SKIPPED":
                ended[case]["reason"] = skip_reason(text + "\n[")
            elif what == "FAILED":
                ended[case].update(reason=suite.last_lines(text), output=text[-KEPT_OUTPUT:])
            case = None
    return ended, case
