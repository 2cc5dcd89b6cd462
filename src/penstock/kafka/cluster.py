"""A real Kafka on this machine: brokers in KRaft mode out of the published jars, for development and tests.

Everything is in one folder: `cluster.json` (ports and process ids), and for each node its settings, its data
and what it printed. Brokers go on when the program that started them ends.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BadOption, StorageError
from penstock.kafka import jars

_HOST = "127.0.0.1"
_PORT = 9092
_UP_S = 120.0
_DOWN_S = 60.0
_LOOK_S = 0.1
_MAIN = "kafka.Kafka"
_JVM = ("-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_BROKERS_MAX = 9


@dataclass(frozen=True, slots=True)
class Node:
    """One broker, which is a controller too."""

    number: int
    port: int
    controller_port: int
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class State:
    """What `cluster.json` says."""

    id: str
    nodes: tuple[Node, ...]

    @property
    def url(self) -> str:
        return "kafka://" + ",".join(f"{_HOST}:{node.port}" for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The brokers whose files are under `folder`."""

    folder: Path

    def up(self, *, brokers: int = 1, port: int = _PORT) -> State:
        """Start the brokers that do not run, and wait for them. Another port where `port` is taken."""
        if not 1 <= brokers <= _BROKERS_MAX:
            raise BadOption(f"{brokers} brokers.", hint=f"choose 1 to {_BROKERS_MAX}")
        state = self.state()
        if state is None:
            state = self.create(brokers=brokers, port=port)
        elif len(state.nodes) != brokers:
            raise BadOption(
                f"the Kafka under {self.folder} has {len(state.nodes)} brokers, not {brokers}.",
                hint="remove it first: penstock kafka down --delete",
            )
        libraries = jars.folder_of(jars.BROKER)
        for node in state.nodes:
            if not self.runs(node):
                state = self._with(state, self._start(node, libraries))
        self._wait(state)
        return state

    def down(self, *, delete: bool = False) -> bool:
        """Stop them; with `delete` their records go too. False if there is no cluster."""
        state = self.state()
        if state is None:
            return False
        running = [node for node in state.nodes if self.runs(node)]
        for node in running:
            self.kill(node, signal.SIGTERM)
        deadline = time.monotonic() + _DOWN_S
        for node in running:
            while self.runs(node):
                if time.monotonic() > deadline:
                    self.kill(node, signal.SIGKILL)
                time.sleep(_LOOK_S)
        if delete:
            shutil.rmtree(self.folder)
        else:
            for node in state.nodes:
                state = self._with(state, Node(node.number, node.port, node.controller_port))
        return True

    def state(self) -> State | None:
        try:
            stored = json.loads((self.folder / "cluster.json").read_text())
        except FileNotFoundError:
            return None
        return State(stored["id"], tuple(Node(**node) for node in stored["nodes"]))

    def runs(self, node: Node) -> bool:
        """Whether its process is there, and is not somebody else's with the same number."""
        if node.pid is None:
            return False
        with contextlib.suppress(ChildProcessError, OSError):
            os.waitpid(node.pid, os.WNOHANG)  # one of ours that has ended
        try:
            command = Path(f"/proc/{node.pid}/cmdline").read_bytes()
        except OSError:
            return False
        return str(self._place(node)).encode() in command

    def kill(self, node: Node, number: int = signal.SIGKILL) -> None:
        if node.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.pid, number)

    def start(self, number: int) -> State:
        """One broker alone, as it was before it was killed."""
        state = self.state()
        assert state is not None
        (node,) = (node for node in state.nodes if node.number == number)
        state = self._with(state, self._start(node, jars.folder_of(jars.BROKER)))
        self._wait(state)
        return state

    # ---- starting -------------------------------------------------------------------------------

    def create(self, *, brokers: int = 1, port: int = _PORT) -> State:
        """Set brokers up without starting them: `server.properties` of each may still be added to."""
        libraries = jars.folder_of(jars.BROKER)
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = list(_free_ports(2 * brokers, port))
        nodes = tuple(Node(n + 1, ports[n], ports[brokers + n]) for n in range(brokers))
        state = State(_cluster_id(), nodes)
        formatting = [self._format(node, state, libraries) for node in nodes]
        for process, node in zip(formatting, nodes, strict=True):
            said, _ = process.communicate()
            if process.returncode:
                raise StorageError(
                    f"broker {node.number} could not be set up: {_last_line(said)}.",
                    hint=f"remove {self.folder} and try again",
                )
        self._store(state)
        return state

    def _format(self, node: Node, state: State, libraries: Path) -> subprocess.Popen[str]:
        place = self._place(node)
        place.mkdir(parents=True, exist_ok=True)
        properties = self.properties(node)
        wanted = _properties(node, state.nodes, place / "data")
        properties.write_text("".join(f"{name}={value}\n" for name, value in wanted.items()))
        command = [
            jars.java(), *_JVM, "-cp", f"{libraries}/*", "kafka.tools.StorageTool",
            "format", "-t", state.id, "-c", str(properties),
        ]  # fmt: skip
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def _start(self, node: Node, libraries: Path) -> Node:
        place = self._place(node)
        command = [
            jars.java(), *_JVM, "-cp", f"{libraries}/*", _MAIN, str(self.properties(node)),
        ]  # fmt: skip
        with (place / "server.log").open("ab") as printed:
            # Not a Popen: the broker outlives the program that started it.
            pid = os.posix_spawn(
                command[0], command, os.environ, setsid=True,
                file_actions=[(os.POSIX_SPAWN_DUP2, printed.fileno(), number) for number in (1, 2)],
            )  # fmt: skip
        return Node(node.number, node.port, node.controller_port, pid)

    def _wait(self, state: State) -> None:
        """Until every broker is in the cluster."""
        from confluent_kafka.admin import AdminClient

        from penstock.kafka.address import Address

        admin = AdminClient(Address.parse(state.url).client())
        deadline = time.monotonic() + _UP_S
        while not _has_all(admin, state):
            for node in state.nodes:
                if not self.runs(node):
                    printed = (self._place(node) / "server.log").read_text(errors="replace")
                    raise StorageError(
                        f"broker {node.number} ended while it was starting: {_last_line(printed)}.",
                        hint=f"see {self._place(node) / 'server.log'}",
                    )
            if time.monotonic() > deadline:
                raise StorageError(
                    f"the brokers did not answer within {_UP_S:g} s.", hint=f"see the logs in {self.folder}"
                )
            time.sleep(_LOOK_S)

    def properties(self, node: Node) -> Path:
        return self._place(node) / "server.properties"

    def _place(self, node: Node) -> Path:
        return (self.folder / f"broker-{node.number}").absolute()

    def _with(self, state: State, changed: Node) -> State:
        nodes = (changed if node.number == changed.number else node for node in state.nodes)
        state = State(state.id, tuple(nodes))
        self._store(state)
        return state

    def _store(self, state: State) -> None:
        stored = {"id": state.id, "nodes": [asdict(node) for node in state.nodes]}
        path = self.folder / "cluster.json"
        (path.with_suffix(".new")).write_text(json.dumps(stored, indent=1))
        (path.with_suffix(".new")).rename(path)


def _has_all(admin: Any, state: State) -> bool:
    from confluent_kafka import KafkaException

    try:
        found = admin.list_topics(timeout=2.0).brokers
    except KafkaException:
        return False
    return len(found) == len(state.nodes)


def _properties(node: Node, nodes: Sequence[Node], data: Path) -> dict[str, str]:
    copies = min(3, len(nodes))
    in_sync = 2 if copies == 3 else 1
    voters = ",".join(f"{each.number}@{_HOST}:{each.controller_port}" for each in nodes)
    listeners = f"PLAINTEXT://{_HOST}:{node.port}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.number),
        "controller.quorum.voters": voters,
        "listeners": f"{listeners},CONTROLLER://{_HOST}:{node.controller_port}",
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(copies),
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(in_sync),
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        # What is sensible for many clients makes one developer wait.
        "group.initial.rebalance.delay.ms": "0",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "broker.session.timeout.ms": "6000",
    }


def _cluster_id() -> str:
    while True:
        found = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not found.startswith("-"):  # which would be an option
            return found


def _free_ports(number: int, first: int) -> Iterator[int]:
    """`first` where it is free, and others that are; held until all are known, so that none comes twice."""
    with contextlib.ExitStack() as stack:
        for at in range(number):
            taken = stack.enter_context(socket.socket())
            try:
                taken.bind((_HOST, first if at == 0 else 0))
            except OSError:
                taken.bind((_HOST, 0))
            yield taken.getsockname()[1]


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    return lines[-1].strip().rstrip(".") if lines else "it said nothing"
