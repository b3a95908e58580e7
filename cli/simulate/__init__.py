"""`drystone simulate`: try policies on your own lists before anything is installed."""

from __future__ import annotations

import typer

from cli.simulate.bound import bound
from cli.simulate.departures import departures
from cli.simulate.pack import pack
from cli.simulate.precision import precision
from cli.simulate.queue import queue
from cli.simulate.story import story
from cli.simulate.table import table
from cli.simulate.whatif import whatif

simulate_app = typer.Typer(help="Policies on your own lists, in virtual time; needs no cluster.", no_args_is_help=True)


@simulate_app.callback()
def simulate() -> None:
    """Policies on your own lists, in virtual time; needs no cluster."""


simulate_app.command("pack")(pack)
simulate_app.command("queue")(queue)
simulate_app.command("story")(story)
simulate_app.command("table")(table)
simulate_app.command("bound")(bound)
simulate_app.command("departures")(departures)
simulate_app.command("whatif")(whatif)
simulate_app.command("precision")(precision)
