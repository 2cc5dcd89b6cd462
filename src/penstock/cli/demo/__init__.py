"""`penstock demo`."""

from penstock.cli.demo.command import demo as demo
