"""`penstock sourcing`: as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import Command, error_of
from tests.sourcing.carts import Cart
from tests.waiting import wait_until

from penstock.app.aggregates import AppAggregates
from penstock.app.loading import load

APP = """
import penstock as ps
from tests.sourcing.carts import Cart

app = ps.App("shop")
carts = app.aggregates("carts", Cart)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "cart_app.py"
    made.write_text(APP)
    return made


@pytest.fixture
def carts(file: Path, home: Path) -> Iterator[AppAggregates[Cart]]:
    app = load(str(file), home=home).app
    carts = app.sourced["carts"]
    cart = carts.get("7", by="ann")
    cart.add("apple", 2)
    cart.add("pear")
    carts.get("7", by="bob").remove("apple")
    carts["8"].add("plum")
    yield carts
    app.close()


Carts = AppAggregates[Cart]


def test_the_state_of_an_aggregate_now_and_before(cli: Command, file: Path, carts: Carts) -> None:
    now = cli.json("sourcing", "state", file, "7")
    assert (now["version"], now["state"]) == (3, {"items": {"pear": 1}, "open": True})
    before = cli.json("sourcing", "state", file, "7", "--version", 2)
    assert before["state"]["items"] == {"apple": 2, "pear": 1}
    first = carts.history("7")[0].at
    as_of = cli.json("sourcing", "state", file, "7", "--as-of", first.isoformat())
    assert (as_of["version"], as_of["state"]["items"]) == (1, {"apple": 2})
    assert "pear" in cli("sourcing", "state", file, "7").stdout


def test_the_audit_trail_says_who_did_what_and_when(cli: Command, file: Path, carts: Carts) -> None:
    entries = cli.json("sourcing", "audit", file, "7")["entries"]
    assert [(each["version"], each["by"], each["event"], each["data"]) for each in entries] == [
        (1, "ann", "ItemAdded", {"item": "apple", "quantity": 2}),
        (2, "ann", "ItemAdded", {"item": "pear", "quantity": 1}),
        (3, "bob", "ItemRemoved", {"item": "apple"}),
    ]
    recorded = carts.history("7")
    assert [each["command_id"] for each in entries] == [entry.command_id for entry in recorded]
    shown = cli("sourcing", "audit", file, "7").stdout
    assert "bob" in shown and "item apple, quantity 2" in shown


def test_aggregates_are_listed_and_shown(cli: Command, file: Path, carts: Carts) -> None:
    listed = cli.json("sourcing", "list", file)
    assert listed["aggregates"] == [{"id": "7", "version": 3}, {"id": "8", "version": 1}]
    assert cli.json("sourcing", "list", file, "--limit", 1)["more"]
    (shown,) = cli.json("sourcing", "show", file)["sourced"]
    assert (shown["name"], shown["class"], shown["aggregates"]) == ("carts", "Cart", 2)
    assert (shown["recorded"], shown["published"]) == (4, 0)
    assert [event["event"] for event in shown["events"]] == ["ItemAdded", "ItemRemoved", "CheckedOut"]
    assert "all but 4" in cli("sourcing", "show", file).stdout


def test_events_are_published_once(cli: Command, file: Path, carts: Carts) -> None:
    for _ in range(2):
        done = cli.json("sourcing", "publish", file, "--once")
        assert done == {"aggregates": "carts", "recorded": 4, "published": 4, "last_error": None}
    lines = cli.lines("consume", "carts")
    assert [line["value"]["event"] for line in lines] == [
        "ItemAdded",
        "ItemAdded",
        "ItemRemoved",
        "ItemAdded",
    ]


def test_ctrl_c_ends_publishing_well(cli: Command, file: Path, carts: Carts) -> None:
    with cli.start("sourcing", "publish", file, "--json") as process:
        receipt = carts["9"].add("apple")
        assert carts.position_of(receipt, timeout_s=60) is not None
        process.send_signal(2)
        assert process.wait(60) == 0
        assert process.stdout is not None
        assert json.loads(process.stdout.read().splitlines()[-1])["published"] == 5


def test_what_is_not_there_is_told(cli: Command, file: Path, carts: Carts, tmp_path: Path) -> None:
    unknown = cli("sourcing", "audit", file, "99", "--json")
    assert (unknown.exit_code, error_of(unknown)["type"]) == (2, "UnknownAggregate")
    version = cli("sourcing", "state", file, "7", "--version", 9, "--json")
    assert (version.exit_code, error_of(version)["newest"]) == (2, 3)
    early = cli("sourcing", "state", file, "7", "--as-of", "2001-01-01T00:00Z", "--json")
    assert (early.exit_code, error_of(early)["type"]) == (2, "UnknownAggregate")
    name = cli("sourcing", "list", file, "--name", "cats")
    assert (name.exit_code, "carts" in name.stderr) == (2, True)
    none = tmp_path / "none.py"
    none.write_text('import penstock as ps\napp = ps.App("none")\n')
    assert cli("sourcing", "show", none).exit_code == 2


def test_what_is_personal_is_shown_only_to_who_asks_for_it(cli: Command, tmp_path: Path, home: Path) -> None:
    file = tmp_path / "club.py"
    file.write_text(
        "import penstock as ps\nfrom tests.sourcing.test_personal import Customer\n"
        'app = ps.App("club")\ncustomers = app.aggregates("customers", Customer, snapshot_every=2)\n'
    )
    app = load(str(file), home=home).app
    customer = app.sourced["customers"]["c17"]
    customer.register("ann@example.org")
    customer.visit("/")  # with a snapshot
    for command in (("show", file), ("list", file), ("state", file, "c17"), ("audit", file, "c17"),
                    ("state", file, "c17", "--version", 1)):  # fmt: skip
        for form in ((), ("--json",)):
            shown = cli("sourcing", *command, *form)
            assert shown.exit_code == 0
            assert "ann@" not in shown.output
    data = cli.json("sourcing", "audit", file, "c17")["entries"][0]["data"]
    assert data["plan"] == "free"
    assert data["email"].startswith("personal:r1:")
    assert "email (sealed), plan free" in cli("sourcing", "audit", file, "c17").stdout
    assert cli.json("sourcing", "state", file, "c17")["state"] == {"email": None, "plan": "free", "visits": 1}
    assert "--reveal: email" in cli("sourcing", "state", file, "c17").stderr

    revealed = cli.json("sourcing", "audit", file, "c17", "--reveal")
    assert (revealed["revealed"], revealed["entries"][0]["data"]["email"]) == (True, "ann@example.org")
    assert cli.json("sourcing", "state", file, "c17", "--reveal")["state"]["email"] == "ann@example.org"
    app.forget("c17")
    app.close()
    assert cli.json("sourcing", "audit", file, "c17", "--reveal")["entries"][0]["data"]["email"] is None


def test_run_publishes_besides(cli: Command, file: Path, carts: Carts) -> None:
    """An app of aggregates alone needs no Spark."""
    assert cli("run", file, "--once").exit_code == 0
    assert len(cli.lines("consume", "carts")) == 4


_VIEW = """

@app.view(key="aggregate_id")
def events_of():
    return ps.aggregate(carts.stream(), by="aggregate_id", events=ps.count())
"""


@pytest.mark.timeout(400)
def test_a_view_shows_what_a_command_did_while_another_process_runs_the_app(
    cli: Command, file: Path, carts: Carts
) -> None:
    file.write_text(APP + _VIEW)
    with cli.start("run", file, "--json"):
        wait_until(lambda: "events_of" in carts.app.log.topics(), what="the view", timeout_s=150)
        for version in (4, 5):  # the other process is woken by each
            receipt = carts["7"].add("apple")
            rows = carts.app.read("events_of", after=receipt, timeout=150)
            assert {row["aggregate_id"]: row["events"] for row in rows}["7"] == version
