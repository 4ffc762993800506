"""Ends a test with 77 (skipped) and the reason where it cannot run."""
import os
import shutil
import sys


def require():
    try:
        import yaml  # noqa: F401
    except ImportError:
        skip("python3-yaml is not installed")
    if os.geteuid() != 0:
        skip("podman and mmdebstrap need root")
    for program in ("podman", "runc", "mmdebstrap", "ip"):
        if shutil.which(program) is None:
            skip(f"{program} is not installed")


def skip(reason):
    print(f"skipped: {reason} (scripts/install_packages.sh test)")
    sys.exit(77)
