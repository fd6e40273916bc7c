"""
Writes doc/reference/{parameters,commands,messages,services}.md from the parameter tables, parsers and interface files.

    python doc/generate.py            # writes what has changed
    python doc/generate.py --check    # exit code 1 and the names of pages that are not as they would be written

Run it after a change of a parameter, of an option, or of a message.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from oxygen_ros.cli import SUBCOMMANDS
from oxygen_ros.parameters import NodeParameter

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / 'doc' / 'reference'
NODES = {
    'perception': 'Camera images and joint states in, frames out.',
    'inference': 'Frames in; actions, speech and memory out. A managed (lifecycle) node.',
    'replay': 'Plays a recording.',
    'record': 'Records topics, on machines without rosbag2.',
    'hear': 'Understands spoken instructions and questions. Optional, see [Voice](../voice.md).',
    'speak': 'Says texts with a voice. Optional, see [Voice](../voice.md).',
    'simulator': 'A two-armed humanoid at a table. Its subcommand is `oxygen_ros simulate`.',
}
GENERATED = '<!-- Made by doc/generate.py: change the source, then run it again. -->\n'


def pages() -> dict[str, str]:
    """Return the name of each generated page -> its text."""
    return {'parameters.md': parameters_page(), 'commands.md': commands_page(),
            'messages.md': interfaces_page('msg', 'Messages'), 'services.md': interfaces_page('srv', 'Services')}


# -- parameters --------------------------------------------------------------------------------------------------------

def parameters_page() -> str:
    """Return the page of the parameters of all nodes."""
    lines = [GENERATED, '# Parameters', '',
             'Set one with `--param NAME:=VALUE` of a subcommand, or in a file (`--params-file`, `params_file:=` of '
             'the launch files); `config/oxygen.yaml` has all of them at their defaults. *Fixed* means read once, when '
             'the node is made: `ros2 param set` is refused.', '',
             'Beside these every node has `use_sim_time`, and '
             '`qos_overrides.<topic>.<publisher|subscription>.<policy>` for its topics.']
    for name, summary in NODES.items():
        table = importlib.import_module(f'oxygen_ros.nodes.{name}').PARAMETERS
        lines += ['', f'## {name}', '', summary, '', '| parameter | type | default | allowed | |',
                  '|---|---|---|---|---|']
        lines += [parameter_row(parameter) for parameter in table]
    return '\n'.join(lines) + '\n'


def parameter_row(parameter: NodeParameter) -> str:
    """Return a parameter as a row of a table."""
    default = parameter.default
    shown = '[' + ', '.join(map(str, default)) + ']' if isinstance(default, tuple) else str(default)
    if isinstance(default, bool):
        shown = shown.lower()
    allowed = parameter.constraint.replace("'", '`')
    fixed = '' if parameter.changeable else ' *Fixed.*'
    return row(f'`{parameter.name}`', parameter.type_name, f'`{shown}`' if shown else 'empty', allowed,
               escape(parameter.description) + fixed)


# -- commands ----------------------------------------------------------------------------------------------------------

def commands_page() -> str:
    """Return the page of the subcommands and their options."""
    lines = [GENERATED, '# Commands', '',
             '`oxygen_ros SUBCOMMAND ...`; in a colcon workspace `ros2 run oxygen_ros oxygen_ros SUBCOMMAND ...`. Each '
             'has `--help`. Exit codes: 0; 1 the check failed; 2 wrong use, with one line on stderr; 130 Ctrl-C (nodes '
             'end with 0).']
    for name, (module, summary) in SUBCOMMANDS.items():
        parser = argparse.ArgumentParser(prog=f'oxygen_ros {name}')
        importlib.import_module(module).add_arguments(parser)
        lines += ['', f'## {name}', '', f'{summary[0].upper()}{summary[1:]}.']
        lines += options_table(parser)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for sub, subparser in action.choices.items():
                    lines += ['', f'### {name} {sub}', '', sentence(subparser.description), *options_table(subparser)]
    return '\n'.join(lines) + '\n'


def options_table(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a parser as lines of a table."""
    rows = [option_row(action, parser) for action in parser._actions
            if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))]
    return ['', '| option | |', '|---|---|', *rows] if rows else []


def option_row(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Return an option as a row of a table."""
    if action.choices:
        value = '{' + ','.join(map(str, action.choices)) + '}'
    else:
        value = action.metavar or action.dest.upper()
    value = ' '.join(value) if isinstance(value, tuple) else value
    if action.nargs == '?':
        value = f'[{value}]'
    elif action.nargs in ('+', '*'):
        value += ' ...'
    words = ', '.join(action.option_strings)
    if not words or action.nargs != 0:
        words = f'{words} {value}'.strip()
    text = action.help or ''
    if '%' in text:
        text = parser._get_formatter()._expand_help(action)
    return row(f'`{words}`', escape(text.replace(f'{ROOT}/', '')))


def sentence(text: str | None) -> str:
    """Return a text as a sentence, without line breaks."""
    return escape(' '.join((text or '').split()))


# -- interfaces --------------------------------------------------------------------------------------------------------

def interfaces_page(kind: str, title: str) -> str:
    """Return the page of all messages, or of all services."""
    lines = [GENERATED, f'# {title}', '', f'Package `oxygen_ros`, folder `{kind}/`.']
    for path in sorted((ROOT / kind).glob(f'*.{kind}')):
        head, *rest = blocks(path.read_text())
        lines += ['', f'## {path.stem}', '', *(comment(head) if head[0].startswith('#') else []), '']
        body = rest if head[0].startswith('#') and all(line.startswith('#') for line in head) else [head, *rest]
        fields: list[str] = []
        for block in body:
            if block == ['---']:
                lines += [*field_table(fields), '', '**Response**', '']
                fields = []
            else:
                fields += field_rows(block)
        lines += field_table(fields)
    return '\n'.join(lines) + '\n'


def blocks(text: str) -> Iterator[list[str]]:
    """Split an interface file into paragraphs; the line between request and response is one of its own."""
    for part, half in enumerate(text.split('\n---\n')):
        if part:
            yield ['---']
        for paragraph in half.strip().split('\n\n'):
            yield paragraph.splitlines()


def comment(lines: Iterable[str]) -> list[str]:
    """Return the text of comment lines."""
    return [escape(' '.join(line.lstrip('# ') for line in lines))]


def field_rows(lines: list[str]) -> list[str]:
    """Return the fields and constants of a paragraph as rows; a comment above several belongs to the first of them."""
    above, rows = [], []
    for line in lines:
        definition, _, remark = line.partition('#')
        if not definition.strip():
            above.append(line.lstrip('# '))
            continue
        type_name, name = definition.split(maxsplit=1)
        name, _, value = name.partition('=')
        shown = f'{name.strip()} = {value.strip()}' if value else name.strip()
        text = ' '.join(above)
        if text and remark:
            text = text.rstrip('.') + ':'
        rows.append(row(f'`{shown}`', f'`{type_name}`', escape(f'{text} {remark.strip()}'.strip())))
        above = []
    return rows


def field_table(rows: list[str]) -> list[str]:
    """Return rows of fields as a table."""
    return ['| field | type | |', '|---|---|---|', *rows]


# -- text --------------------------------------------------------------------------------------------------------------

def row(*cells: str) -> str:
    """Return a row of a table."""
    return '| ' + ' | '.join(cell.replace('|', '\\|') for cell in cells) + ' |'


def escape(text: str) -> str:
    """Return a text so that Markdown shows it as it stands."""
    for character in '<>*[]':
        text = text.replace(character, f'\\{character}')
    return text


def main() -> int:
    """Write or check the pages; return the exit code."""
    parser = argparse.ArgumentParser(description='Writes the generated pages of doc/reference.')
    parser.add_argument('--check', action='store_true', help='write nothing; name the pages that are out of date')
    check = parser.parse_args().check
    changed = []
    for name, text in pages().items():
        path = PAGES / name
        if not path.is_file() or path.read_text() != text:
            changed.append(name)
            if not check:
                path.write_text(text)
    if changed:
        print(('out of date: ' if check else 'written: ') + ', '.join(changed))
    return 1 if check and changed else 0


if __name__ == '__main__':
    sys.exit(main())
