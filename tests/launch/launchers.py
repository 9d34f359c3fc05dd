"""The real launchers of jobs, from Debian, unpacked into a folder: nothing is installed on this machine.

In: a folder, apt. Out: for each launcher its programs and the environment that they need; a Slurm of two nodes on this
machine, for as long as it is wanted. Not here: jobs and their traces (matrix.py).
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time

# What is unpacked, besides what Debian says that it needs and this machine lacks.
PACKAGES = {
    "torchrun": ["python3-torch"],
    "mpirun": ["openmpi-bin"],
    "srun": ["slurmctld", "slurmd", "slurm-client", "libmunge2", "libhwloc15", "libjson-c5", "liblua5.1-0", "libyaml-0-2"],
}
# The folders of libraries below usr/lib.
LIBRARIES = ["", "x86_64-linux-gnu", "x86_64-linux-gnu/blas", "x86_64-linux-gnu/lapack", "x86_64-linux-gnu/slurm-wlm"]

SLURM_CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
PluginDir={usr}/lib/x86_64-linux-gnu/slurm-wlm
SlurmUser=root
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool-%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd-%n.pid
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=a NodeHostname={host} NodeAddr=127.0.0.1 Port={port_a} CPUs=2
NodeName=b NodeHostname={host} NodeAddr=127.0.0.1 Port={port_b} CPUs=2
PartitionName=p Nodes=a,b Default=YES MaxTime=INFINITE State=UP
"""


def missing(packages):
    """The packages, with those that they need and this machine does not have."""
    plan = subprocess.run(
        ["apt-get", "install", "-s", "--no-install-recommends", *packages], check=True, capture_output=True, text=True
    )
    needed = [line.split()[1] for line in plan.stdout.splitlines() if line.startswith("Inst ")]
    return sorted({*needed, *packages})


def unpacked(folder, name):
    """The usr folder of a launcher, fetched unless it is there."""
    root = os.path.join(folder, name)
    usr = os.path.join(root, "usr")
    if os.path.exists(os.path.join(root, "whole")):
        return usr
    debs = os.path.join(root, "debs")
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(debs)
    subprocess.run(["apt-get", "download", "-qq", *missing(PACKAGES[name])], check=True, cwd=debs)
    for deb in os.listdir(debs):
        subprocess.run(["dpkg", "-x", os.path.join(debs, deb), root], check=True)
    shutil.rmtree(debs)
    open(os.path.join(root, "whole"), "w").close()
    return usr


def environment(usr):
    """That of this process, with the launcher's own programs, libraries and Python packages."""
    folders = [os.path.join(usr, "lib", folder) for folder in LIBRARIES]
    folders = [folder for folder in folders if os.path.isdir(folder)]
    return {
        **os.environ,
        "PATH": ":".join([os.path.join(usr, "bin"), os.path.join(usr, "sbin"), os.environ["PATH"]]),
        "LD_LIBRARY_PATH": ":".join(folders),
        "PYTHONPATH": os.path.join(usr, "lib/python3/dist-packages"),
        "OPAL_PREFIX": usr,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def free_ports(count):
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def slurm(usr, run):
    """A controller and two nodes; gives the environment with which srun finds them."""
    port, port_a, port_b = free_ports(3)
    os.makedirs(os.path.join(run, "state"))
    conf = os.path.join(run, "slurm.conf")
    host = socket.gethostname().split(".")[0]
    with open(conf, "w") as out:
        out.write(SLURM_CONF.format(host=host, usr=usr, run=run, port=port, port_a=port_a, port_b=port_b))
    env = {**environment(usr), "SLURM_CONF": conf}
    stepd = os.path.join(usr, "sbin/slurmstepd-wlm")
    daemons = [["slurmctld-wlm", "-D", "-c", "-f", conf]]
    daemons += [["slurmd-wlm", "-D", "-N", node, "-f", conf, "-d", stepd] for node in "ab"]
    with contextlib.ExitStack() as running:
        for number, words in enumerate(daemons):
            log = running.enter_context(open(os.path.join(run, f"daemon-{number}.log"), "w"))
            words = [os.path.join(usr, "sbin", words[0]), *words[1:]]
            daemon = subprocess.Popen(words, env=env, stdout=log, stderr=log, start_new_session=True)
            running.callback(daemon.wait)
            running.callback(daemon.terminate)
        for _ in range(300):
            nodes = subprocess.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], env=env, capture_output=True, text=True)
            if nodes.stdout.strip() == "2":
                break
            time.sleep(0.2)
        else:
            raise RuntimeError(f"Slurm's two nodes are not ready; {run} has the logs of its daemons")
        yield env
