#!/usr/bin/env python3
"""What the releases of controllers install, for controllers that are processes beside the API server.

localize.py manifests CA PORT: reads YAML; webhooks, also those that convert between versions, become addresses on 127.0.0.1:PORT
with the authority CA. The pods of controllers, their Services and aggregated APIs are left out.
localize.py config FILE PORT CERTIFICATES: a controller's configuration, or the one inside the values of Kueue's chart, with the ports PORT
(webhooks), PORT + 1 (health) and PORT + 2 (metrics) and the certificates of that folder."""
import base64
import sys

import yaml

PODS_AND_SERVICES = {"Deployment", "Service", "APIService", "ServiceMonitor"}


def point_webhooks(value, port, authority):
    if isinstance(value, dict):
        client = value.get("clientConfig")
        if isinstance(client, dict) and "service" in client:
            path = client["service"].get("path", "/")
            value["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        point_webhooks(each, port, authority)


def manifests(ca, port):
    with open(ca, "rb") as file:
        authority = base64.b64encode(file.read()).decode()
    documents = [each for each in yaml.load_all(sys.stdin, Loader=yaml.CSafeLoader) if each and each["kind"] not in PODS_AND_SERVICES]
    point_webhooks(documents, port, authority)
    yaml.dump_all(documents, sys.stdout, Dumper=yaml.CSafeDumper)


def config(path, port, certificates):
    with open(path, encoding="utf-8") as file:
        settings = yaml.safe_load(file)
    if "managerConfig" in settings:
        settings = yaml.safe_load(settings["managerConfig"]["controllerManagerConfigYaml"])
    port = int(port)
    for section, key, value in (("webhook", "port", port), ("health", "healthProbeBindAddress", f":{port + 1}"),
                                ("metrics", "bindAddress", f":{port + 2}"), ("leaderElection", "leaderElect", False)):
        settings.setdefault(section, {})[key] = value
    if settings["apiVersion"].startswith("config.trainer"):
        settings["certManagement"] = {"enable": False}
        if "statusServer" in settings:
            settings["statusServer"]["port"] = port + 3
    else:
        settings["webhook"]["certDir"] = certificates
        settings["internalCertManagement"] = {"enable": False}
    if settings["apiVersion"].startswith("config.jobset"):
        settings["metrics"]["certDir"] = certificates
    yaml.safe_dump(settings, sys.stdout)


{"manifests": manifests, "config": config}[sys.argv[1]](*sys.argv[2:])
