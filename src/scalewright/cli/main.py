"""The command line: one thin file per command; heavy imports happen inside the commands."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from scalewright import __version__
from scalewright.cli import calibrate, doctor, explain, postmortem, report, study
from scalewright.cli.arguments import missing_options, plain_numbers
from scalewright.cli.bench import app as bench
from scalewright.cli.cluster import advise, jobs, lab, launch, lint, preflight, site
from scalewright.cli.data import app as data
from scalewright.cli.planner import catalog, plan, plan_show, predict, validate
from scalewright.cli.reason import app as reason
from scalewright.cli.runs import app as runs
from scalewright.errors import ConfigError, ScalewrightError, shortened
from scalewright.records.terminal_text import printable
from scalewright.records.types import ExitCode

app = typer.Typer(
    name="scalewright",
    help="Predict and explain the training of large models on HPC clusters.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"scalewright {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Predict and explain the training of large models on HPC clusters."""


app.command("advise")(advise.run)
app.command("calibrate")(calibrate.run)
app.command("catalog")(catalog.run)
app.command("doctor")(doctor.run)
app.command("explain")(explain.run)
app.command("launch")(launch.run)
app.command("lint")(lint.run)
app.command("plan")(plan.run)
app.command("plan-show")(plan_show.run)
app.command("postmortem")(postmortem.run)
app.command("predict")(predict.run)
app.command("preflight")(preflight.run)
app.command("validate")(validate.run)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(jobs.app, name="jobs")
app.add_typer(lab.app, name="lab")
app.add_typer(reason.app, name="reason")
app.command("report")(report.run)
app.add_typer(runs.app, name="run")
app.add_typer(site.app, name="site")
app.add_typer(study.app, name="study")


def main() -> NoReturn:
    """Run a command. An expected error prints one sentence and sets the exit code."""
    arguments = sys.argv[1:] or ["--help"]
    debug = "--debug" in arguments
    try:
        _check_numbers(arguments)
        written = plain_numbers(app, arguments)
        _check_numbers(written)
        code = typer.main.get_command(app).main(written, prog_name="scalewright", standalone_mode=False)
    except ScalewrightError as error:
        _fail(str(error), error.exit_code, debug=debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush cannot fail again
        sys.exit(0)  # the reader has gone: `scalewright ... | head` is not an error
    except OSError as error:
        _fail(*describe_os_error(error), debug=debug)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        usage = getattr(error, "format_message", None)  # typer's own usage errors, whichever click it carries
        if usage is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: its help, as it is set
            typer.echo(usage(), err=True)
            sys.exit(2)
        words = missing_options(app, arguments) if type(error).__name__ == "MissingParameter" else ""
        _fail(words or usage(), 2, debug=debug)
    _finish(code if isinstance(code, int) else 0)


def describe_os_error(error: OSError) -> tuple[str, int]:
    """The sentence and the exit code of an error that no reader expected: a name that cannot be one, a full disk."""
    if error.filename is not None and error.errno in WRONG_NAMES:
        return f"{shortened(str(error.filename))}: {error.strerror}; check the path", ExitCode.BAD_INPUT
    return f"the output cannot be written: {error.strerror}", ExitCode.ENVIRONMENT


WRONG_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)
MOST_DIGITS = 18
"""Of a whole number: what is larger does not fit the 64 bits of arrays."""
_LONG_NUMBER = re.compile(rf"^(?:--?[a-z-]+=)?[+-]?\d{{{MOST_DIGITS + 1},}}$")


def _check_numbers(arguments: list[str]) -> None:
    """Before any command looks at it: Python reads whole numbers of any length, and arrays do not hold them."""
    for argument in arguments:
        if _LONG_NUMBER.match(argument):
            raise ConfigError(f"{shortened(argument)}: no number here has more than {MOST_DIGITS} digits; check it")


def _finish(code: int) -> NoReturn:
    """Flush before the exit, so that a full disk gives an error message and not a traceback."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        _fail(f"the output cannot be written: {error.strerror}", ExitCode.ENVIRONMENT, debug=False)
    sys.exit(code)


def _fail(message: str, code: int, *, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    typer.echo(f"error: {' '.join(printable(message).split())}", err=True)
    sys.exit(code)
