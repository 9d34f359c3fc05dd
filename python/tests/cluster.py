"""A Spark cluster of this machine: a master and two workers, processes of their own.

In: PySpark from PyPI and a Java. Out: the cluster's address, and after `with` no process. Not here: what is asked.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

CORES, MEMORY = "1", "1g"


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


@contextlib.contextmanager
def cluster(logs, workers=2):
    """Starts the cluster, with its logs in that folder, and yields its address."""
    import pyspark

    home = Path(pyspark.__file__).parent
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    running = []

    def start(name, *words):
        log = open(Path(logs) / f"{name}.log", "w")
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{words[0]}", *words[1:]]
        # A process group of its own, since spark-class starts Java.
        running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))

    try:
        start("master", "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        for number in range(workers):
            start(f"worker{number}", "worker.Worker", address, "--host", "127.0.0.1", "--cores", CORES, "--memory", MEMORY, "--webui-port", "0")
        registered(Path(logs) / "master.log", workers, running)
        os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
        yield address
    finally:
        for process in reversed(running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
        for process in running:
            process.wait(30)


def registered(log, workers, running):
    until = time.monotonic() + 600
    while time.monotonic() < until:
        if log.read_text().count("Registering worker") >= workers:
            return
        ended = [process.args for process in running if process.poll() is not None]
        if ended:
            break
        time.sleep(0.5)
    raise RuntimeError(f"the cluster did not start: {log.read_text()[-2000:]}")


def session(address, name):
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(address)
        .appName(name)
        .config("spark.executor.memory", "512m")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        # Snappy's own library takes a machine with musl beside glibc for one without glibc.
        .config("spark.executor.extraJavaOptions", "-Dorg.xerial.snappy.purejava=true")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
