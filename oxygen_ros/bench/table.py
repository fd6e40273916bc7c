"""Prints results on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from oxygen_ros.bench.measure import MIB

PARTS = ('vision', 'head')  # of the stage before


def rows(title: str, columns: Sequence[str], lines: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return a table: a name and a cell per column in each line."""
    first = max(len(title), *(len(name) for name, _ in lines))
    widths = [max(len(column), *(len(cells[i]) for _, cells in lines)) for i, column in enumerate(columns)]
    head = f'{title:{first}}  ' + '  '.join(f'{column:>{width}}' for column, width in zip(columns, widths))
    body = [f'{name:{first}}  ' + '  '.join(f'{cell:>{width}}' for cell, width in zip(cells, widths))
            for name, cells in lines]
    return '\n'.join([head, '-' * len(head), *body])


def case_table(case: dict) -> str:
    """Return the table of a workload: a column per mode."""
    modes = case['modes']

    def line(name: str, cell) -> tuple[str, list[str]]:
        return name, [cell(mode) for mode in modes.values()]

    def quantiles(key: str) -> list[str]:
        return [milliseconds(mode[key], ('p95', 'p99', 'max')) for mode in modes.values()]

    def relative(key: str) -> list[tuple[str, list[str]]]:
        known = any(mode.get(key) is not None for mode in modes.values())
        return [line('  of isolated', lambda m: shares(m.get(key)))] if known else []

    lines = [line('frame, CPU ms (p50)', lambda m: _ms(m['cpu']['p50'])),
             *relative('cpu_by_isolated'),
             ('frame, CPU ms p95/p99/max', quantiles('cpu')),
             line('frame, wall ms (p50)', lambda m: _ms(m['wall']['p50'])),
             *relative('wall_by_isolated'),
             ('frame, wall ms p95/p99/max', quantiles('wall')),
             line('action after, ms (p50)', lambda m: _ms(m['action']['p50'])),
             line('replans per s', lambda m: f'{m["replans_per_second"]:.2f}'),
             line('executed actions per s', lambda m: f'{m["executed_actions_per_second"]:.1f}'),
             line('text tokens per s', lambda m: f'{m["tokens_per_second"]:.1f}'),
             line('text tokens per frame', lambda m: f'{m["tokens_per_frame"]:.1f}'),
             line('first token, ms (p50)', lambda m: _ms(m['first_token'] and m['first_token']['p50'])),
             line('finished text, ms (p50)', lambda m: _ms(m['finished_text'] and m['finished_text']['p50'])),
             line('decode batch (mean)', lambda m: f'{m["batch"]:.1f}'),
             line('KV MiB now/peak/pools', lambda m: '/'.join(
                 f'{m[key] / MIB:.1f}' for key in ('kv_bytes', 'kv_bytes_peak', 'kv_bytes_pools')))]
    if any(mode['joules'] for mode in modes.values()):
        lines.append(line('energy, J per frame', lambda m: f'{m["joules"]["mean"]:.2f}'))
    else:
        lines.append(line('energy', lambda m: 'not available'))
    for stage in next(iter(modes.values()))['split_cpu']:
        name = f'    of it {stage}' if stage in PARTS else f'  {stage}'
        lines.append(line(f'{name}, CPU ms', lambda m, stage=stage: _ms(m['split_cpu'][stage])))
    if any('bare_cpu' in mode for mode in modes.values()):
        lines += [line('model calls alone, CPU ms', lambda m: _ms(m['bare_cpu']['p50'])),
                  line('  engine over them, CPU', lambda m: f'{100 * m["engine_overhead_cpu"]:+.1f} %')]
    return rows(_title(case['workload']), list(modes), lines)


def _title(workload: dict) -> str:
    return (f'N={workload["text_length"]} k={workload["tokens_per_frame"]} S={workload["denoise_steps"]} '
            f'{workload["arrivals"]}' + (f' compile={workload["compile"]}' if workload['compile'] != 'off' else ''))


def milliseconds(figures: dict | None, keys: Sequence[str]) -> str:
    """Return some quantiles of a time in milliseconds, '-' if it was not measured."""
    return '-' if figures is None else '/'.join(f'{1e3 * figures[key]:.0f}' for key in keys)


def shares(ratio: float | None) -> str:
    """Return a ratio, '-' if there is none."""
    return '-' if ratio is None else f'{ratio:.3f}'


def _ms(seconds: float | None) -> str:
    return '-' if seconds is None else f'{1e3 * seconds:.1f}'
