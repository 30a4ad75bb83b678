#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kubernetes_test.py REPOSITORY FOLDER LOCKSTEP: tests that the template for Kubernetes is a valid MPIJob
with valid Pods, that its numbers of ranks, slots and GPUs agree, and that lockstep accepts its arguments.
Installs the validators into FOLDER.

Exit codes: 0, 1 if it is not valid, 77 if the validators cannot be installed."""

import copy
import functools
import json
import pathlib
import subprocess
import sys

VALIDATORS = "kubernetes-validate==1.37.0"
KUBERNETES = "1.31"

repository, folder, lockstep = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
if not (folder / "kubernetes_validate").is_dir():
    done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), VALIDATORS],
                          capture_output=True, text=True)
    if done.returncode:
        print(f"Skipped: Kubernetes' schemas, because {VALIDATORS} cannot be installed: {done.stderr[-300:]}")
        sys.exit(77)
sys.path.insert(0, str(folder))
import jsonschema  # noqa: E402
import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402


def pod_of(replica):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **replica["template"]}


@functools.cache  # each validation loads the schemas of Kubernetes again
def errors_of_pod(text):
    try:
        kubernetes_validate.validate(json.loads(text), KUBERNETES, strict=True)
    except (kubernetes_validate.ValidationError, jsonschema.ValidationError) as error:
        return [error.message]
    return []


def errors_of(job, schema):
    """The errors of the job, in words; empty if it is valid."""
    errors = [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(job)]
    for name, replica in job["spec"]["mpiReplicaSpecs"].items():
        errors += [f"{name}: {message}" for message in errors_of_pod(json.dumps(pod_of(replica)))]
    launcher, worker = (job["spec"]["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker"))
    arguments = launcher["template"]["spec"]["containers"][0]["args"]
    gpus = int(worker["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    ranks, slots = int(arguments[arguments.index("-np") + 1]), job["spec"]["slotsPerWorker"]
    if not ranks == slots * worker["replicas"] == gpus * worker["replicas"]:
        errors.append(f"{ranks} ranks, {worker['replicas']} workers with {slots} slots and {gpus} GPUs")
    told = arguments[arguments.index("lockstep") + 1:]
    printed = subprocess.run([lockstep, *told, "--print-config"], capture_output=True, text=True)
    if printed.returncode or "--resume auto" not in " ".join(told):
        errors.append(f"lockstep refuses the arguments, or they lack --resume auto: {' '.join(told)}: {printed.stderr}")
    return errors


job = yaml.safe_load((repository / "launch/kubernetes/mpijob.yaml").read_text())
schema = json.loads((repository / "tests/launch/mpijob_schema.json").read_text())
errors = errors_of(job, schema)

# Faults that must be found: a key unknown to MPIJob, a key unknown to Pod, a wrong number of ranks.
for spoil in (lambda job: job["spec"].update(slotPerWorker=8),
              lambda job: job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"].update(gracePeriod=1),
              lambda job: job["spec"]["mpiReplicaSpecs"]["Worker"].update(replicas=3)):
    bad = copy.deepcopy(job)
    spoil(bad)
    if len(errors_of(bad, schema)) != 1:
        errors.append(f"a fault was not reported: {errors_of(bad, schema)}")
print("\n".join(errors) or "valid")
sys.exit(1 if errors else 0)
