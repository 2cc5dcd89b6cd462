"""The `penstock` command."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli import (
    bench,
    capture,
    consume,
    copy,
    demo,
    doctor,
    explain,
    failure,
    follow,
    forget,
    group,
    kafka,
    late,
    produce,
    queue,
    rebuild,
    run,
    search,
    serve,
    sourcing,
    subscribe,
    token,
    top,
    topic,
    upkeep,
    verify,
    view,
)
from penstock.cli.session import AsJson, Home, Session
from penstock.errors import PenstockError

_FILES_MAX = 65_536
_ORDER = (
    "topic", "produce", "consume", "group", "queue", "capture", "sourcing", "follow", "run", "view",
    "subscribe", "search", "late", "verify", "rebuild", "explain", "forget", "top", "serve", "token",
    "kafka", "copy", "doctor", "bench", "demo",
)  # fmt: skip


class Root(TyperGroup):
    """Turns whatever a command raises into a message and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=_ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            _flush_if_read()
            raise
        except BrokenPipeError:
            raise typer.Exit(_reader_left()) from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        session = Session()
        try:
            code = super().main(given, prog_name, complete_var, standalone_mode=False, obj=session, **extra)
        except (PenstockError, OSError) as error:
            failure.report(error, as_json=session.json)
            code = failure.exit_code_of(error)
        except typer.Abort:
            code = failure.INTERRUPTED
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            code = _usage(error, as_json="--json" in given)
        sys.exit(code if isinstance(code, int) else failure.DONE)


def _reader_left() -> int:
    """Whoever read our output has seen enough, as `head` does; that is no failure."""
    # Python flushes stdout once more at exit, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return failure.DONE


def _flush_if_read() -> None:
    """Ctrl-C reaches everybody in a pipe: that its reader is gone must not change our exit code."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _reader_left()


def _usage(error: Any, *, as_json: bool) -> int:
    """A wrong option or command. Typer's own exceptions have no public base class."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        return failure.BAD_INPUT
    ctx = getattr(error, "ctx", None)
    command = ctx.command_path if ctx else "penstock"
    message = error.format_message()
    failure.report(Usage(message, hint=f"see: {command} --help"), as_json=as_json)
    return int(error.exit_code)


class Usage(PenstockError):
    """The command line itself was wrong."""


app = typer.Typer(
    name="penstock",
    cls=Root,
    help="Event streams in Python: a durable, typed, partitioned event log, embedded in your program.",
    epilog=failure.EXIT_CODES,
    no_args_is_help=True,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # plain help takes 60 ms, rich help 200 ms
    pretty_exceptions_enable=False,
)
topic.app.command("compact")(upkeep.compact)
topic.app.command("archive")(upkeep.archive)
app.add_typer(topic.app, name="topic")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(group.app, name="group")
app.add_typer(queue.app, name="queue")
app.add_typer(capture.app, name="capture")
app.add_typer(sourcing.app, name="sourcing")
app.command("follow")(follow.follow)
app.command("run")(run.run)
app.command("view")(view.view)
app.command("subscribe")(subscribe.subscribe)
app.command("search")(search.search)
app.command("late")(late.late)
app.command("verify")(verify.verify)
app.command("rebuild")(rebuild.rebuild)
app.command("explain")(explain.explain)
app.command("forget")(forget.forget)
app.command("top")(top.top)
app.command("serve")(serve.serve)
app.add_typer(token.app, name="token")
app.add_typer(kafka.app, name="kafka")
app.command("copy")(copy.copy)
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)
app.command("demo")(demo.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        import penstock

        print(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    home: Home = None,
    as_json: AsJson = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    Session.of(ctx, home, as_json)


def main() -> None:
    _allow_files()
    app(prog_name="penstock")


def _allow_files() -> None:
    """A topic has some files open, and a database many tables: the 1,024 to begin with are soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # then a file too many is told as before
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
