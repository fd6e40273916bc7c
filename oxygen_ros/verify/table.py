"""Shows a report in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from oxygen_ros.verify.report import Check, Kind, Report

NARROWEST = 96  # columns, so that a table in a pipe is not cut


def show(report: Report, title: str) -> None:
    """Print one table per section, a row per quantity with the largest difference of all modes and runs."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, NARROWEST)
    for section in dict.fromkeys(check.section for check in report.checks.values()):
        checks = [check for check in report.checks.values() if check.section == section]
        modes = [mode for mode in dict.fromkeys(check.mode for check in checks) if mode]
        console.print(f'[bold]{title}: {section}[/]' + (f' ({", ".join(modes)})' if modes else ''))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ('quantity', 'compared', 'difference', 'L2', 'tolerance', 'result'):
            table.add_column(column, justify='left' if column == 'quantity' else 'right', no_wrap=True)
        for name in dict.fromkeys(check.name for check in checks):
            table.add_row(*_row([check for check in checks if check.name == name]))
        console.print(table)
    failed = [check for check in report.checks.values() if not check.passed]
    for check in failed:
        console.print(f'FAIL {check.section}, {check.name}, {check.mode} {check.note}', style='red')
    for note in report.notes:
        console.print(f'note: {note}')
    console.print(f'[green]pass[/]: {len(report.checks)} comparisons' if report.passed else
                  f'[red]FAIL[/]: {len(failed)} of {len(report.checks)} comparisons')


def _row(checks: Sequence[Check]) -> tuple[str, ...]:
    """Return the cells of one quantity, from its checks in all modes."""
    first = checks[0]
    worst, relative = max(check.worst for check in checks), max(check.relative for check in checks)
    result = '[green]pass[/]' if all(check.passed for check in checks) else '[red]FAIL[/]'
    if first.kind is Kind.EXACT:
        cells = ('equal' if not worst else f'{worst:.0f} differ', '')
    else:
        cells = (f'{worst:.2g}', f'{100 * relative:.1g} %' if relative else '0')
    return first.name, str(sum(check.count for check in checks)), *cells, str(first.tolerance), result
