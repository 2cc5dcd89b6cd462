"""How a command fails: what is printed, and the exit code."""

from __future__ import annotations

import json
import sys

from penstock import errors
from penstock.errors import PenstockError, as_object

DONE, NO, BAD_INPUT, CONTENDED, STORAGE, INTERRUPTED = 0, 1, 2, 3, 4, 130

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.BadInput, BAD_INPUT),
    (errors.OffsetOutOfRange, BAD_INPUT),
    (errors.Contended, CONTENDED),
    (errors.Fenced, CONTENDED),
    (errors.StorageError, STORAGE),
    (errors.NotAllowed, STORAGE),
    (errors.Damaged, STORAGE),
    (errors.SealBroken, STORAGE),
    (OSError, STORAGE),
)

EXIT_CODES = """\b
Exit codes:
  0    done
  1    the answer is no, or something was found wrong
  2    bad input or usage
  3    somebody else has it now; try again
  4    the disk or a server refused, or stored bytes are damaged
  130  interrupted"""


def exit_code_of(error: BaseException) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), NO)


def report(error: PenstockError | OSError, *, as_json: bool) -> None:
    """Say on stderr what went wrong and what to do."""
    if isinstance(error, OSError):
        error = _of_the_system(error)
    say(error.message, error.hint)
    if as_json:
        print(json.dumps({"error": as_object(error)}, ensure_ascii=False), file=sys.stderr)


def say(message: str, hint: str = "") -> None:
    """The two lines of an error, in colour where there is somebody to see it."""
    from penstock.cli import output

    console = output.console(stderr=True)
    console.print(f"[bold red]error:[/] {output.escape(message)}")
    if hint:
        console.print(f"[cyan]hint:[/] {output.escape(hint)}")


def _of_the_system(error: OSError) -> PenstockError:
    where = f"{error.filename}: " if error.filename else ""
    hint = "check the path and its permissions"
    if isinstance(error, TimeoutError):
        hint = "something took too long; try again when this machine has less to do"
    return errors.StorageError(f"{where}{error.strerror or error}.", hint=hint)
