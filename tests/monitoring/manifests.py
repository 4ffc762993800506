"""For tests: what `tessera deploy` writes for Prometheus and Grafana, and the expressions in it."""
import json, re, subprocess, sys

try:
    import yaml
except ImportError:
    print("skipped: python3-yaml is not installed")
    sys.exit(77)


def deploy(tessera, what, *flags):
    """The documents by kind and name."""
    text = subprocess.run([tessera, "deploy", what, *flags], check=True, capture_output=True, text=True).stdout
    return {f"{d['kind']}/{d['metadata']['name']}": d for d in yaml.safe_load_all(text)}


def rule_groups(documents):
    return documents["PrometheusRule/tessera"]["spec"]["groups"]


def dashboards(documents):
    """The dashboards by name."""
    found = {}
    for document in documents.values():
        if document["metadata"]["labels"].get("grafana_dashboard") == "1":
            for file, text in document["data"].items():
                found[file.removesuffix(".json")] = json.loads(text)
    return found


def queries(dashboard):
    """(where, expression) of everything that Prometheus answers, Grafana's variables as they are."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            selector = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"]).group(1)
            yield f"variable {variable['name']}", selector
    for mark in dashboard["annotations"]["list"]:
        yield f"annotation {mark['name']}", mark["expr"]
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            if target["datasource"]["type"] == "prometheus":
                yield panel["title"], target["expr"]
