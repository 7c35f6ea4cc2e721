"""One sleeping job: OUTPUT SECONDS_GPU,SECONDS_CPU FAULT NAME."""

import os
import sys
import time
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.runtime.cause import cause_line

output, seconds, fault, name = sys.argv[1:]
device = os.environ.get("TILEWRIGHT_DEVICE") or ("gpu" if "SLURM_JOB_GPUS" in os.environ else "cpu")
gpu_s, cpu_s = map(float, seconds.split(","))
traces = Path("traces")
traces.mkdir(exist_ok=True)
tries = len(list(traces.glob(f"{name}.*")))
(traces / f"{name}.{tries}").write_text(f"{device} {os.environ['SLURMD_NODENAME']}\n")
if fault == "memory":
    hoard = b"x" * 400_000_000  # more than the first try has, less than the second
    time.sleep(2)
if fault == "code":
    sys.exit("ValueError: the same mistake every time")
if fault == "once" and not tries:
    sys.exit("OSError: once only")
if fault == "device" and device == "gpu":
    node = os.environ["SLURMD_NODENAME"]
    sys.exit(cause_line("device", f"DeviceError: CUDA does not initialise on {node}"))
if fault == "long" and not tries:
    time.sleep(600)
while fault == "wait" and not Path("go").exists():
    time.sleep(0.2)
time.sleep(gpu_s if device == "gpu" else cpu_s)
temporary = Path(f"{output}.{os.getpid()}")
temporary.write_text(f"{name}\n" * 1000)
with Path("writes.txt").open("a") as log:
    log.write(f"{name}\n")
temporary.replace(output)
