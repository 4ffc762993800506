#!/usr/bin/python3
"""Dashboards and alerts against a Prometheus that scrapes real runs: every expression is answered, and alerts fire on injected
faults: throttling, a loss that is not finite, a killed rank, a stopped rank, SIGTERM, the end of all pods.

usage: live_test.py TESSERA      exits with 77 and a reason if something it needs is missing
"""
import contextlib, json, os, pathlib, random, re, shutil, signal, socket, subprocess, sys, tempfile, time, urllib.error, urllib.parse, urllib.request

import manifests
import yaml

TOKEN = "0123456789abcdef-token"
# Without values in this run, or on machines that cannot tell them.
MAY_BE_ABSENT = {"tessera_eval_loss", "tessera_rdma_counter_total", "tessera_clock_hertz", "tessera_cpu_frequency_hertz",
                 "tessera_numa_free_bytes", "tessera_numa_miss_pages_total", "tessera_cpu_throttled_seconds_total",
                 "tessera:cpu_throttled:rate5m", "tessera:card_xid:last"}
# Those of NVIDIA cards and of their exporter.
OF_CARDS = ("tessera_gpu_", "DCGM_")
START = time.monotonic()


def say(text):
    print(f"{time.monotonic() - START:5.1f} s  {text}", flush=True)


def wait_for(what, condition, limit_s=30):
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {limit_s} s: {what}"
        time.sleep(0.1)
    say(what)
    return found


def free_port():
    """Below the ports that the kernel gives to connections, which would take it before the server does."""
    while True:
        port = random.randrange(20000, 32768)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def children_of(pid):
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@contextlib.contextmanager
def cpu_quota(cpus):
    """A control group of version 1 or 2 with this quota, None if it cannot be made."""
    roots = [p for p in (pathlib.Path("/sys/fs/cgroup/cpu"), pathlib.Path("/sys/fs/cgroup")) if (p / "cgroup.procs").exists()]
    group = roots[0] / f"tessera-test-{os.getpid()}" if roots else pathlib.Path("/nonexistent")
    try:
        group.mkdir()
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_quota_us").write_text(str(int(cpus * 100000)))
        else:
            (group / "cpu.max").write_text(f"{int(cpus * 100000)} 100000")
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()


class Prometheus:
    def __init__(self, folder, groups, targets):
        self.folder, self.port, self.targets = folder, free_port(), targets
        (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
        self.tell_targets()
        config = {"global": {"scrape_interval": "400ms", "scrape_timeout": "400ms", "evaluation_interval": "250ms"},
                  "rule_files": ["rules.yaml"],
                  "scrape_configs": [{"job_name": "pods", "authorization": {"credentials": TOKEN},
                                      "file_sd_configs": [{"files": ["targets.json"]}]}]}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self.log = open(folder / "prometheus.log", "w+")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/tsdb",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self.log, stderr=self.log)

    def tell_targets(self):
        """The labels that the PodMonitor gives, by port."""
        file = self.folder / "targets.json.new"
        file.write_text(json.dumps([{"targets": [f"127.0.0.1:{port}"], "labels": dict(labels, namespace="training", app="tessera",
                                                                                      node_name="worker-" + labels["node_rank"])}
                                    for port, labels in self.targets.items()]))
        file.rename(self.folder / "targets.json")

    def ask(self, what, **arguments):
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        try:
            return json.load(urllib.request.urlopen(url, timeout=10))["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{arguments}: {error.read().decode()}") from None

    def is_ready(self):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=1).status == 200
        except OSError:
            return False

    def alerts(self):
        """{(name, job): alert} of those that fire."""
        return {(a["labels"]["alertname"], a["labels"]["job"]): a for a in self.ask("alerts")["alerts"] if a["state"] == "firing"}

    def wait_for_alert(self, name, job, **labels):
        alert = wait_for(f"{name} fires for {job}", lambda: self.alerts().get((name, job)))
        for key, value in labels.items():
            assert alert["labels"].get(key) == value, alert
        text = alert["annotations"]["summary"] + alert["annotations"]["description"]
        assert job in text and "<no value>" not in text and "error" not in text.lower(), text
        say("         " + alert["annotations"]["description"])


def check_expressions(prometheus, tessera, groups):
    """Every expression is accepted; those whose metrics exist have values, rates after their second sample."""
    expressions = [(rule["record"], rule["expr"], True) for group in groups for rule in group["rules"] if "record" in rule]
    expressions += [(rule["alert"], rule["expr"], False) for group in groups for rule in group["rules"] if "alert" in rule]
    for name, dashboard in manifests.dashboards(manifests.deploy(tessera, "dashboards")).items():
        for where, expression in manifests.queries(dashboard):
            for variable, value in (("namespace", "training"), ("job", "demo"), ("pod", ".*"), ("__rate_interval", "5s")):
                expression = expression.replace("$" + variable, value)
            expressions.append((f"{name}: {where}", expression, not where.startswith("annotation")))

    def has_value(expression):
        """Whether the expression has a value; None if what it may need is absent from this run."""
        names = set(prometheus.ask("label/__name__/values", **{"match[]": '{job="demo"}'}))
        missing = set(re.findall(r"\b(?:tessera[_:]|DCGM_)[A-Za-z_0-9:]+", expression)) - names
        if prometheus.ask("query", query=expression)["result"]:
            return True
        return None if missing and all(name in MAY_BE_ABSENT or name.startswith(OF_CARDS) for name in missing) else False

    end = time.monotonic() + 30
    num_values, pending = 0, expressions
    while pending:
        answers = [(rest, has_value(rest[1])) for rest in pending]
        num_values += sum(bool(answer) for _, answer in answers)
        pending = [rest for rest, answer in answers if answer is False and rest[2]]
        assert time.monotonic() < end, f"no value: {pending}"
    assert num_values > 80, num_values
    say(f"{len(expressions)} expressions, {num_values} with values")


def make_model(tessera, folder):
    words = "the model reads a weight from every small layer and token again before it writes".split()
    (folder / "text.txt").write_text("".join(" ".join(words[(i * k) % 15] for k in range(1, 9)) + ".\n" for i in range(8000)))
    (folder / "config.json").write_text(json.dumps(
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
         "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True}))
    subprocess.run([tessera, "tokenizer", "train", "--input", "text.txt", "--vocab_size", "300", "--output", "tokenizer"],
                   cwd=folder, check=True, capture_output=True)
    subprocess.run([tessera, "init", "--config", "config.json", "--tokenizer", "tokenizer", "--output", "model", "--dtype", "float32"],
                   cwd=folder, check=True, capture_output=True)


def check_log_rules(tessera, folder):
    """The expressions by which Alloy finds level, rank and step, on the lines of these runs."""
    config = manifests.deploy(tessera, "dashboards")["ConfigMap/tessera-alloy"]["data"]["config.alloy"]
    head, step = re.findall(r"expression = `(.*)`", config)
    lines = [line for log in folder.glob("*.log") for line in log.read_text().splitlines() if log.name != "prometheus.log"]
    found = [match.groupdict() for line in lines if (match := re.search(head, line))]
    assert {"info", "warning"} <= {f["level"] for f in found}, lines
    assert any(re.search(step, line) for line in lines), lines
    assert re.search(head, "[rank 3] error: step 7: no room").groupdict() == {"rank": "3", "level": "error"}
    say(f"{len(found)} of {len(lines)} lines of the logs have a level")


def run_test(tessera, folder, started, throttled_group):
    make_model(tessera, folder)
    say("model made")
    groups = manifests.rule_groups(manifests.deploy(tessera, "alerts", "--restarts_per_hour", "0", "--throttled_fraction", "0.001",
                                                    "--checkpoint_age_s", "0"))
    for group in groups:
        for rule in group["rules"]:
            if "alert" in rule:
                rule["for"] = "0s"
    ports = [free_port() for _ in range(3)]
    jobs = [("demo", "0"), ("demo", "1"), ("diverging", "0")]
    prometheus = Prometheus(folder, groups, {port: {"job": job, "pod": f"{job}-node-0-{rank}", "node_rank": rank}
                                             for port, (job, rank) in zip(ports, jobs)})
    started.append(prometheus.process)
    environment = dict(os.environ, TESSERA_METRICS_TOKEN=TOKEN)

    def start(name, arguments):
        with open(folder / f"{name}.log", "w") as log:
            process = subprocess.Popen(arguments, cwd=folder, env=environment, stdout=log, stderr=log)
        started.append(process)
        return process

    def train(name, port, *more):
        return ["train", "--model", "model", "--dataset", "text.txt", "--text_per_line", "--output_dir", name, "--cache_dir", "cache",
                "--max_length", "64", "--packing", "--per_device_train_batch_size", "4", "--max_steps", "1000000", "--save_steps", "20",
                "--save_total_limit", "1", "--logging_steps", "5", "--metrics_port", str(port), "--metrics_host", "0.0.0.0", *more]

    meeting = free_port()
    agents = [start(f"demo-{node}", [tessera, "launch", "--nnodes", "2", "--node_rank", str(node), "--nproc_per_node", "1",
                                     "--rdzv_endpoint", f"127.0.0.1:{meeting}", "--max_restarts", "5",
                                     # A stopped rank would be restarted after five seconds.
                                     "--rdzv_conf", "heartbeat_timeout=60",
                                     *train("demo", ports[node], "--health_timeout", "6", "--num_threads", "1",
                                            "--gradient_accumulation_steps", "20")]) for node in range(2)]
    wait_for("Prometheus is ready", prometheus.is_ready)
    # Prometheus takes up its targets five seconds after its start, which is longer than the run below lasts.
    wait_for("targets are scraped", lambda: prometheus.ask("query", query='up{job="demo"} == 1')["result"])
    # Weights of 1e30 after the first step; ten steps of some tenths of a second until the run ends.
    start("diverging", [tessera, *train("diverging", ports[2], "--learning_rate", "1e30", "--loss_spike_policy", "skip", "--num_threads", "1",
                                        "--gradient_accumulation_steps", "400")])
    prometheus.wait_for_alert("TesseraLossNotFinite", "diverging", pod="diverging-node-0-0", severity="critical")
    # A checkpoint is there, and rates have two samples.
    wait_for("the run has a checkpoint", lambda: prometheus.ask("query", query="tessera_checkpoint_bytes > 0")["result"])
    wait_for("rates are recorded", lambda: prometheus.ask("query", query='tessera:tcp_retransmits:ratio5m{pod="demo-node-0-1"}')["result"])
    check_expressions(prometheus, tessera, groups)
    prometheus.wait_for_alert("TesseraCheckpointTooOld", "demo", severity="warning")
    quiet = {"TesseraStalled", "TesseraRestartLoop", "TesseraInterrupted", "TesseraInterruptedOften", "TesseraEndedEarly",
             "TesseraCheckpointFailing"}
    early = {name for name, job in prometheus.alerts() if job == "demo"} & quiet
    assert not early, f"before any fault: {early}"

    rank_1 = children_of(agents[1].pid)[0]
    if throttled_group:
        (throttled_group / "cgroup.procs").write_text(str(rank_1))
        prometheus.wait_for_alert("TesseraCpuThrottled", "demo", pod="demo-node-0-1", severity="warning")
    else:
        say("no control group with a CPU quota can be made: throttling is not tested")
    os.kill(rank_1, signal.SIGKILL)
    say("rank 1 is killed")
    prometheus.wait_for_alert("TesseraRestartLoop", "demo", severity="critical")
    wait_for("the run resumes", lambda: prometheus.ask("query", query='time() - tessera_start_time_seconds{job="demo"} < 30 and '
                                                       'tessera_last_step_age_seconds < 1 and tessera_train_step > 0')["result"])
    rank_1 = children_of(agents[1].pid)[0]
    os.kill(rank_1, signal.SIGSTOP)
    say("rank 1 is stopped")
    prometheus.wait_for_alert("TesseraStalled", "demo", pod="demo-node-0-0", severity="critical")
    agents[0].send_signal(signal.SIGTERM)
    prometheus.wait_for_alert("TesseraInterrupted", "demo", pod="demo-node-0-0", severity="info")
    for agent in agents:
        for pid in [*children_of(agent.pid), agent.pid]:
            os.kill(pid, signal.SIGKILL)
        agent.wait()
    prometheus.wait_for_alert("TesseraTargetDown", "demo", severity="warning")
    prometheus.targets.clear()
    prometheus.tell_targets()
    prometheus.wait_for_alert("TesseraEndedEarly", "demo", severity="critical")
    check_log_rules(tessera, folder)


def main():
    tessera = str(pathlib.Path(sys.argv[1]).resolve())
    if not shutil.which("prometheus"):
        print("skipped: prometheus is not installed")
        sys.exit(77)
    started = []
    with tempfile.TemporaryDirectory() as name, cpu_quota(0.02) as throttled_group:
        folder = pathlib.Path(name)
        try:
            run_test(tessera, folder, started, throttled_group)
        except BaseException:
            for log in folder.glob("*.log"):
                print(f"== {log.name}\n" + "\n".join(log.read_text().splitlines()[-30:]))
            raise
        finally:
            for process in started:
                if process.poll() is None:
                    for pid in [*children_of(process.pid), process.pid]:
                        os.kill(pid, signal.SIGKILL)
                process.wait()


if __name__ == "__main__":
    main()
