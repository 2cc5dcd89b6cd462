"""The process that runs Debezium: `python -m penstock.capture.debezium_child`, spoken to in JSON lines.

in     {"properties", "offsets", "history", "folder", "memory_mb"}, once, and then
       {"stored": n}: everything up to batch n is in the log        {"stop": true}
out    {"schema": n, "topic", "value", "key"}: a form of events, told before the first event of it
       {"batch": n, "history", "events": [[schema, key, value, partition, offset], …]}
       {"streaming": bool, "captured": […], "idle_s": s}: several times a second while no event is under way
       {"failed": why}: nothing comes after it

A JVM of its own: one that hangs or dies takes nobody with it. It ends when its parent does, however that
ends: then nobody holds the other end of its stdin.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

_LOOK_S = 0.2
_CLOSE_S = 8.0
_REMOVE_TRIES = 50
NAME = "penstock"
HEARTBEAT = "__debezium-heartbeat"
HISTORY_FILE = "history.dat"
OFFSETS_FILE = "offsets.dat"


class Out:
    """Lines to the parent, whole, from any thread."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._mutex = stream, threading.Lock()

    def line(self, text: str) -> None:
        with self._mutex:
            self._stream.write(text.encode("utf-8", "surrogatepass") + b"\n")
            self._stream.flush()

    def tell(self, **told: Any) -> None:
        self.line(json.dumps(told))


class Forwarder:
    """Debezium's events to the parent; what the parent has stored, back to Debezium."""

    def __init__(self, out: Out, history: Path) -> None:
        from jpype import JClass

        self._out, self._history = out, history
        self._json = JClass("org.apache.kafka.connect.json.JsonConverter")()
        self._json.configure(JClass("java.util.Map").of("schemas.enable", "false"), False)
        self._mapper = JClass("com.fasterxml.jackson.databind.ObjectMapper")()
        self._schemas: dict[tuple[str, int, int], int] = {}
        self._kept: list[Any] = []  # schemas by number, so that none gets the identity of another
        self.batches = 0
        # Of each batch that is not yet stored, the last record of each partition.
        self._open: dict[int, dict[str, Any]] = {}
        self._history_told = ""
        self._offsets: dict[str, str] = {}
        self.stored = 0
        self.busy = False
        self.last_event = time.monotonic()
        self._identity = JClass("java.lang.System").identityHashCode

    def batch(self, events: Any, committer: Any) -> None:
        self.busy = True
        self._mark(committer)
        last: dict[str, Any] = {}
        lines = []
        for event in events:
            record = event.record()
            partition = self._text(record.sourcePartition())
            last[partition] = event
            topic, offset = str(record.topic()), self._text(record.sourceOffset())
            if self._is_news(topic, partition, offset):
                lines.append(f"[{self._message(topic, record)},{partition},{offset}]")
        self.batches += 1
        self._open[self.batches] = last
        if lines:
            self._tell(lines)
        self.busy = False

    def _tell(self, lines: list[str]) -> None:
        history = json.dumps(self._new_history())
        self._out.line(f'{{"batch":{self.batches},"history":{history},"events":[{",".join(lines)}]}}')
        self.last_event = time.monotonic()

    def _new_history(self) -> str | None:
        """The forms of tables that the connector has noted, where that is news."""
        text = self._history.read_text() if self._history.exists() else ""
        news, self._history_told = text != self._history_told, text
        return text if news else None

    def _is_news(self, topic: str, partition: str, offset: str) -> bool:
        """A heartbeat is none where nothing has moved."""
        moved, self._offsets[partition] = self._offsets.get(partition) != offset, offset
        return moved or not topic.startswith(HEARTBEAT)

    def _mark(self, committer: Any) -> None:
        """Debezium may tell its source to forget only what is in the log."""
        done = [number for number in self._open if number <= self.stored]
        for number in done:
            for event in self._open.pop(number).values():
                committer.markProcessed(event)
        if done:
            committer.markBatchFinished()

    def _message(self, topic: str, record: Any) -> str:
        schemas = record.valueSchema(), record.keySchema()
        key = self._encoded(topic, schemas[1], record.key())
        value = self._encoded(topic, schemas[0], record.value())
        return f"{self._schema(topic, *schemas)},{key},{value}"

    def _encoded(self, topic: str, schema: Any, value: Any) -> str:
        made = None if value is None else self._json.fromConnectData(topic, schema, value)
        return "null" if made is None else bytes(made).decode()

    def _schema(self, topic: str, value: Any, key: Any) -> int:
        place = (topic, self._identity(value), self._identity(key))
        number = self._schemas.get(place)
        if number is None:
            number = self._schemas[place] = len(self._kept)
            self._kept.append((value, key))
            told = f'"value":{self._described(value)},"key":{self._described(key)}'
            self._out.line(f'{{"schema":{number},"topic":{json.dumps(topic)},{told}}}')
        return number

    def _described(self, schema: Any) -> str:
        return "null" if schema is None else str(self._json.asJsonSchema(schema).toString())

    def _text(self, told: Any) -> str:
        return str(self._mapper.writeValueAsString(told))


def start_jvm(libs: Path, memory_mb: int, *, tells: str = "WARN") -> None:
    import jpype

    jpype.startJVM(
        f"-Xmx{memory_mb}m", "-XX:+UseSerialGC", "-Xrs", f"-Dorg.apache.logging.log4j.level={tells}",
        classpath=[str(jar) for jar in libs.glob("*.jar")],
    )  # fmt: skip


def write_offsets(path: Path, offsets: list[list[Any]]) -> None:
    """As Kafka Connect's store in a file has them: a Java map of JSON bytes."""
    from jpype import JArray, JByte, JClass

    stored = JClass("java.util.HashMap")()
    for partition, offset in offsets:
        key = json.dumps([NAME, partition], separators=(",", ":"))
        stored.put(*(JArray(JByte)(text.encode()) for text in (key, json.dumps(offset))))
    files = JClass("java.io.FileOutputStream")(str(path))
    out = JClass("java.io.ObjectOutputStream")(files)
    out.writeObject(stored)
    out.close()


def engine_of(properties: dict[str, str], forwarder: Forwarder, over: Any) -> Any:
    from jpype import JClass, JImplements, JOverride

    @JImplements("io.debezium.engine.DebeziumEngine$ChangeConsumer")
    class Consumer:
        @JOverride
        def handleBatch(self, events: Any, committer: Any) -> None:
            forwarder.batch(events, committer)

        @JOverride
        def supportsTombstoneEvents(self) -> bool:
            return False

    @JImplements("io.debezium.engine.DebeziumEngine$CompletionCallback")
    class Completion:
        @JOverride
        def handle(self, success: Any, message: Any, error: Any) -> None:
            over(bool(success), str(message), error)

    given = JClass("java.util.Properties")()
    for name, value in properties.items():
        given.setProperty(name, value)
    builder = JClass("io.debezium.engine.DebeziumEngine").create(
        JClass("io.debezium.engine.format.ChangeEventFormat").of(JClass("io.debezium.embedded.Connect"))
    )
    return builder.using(given).using(Completion()).notifying(Consumer()).build()


class Metrics:
    """What Debezium tells about itself by JMX, the same way for every connector."""

    def __init__(self) -> None:
        from jpype import JClass

        self._server = JClass("java.lang.management.ManagementFactory").getPlatformMBeanServer()
        self._pattern = JClass("javax.management.ObjectName")(
            "debezium.*:type=connector-metrics,context=streaming,*"
        )

    def read(self) -> tuple[bool, bool, list[str]]:
        """Whether it follows its source, whether nothing waits to be told, and the captured tables."""
        connected, empty, captured = False, True, set[str]()
        for name in self._server.queryNames(self._pattern, None):
            connected |= str(self._value(name, "Connected")).lower() == "true"
            empty &= str(self._value(name, "QueueRemainingCapacity")) == str(
                self._value(name, "QueueTotalCapacity")
            )
            captured |= {str(table) for table in self._value(name, "CapturedTables") or ()}
        return connected, empty, sorted(captured)

    def _value(self, name: Any, attribute: str) -> Any:
        from jpype import JException

        try:
            return self._server.getAttribute(name, attribute)
        except JException:
            return None  # this connector does not tell it


def watch(out: Out, forwarder: Forwarder) -> None:
    """Tell that nothing is under way, again and again."""
    metrics, since = Metrics(), time.monotonic()
    while True:
        time.sleep(_LOOK_S)
        batches = forwarder.batches
        connected, empty, captured = metrics.read()
        if not connected or not empty or forwarder.busy or forwarder.batches != batches:
            since = time.monotonic()
        idle_s = time.monotonic() - max(since, forwarder.last_event)
        if not forwarder.busy:
            out.tell(streaming=connected, captured=captured, idle_s=round(idle_s, 3))


def obey(lines: BinaryIO, forwarder: Forwarder, engine: Any) -> None:
    """Until the parent says stop, or is gone, however that went."""
    for line in lines:
        told = json.loads(line)
        forwarder.stored = max(forwarder.stored, told.get("stored", 0))
        if told.get("stop"):
            closing = threading.Thread(target=engine.close, daemon=True)
            closing.start()
            closing.join(_CLOSE_S)
            break


def reason_of(message: str, error: Any) -> str:
    """The innermost cause says what is wrong; those around it, where it was noticed."""
    parts = [message]
    while error is not None:
        parts.append(str(error.getMessage() or error.getClass().getName()))
        error = error.getCause()
    return " ".join(" / ".join(dict.fromkeys(parts)).split())


def remove(folder: Path) -> None:
    """A parent that was killed cannot. Not at once where the engine just writes there."""
    for _ in range(_REMOVE_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_LOOK_S / 10)


def main() -> None:
    out = Out(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # whatever else is printed goes to stderr
    lines = sys.stdin.buffer
    given = json.loads(lines.readline() or "null")
    if given is None:
        return  # the parent is gone already
    folder = Path(given["folder"])
    os.chdir(folder)
    try:
        start_jvm(Path(given["libs"]), given["memory_mb"])
    except Exception as error:
        out.tell(failed=f"the JVM does not start: {error}", kind="jvm")
        os._exit(1)
    write_offsets(folder / OFFSETS_FILE, given["offsets"])
    if given["history"]:
        (folder / HISTORY_FILE).write_text(given["history"])
    forwarder = Forwarder(out, folder / HISTORY_FILE)

    def over(success: bool, message: str, error: Any) -> None:
        out.tell(failed="" if success else reason_of(message, error), kind="engine")

    engine = engine_of(given["properties"], forwarder, over)
    threading.Thread(target=engine.run, daemon=True).start()
    threading.Thread(target=watch, args=(out, forwarder), daemon=True).start()
    obey(lines, forwarder, engine)
    remove(folder)
    os._exit(0)  # threads of the JVM would keep this process


if __name__ == "__main__":
    main()
