#!/usr/bin/python3
"""Every alert rule fires when it should and only then (promtool, alerts.yaml), and dashboards are well-formed.

usage: rules_test.py TESSERA      exits with 77 and a reason if something it needs is missing
"""
import pathlib, re, shutil, subprocess, sys, tempfile

import manifests
import yaml

BASE = {"namespace": "training", "job": "llama", "pod": "llama-0-a", "node_name": "worker-0", "node_rank": "0"}


def series_of(given):
    """[{series, values}]; the keys of `given` are names, with labels that replace those of BASE."""
    series = []
    for key, values in given.items():
        name, labels = re.fullmatch(r"(\w+)(?:\{(.*)\})?", key).groups()
        labels = dict(BASE, **dict(re.findall(r'(\w+)="([^"]*)"', labels or "")))
        series.append({"series": name + "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}", "values": str(values)})
    return series


def unit_tests(groups, table):
    tests = []
    for group in groups:
        for rule in group["rules"]:
            if "alert" not in rule:
                continue
            case = table[rule["alert"]]
            labels = {k: v for k, v in BASE.items() if k in case.get("by", BASE)}
            labels.update(case.get("labels", {}), severity=rule["labels"]["severity"])
            for outcome, expected in (("fires", [{"exp_labels": labels}]), ("quiet", [])):
                for number, given in enumerate(case[outcome]):
                    tests.append({"name": f"{rule['alert']} {outcome} {number}", "interval": "1m", "input_series": series_of(given),
                                  "alert_rule_test": [{"eval_time": f"{case['at']}m", "alertname": rule["alert"], "exp_alerts": expected}]})
    return tests


def check_rules(tessera, promtool, folder):
    groups = manifests.rule_groups(manifests.deploy(tessera, "alerts"))
    for group in groups:
        for rule in group["rules"]:
            if "alert" in rule:
                notes = rule["annotations"]
                assert notes["runbook_url"] == "docs/bottlenecks.md#" + rule["alert"].lower(), rule["alert"]
                assert "$labels.job" in notes["summary"] + notes["description"], rule["alert"]
                assert rule["labels"]["severity"] in ("info", "warning", "critical"), rule["alert"]
    (folder / "whole.yaml").write_text(yaml.safe_dump({"groups": groups}))
    subprocess.run([promtool, "check", "rules", folder / "whole.yaml"], check=True)
    # promtool wants the expected text of every annotation; whether templates of texts parse was checked above.
    for group in groups:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    table = yaml.safe_load((pathlib.Path(__file__).parent / "alerts.yaml").read_text())
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert alerts == set(table), alerts ^ set(table)
    tests = unit_tests(groups, table)
    file = folder / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}))
    subprocess.run([promtool, "test", "rules", file], check=True)
    print(f"{len(alerts)} alerts, {len(tests)} cases")


def check_dashboards(tessera):
    documents = manifests.deploy(tessera, "dashboards")
    found = manifests.dashboards(documents)
    assert set(found) == {"tessera-fleet", "tessera-run", "tessera-rank", "tessera-node"}, found.keys()
    for name, dashboard in found.items():
        assert dashboard["uid"] == name
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(ids) == len(set(ids)), name
        cells = set()
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            assert at["w"] > 0 and at["x"] + at["w"] <= 24, panel["title"]
            covered = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & covered, f"{name}: {panel['title']} overlaps another panel"
            cells |= covered
            for link in panel["fieldConfig"]["defaults"]["links"]:
                target = re.match(r"/d/([\w-]+)\?", link["url"]).group(1)
                variables = {v["name"] for v in found[target]["templating"]["list"]}
                assert set(re.findall(r"var-(\w+)=", link["url"])) <= variables, link
        known = {v["name"] for v in dashboard["templating"]["list"]} | {"__rate_interval"}
        for where, expression in manifests.queries(dashboard):
            assert set(re.findall(r"\$(\w+)", expression)) <= known, f"{name}: {where}: {expression}"
        if name != "tessera-fleet":
            assert any("/explore?" in link.get("url", "") for link in dashboard["links"]), name
    # Applying stores a copy of a document in an annotation, which may have 256 KiB.
    assert all(len(str(document)) < 250_000 for document in documents.values())
    without_logs = manifests.deploy(tessera, "dashboards", "--loki_url", "")
    assert set(documents) - set(without_logs) == {"ConfigMap/tessera-datasource-loki", "ConfigMap/tessera-alloy"}


def check_refusals(tessera):
    """One line that names the flag, for what would make no manifest, or another one."""
    for what, flag, value in [("alerts", "namespace", "Team A"), ("alerts", "release", "x\nkind: Pod"), ("alerts", "token_secret", "a/b"),
                              ("alerts", "runbook_url", "http://x\n- alert: y"), ("alerts", "memory_fraction", "nan"),
                              ("alerts", "memory_fraction", "-1"), ("dashboards", "monitoring_namespace", "x" * 64),
                              ("dashboards", "dashboard", "racks"), ("dashboards", "loki_url", "http://x\nfoo: bar")]:
        result = subprocess.run([tessera, "deploy", what, f"--{flag}={value}"], capture_output=True, text=True)
        assert result.returncode == 64 and not result.stdout, (flag, value, result)
        assert result.stderr.count("\n") == 1 and f"--{flag}:" in result.stderr, result.stderr


def main():
    tessera = sys.argv[1]
    check_refusals(tessera)
    check_dashboards(tessera)
    promtool = shutil.which("promtool")
    if not promtool:
        print("skipped: promtool is not installed; dashboards were checked")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        check_rules(tessera, promtool, pathlib.Path(folder))


if __name__ == "__main__":
    main()
