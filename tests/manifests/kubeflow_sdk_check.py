#!/usr/bin/env python3
"""kubeflow_sdk_check.py TESSERA: the Kubeflow SDK (`pip install kubeflow`) lists the runtimes that `tessera deploy runtime` writes, and
starts a TrainJob with them. An HTTP server stands in for the API server: it lists the runtime and takes the TrainJob. Exit code 77 =
skipped: there is no SDK in this Python.
"""
import http.server
import json
import subprocess
import sys
import threading

try:
    import yaml
    from kubeflow.common.types import KubernetesBackendConfig
    from kubeflow.trainer import CustomTrainerContainer, TrainerClient
    from kubeflow.trainer.options import TrainerArgs
    from kubernetes import client
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

GROUP = "/apis/trainer.kubeflow.org/v1alpha1"
failures = []


def check(condition, what):
    if not condition:
        failures.append(what)


class ApiServer(http.server.BaseHTTPRequestHandler):
    """Has the runtimes of `runtimes`, and keeps the TrainJobs that are created in `jobs`."""
    runtimes, jobs = [], []

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):  # pylint: disable=invalid-name
        if self.path == f"{GROUP}/clustertrainingruntimes":
            return self.answer(200, {"kind": "ClusterTrainingRuntimeList", "metadata": {}, "items": self.runtimes})
        if self.path == f"{GROUP}/namespaces/training/trainingruntimes":
            return self.answer(200, {"kind": "TrainingRuntimeList", "metadata": {}, "items": []})
        if self.path.endswith("/configmaps/kubeflow-trainer-public"):
            return self.answer(200, {"apiVersion": "v1", "kind": "ConfigMap", "data": {"kubeflow_trainer_version": "v2.3.0"}})
        for each in self.runtimes:
            if self.path == f"{GROUP}/clustertrainingruntimes/{each['metadata']['name']}":
                return self.answer(200, each)
        return self.answer(404, {"kind": "Status", "code": 404})

    def do_POST(self):  # pylint: disable=invalid-name
        self.jobs.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer(201, self.jobs[-1])

    def log_message(self, *_):
        pass


def runtime_of(program, *flags):
    text = subprocess.run([program, "deploy", "runtime", *flags], capture_output=True, text=True, check=True).stdout
    return next(each for each in yaml.safe_load_all(text) if each["kind"] == "ClusterTrainingRuntime")


def check_trainer(program, version):
    ApiServer.runtimes = [runtime_of(program, "--trainer", version), runtime_of(program, "--trainer", version, "--device", "cuda")]
    ApiServer.jobs = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = client.Configuration(host=f"http://127.0.0.1:{server.server_port}")
    trainer = TrainerClient(KubernetesBackendConfig(client_configuration=config, namespace="training"))
    found = {each.name: each for each in trainer.list_runtimes()}
    check(sorted(found) == ["tessera", "tessera-cuda"], f"{version}: runtimes {sorted(found)}")
    for name, runtime in found.items():
        check(runtime.trainer.framework == "tessera", f"{version}: {name} has the framework {runtime.trainer.framework}")
    arguments = ["--model=org/model", "--dataset=org/rows"]
    name = trainer.train(runtime=found["tessera"], options=[TrainerArgs(arguments)], trainer=CustomTrainerContainer(
        image="registry.example/tessera:1", num_nodes=2, resources_per_node={"cpu": 60, "memory": "400Gi"}))
    job = ApiServer.jobs[0]
    check(job["metadata"]["name"] == name, f"{version}: {job['metadata']}")
    check(job["spec"]["runtimeRef"]["name"] == "tessera" and job["spec"]["runtimeRef"]["kind"] == "ClusterTrainingRuntime",
          f"{version}: {job['spec']['runtimeRef']}")
    block = job["spec"]["trainer"]
    check(block["args"] == arguments and "command" not in block, f"{version}: the command is the runtime's: {block}")
    check(block["numNodes"] == 2 and block["resourcesPerNode"]["limits"]["memory"] == "400Gi", f"{version}: {block}")
    server.shutdown()


def main():
    for version in ("v2.1", "v2.2", "v2.4"):
        check_trainer(sys.argv[1], version)
    if failures:
        sys.exit("\n".join(failures))
    print("the SDK lists and starts the runtimes")


main()
