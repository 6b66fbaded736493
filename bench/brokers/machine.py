"""The machine that a bench runs on, and the programs that it builds there."""

import os
import pathlib
import platform
import re
import resource
import subprocess

from brokers.suts import ROOT


def build(packages, examples):
    """Builds programs as they are shipped, then the examples that make the load. Returns the folder."""
    packages = [argument for name in packages for argument in ("-p", name)]
    examples = [argument for name in examples for argument in ("--example", name)]
    for packages in (packages, ["-p", "mq-criterion", *examples]):
        subprocess.run(["cargo", "build", "--release", "--locked", "-q", *packages], cwd=ROOT, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"


def raise_descriptors():
    """As many descriptors as this process, and those that it starts, may have."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def memory(key):
    """A line of /proc/meminfo in bytes."""
    text = pathlib.Path("/proc/meminfo").read_text()
    return int(re.search(rf"^{key}:\s+(\d+) kB$", text, re.M)[1]) * 1024


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    governor = pathlib.Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "cpu": model[0] if model else platform.machine(),
        "processors": os.cpu_count(), "usable": len(os.sched_getaffinity(0)),
        "governor": governor.read_text().strip() if governor.exists() else "unknown",
        "kernel": f"{platform.system()} {platform.release()}", "memory_bytes": memory("MemTotal"),
        "load_average": os.getloadavg(),
        "revision": subprocess.run(["git", "describe", "--always", "--dirty", "--tags"], cwd=ROOT, text=True, check=False,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip() or "unknown",
    }


def machine_line(host):
    return (f"{host['cpu']}, {host['usable']} of {host['processors']} processors, governor {host['governor']}, "
            f"{host['memory_bytes'] / 1e9:.1f} GB, {host['kernel']}, revision {host['revision']}")


def loads():
    return ", ".join(f"{load:.2f}" for load in os.getloadavg())
