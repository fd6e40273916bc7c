"""`oxygen_ros evaluate`: how good the policy is, in the simulator and on held-out frames, in each mode."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.errors import ConfigError
from oxygen_ros.evaluation.closed_loop import ClosedLoop, Rates
from oxygen_ros.evaluation.exam import Exam, session_settings
from oxygen_ros.evaluation.report import agreement, episode_figures, exam_figures, plain, table
from oxygen_ros.offline.virtual_time import StageCosts
from oxygen_ros.simulation import robot_model
from oxygen_ros.simulation.dataset import Dataset
from oxygen_ros.simulation.episode import make_episode
from oxygen_ros.simulation.simulation import Simulation
from oxygen_ros.tasks.session import SessionSettings
from oxygen_ros.version import version

FIRST_SEED = 0  # of the scenes of episodes: no dataset has a scene of theirs, see `simulation.SCENE_STREAM`
COSTS = 'prefill=30,denoise=20,extend=8,decode=5'  # ms, about what one core of a small CPU takes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument('--episodes', type=int, default=0, metavar='N', help='in closed loop in the simulator (0)')
    parser.add_argument('--questions', type=int, default=0, metavar='N',
                        help='about frames of --held-out, with spoken lines and notes of the same frames (0)')
    parser.add_argument('--held-out', metavar='DIR', help='dataset that was not trained on')
    parser.add_argument('--mode', default=','.join(mode.value for mode in Mode), metavar='M,...',
                        help='modes of the engine, with commas between them (all)')
    parser.add_argument('--texts', action='store_true', help='episodes with texts that run all the time')
    parser.add_argument('--ros', action='store_true',
                        help='episodes through the real nodes, in simulated time: slow, and not the same every time')
    parser.add_argument('--model', default='openarm', help='a name in config/models or a path (openarm)')
    parser.add_argument('--robot', default='openarm', help='a name in config/robots or a path (openarm)')
    parser.add_argument('--checkpoint', default='', metavar='DIR', help='weights; empty for those of the model file')
    parser.add_argument('--cameras', default='', metavar='C,...', help='cameras that are shown (all)')
    parser.add_argument('--action-rate', type=float, default=5.0, metavar='HZ', help='chunks per second (5)')
    parser.add_argument('--denoise-steps', type=int, default=0, metavar='N', help='0 takes those of the model (0)')
    parser.add_argument('--ensemble', type=float, default=-1.0, metavar='W', help='weight of earlier chunks where they '
                        'overlap with a new one, from 0 to below 1; -1 takes that of the model file (-1)')
    parser.add_argument('--costs', default=COSTS, metavar='C', help='virtual milliseconds that each stage of the model '
                        f'takes in an episode, so that every run is the same; zero is possible ({COSTS})')
    parser.add_argument('--seed', type=int, default=FIRST_SEED, metavar='S', help='of the first episode (0)')
    parser.add_argument('--threads', type=int, default=0, help='of torch; 0 takes all cores')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the figures there too')


def main(arguments: argparse.Namespace) -> int:
    """Run the evaluation; see `cli.py` for the exit codes."""
    modes = _modes(arguments.mode)
    if not (arguments.episodes or arguments.questions):
        raise ConfigError('nothing to do: give --episodes or --questions')
    if arguments.questions and not arguments.held_out:
        raise ConfigError('--questions needs --held-out: make frames with `oxygen_ros dataset`, of another seed than '
                          'those of the training')
    if not -1 <= arguments.ensemble < 1:
        raise ConfigError(f'--ensemble {arguments.ensemble} must be below 1, and not below -1')
    if _cameras(arguments) and arguments.ros:
        raise ConfigError('--cameras is not for --ros: the nodes have all cameras')
    torch.set_num_threads(arguments.threads or os.cpu_count() or 1)
    results = []
    if arguments.questions:
        results.append(_exam(arguments, modes))
    if arguments.episodes:
        results.append(_episodes(arguments, modes))
    if arguments.json:
        arguments.json.write_text(json.dumps({'version': version(), 'parts': results}, indent=1) + '\n',
                                  encoding='utf-8')
    return 0


def _exam(arguments: argparse.Namespace, modes: list[Mode]) -> dict:
    dataset = Dataset(arguments.held_out)
    frames, asked = 0, 0
    while asked < arguments.questions:
        if frames == len(dataset):
            raise ConfigError(f'{arguments.held_out} has {asked} questions: make more frames, or ask fewer')
        asked += len(dataset[frames].questions)
        frames += 1
    results, weights = {}, ''
    for mode in modes:
        say = _Progress(f'{mode.value}: questions', asked)
        exam = Exam(_settings(arguments), mode, dataset, _cameras(arguments))
        results[mode.value] = exam.run(range(frames), say)
        weights = exam.session.spec.weights
    figures = {mode: exam_figures(result) for mode, result in results.items()}
    agree = agreement(results)
    title = f'{asked} questions about {frames} held-out frames' + _shown(arguments)
    print(f'{title}\n{table(figures)}')
    if agree:
        print(table({'': agree}))
    return {'title': title, 'weights': Path(weights).name, 'modes': {mode: plain(f) for mode, f in figures.items()},
            'agreement': plain(agree)}


def _episodes(arguments: argparse.Namespace, modes: list[Mode]) -> dict:
    rates = Rates.with_texts() if arguments.texts else Rates()
    rates = replace(rates, action=arguments.action_rate)
    simulation = Simulation(render=not arguments.ros)  # the nodes have one of their own
    figures, lines = {}, {}
    for mode in modes:
        say, results = _Progress(f'{mode.value}: episodes', arguments.episodes), []
        with _loop(arguments, mode, rates, simulation) as loop:
            for seed in range(arguments.seed, arguments.seed + arguments.episodes):
                results.append(loop.run(make_episode(seed, simulation.reset(seed).objects)))
                say(len(results))
        figures[mode.value] = episode_figures(results, rates.action)
        lines[mode.value] = [{'seed': r.episode.seed, 'instruction': r.episode.instruction, 'outcome': r.outcome.value,
                              'distance': None if r.distance != r.distance else round(r.distance, 4),
                              'seconds': round(r.seconds, 2)} for r in results]
    title = f'{arguments.episodes} episodes ' + ('through the nodes' if arguments.ros else 'in closed loop')
    title += ', texts running all the time' * arguments.texts + _shown(arguments)
    print(f'{title}\n{table(figures)}')
    return {'title': title, 'costs': None if arguments.ros else arguments.costs,
            'modes': {mode: plain(f) for mode, f in figures.items()}, 'episodes': lines}


@contextlib.contextmanager
def _loop(arguments: argparse.Namespace, mode: Mode, rates: Rates, simulation: Simulation) -> Iterator[Any]:
    """Give what runs episodes in a mode: the engine in this process, or the nodes."""
    if not arguments.ros:
        yield ClosedLoop(_settings(arguments), mode, StageCosts.parse(arguments.costs), rates, simulation,
                         _cameras(arguments))
        return
    from oxygen_ros.nodes.episodes_over_ros import EpisodesOverRos  # needs ROS
    with EpisodesOverRos({'model': arguments.model, 'checkpoint': arguments.checkpoint, 'mode': mode.value,
                          'action.denoise_steps': arguments.denoise_steps,
                          'command.ensemble': arguments.ensemble}, rates) as loop:
        yield loop


def _settings(arguments: argparse.Namespace) -> SessionSettings:
    settings = session_settings(arguments.model, arguments.robot, arguments.checkpoint)
    return replace(settings, engine=replace(settings.engine, denoise_steps=arguments.denoise_steps),
                   ensemble=arguments.ensemble)


def _cameras(arguments: argparse.Namespace) -> set[str] | None:
    names = set(filter(None, (name.strip() for name in arguments.cameras.split(','))))
    if unknown := names - set(robot_model.CAMERAS):
        raise ConfigError(f'--cameras: there is no {", ".join(sorted(unknown))}: choose from '
                          f'{", ".join(robot_model.CAMERAS)}')
    return names or None


def _shown(arguments: argparse.Namespace) -> str:
    shown = f', cameras {arguments.cameras}' if arguments.cameras else ''
    return shown + (f', ensemble {arguments.ensemble:g}' if arguments.ensemble >= 0 else '')


def _modes(text: str) -> list[Mode]:
    try:
        return [Mode(name.strip()) for name in text.split(',')]
    except ValueError as error:
        raise ConfigError(f'--mode: {error}: choose from {", ".join(mode.value for mode in Mode)}') from None


class _Progress:
    """Says now and then how far it is."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._next = what, total, time.monotonic() + 10

    def __call__(self, done: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 10
            print(f'{self._what} {done} of {self._total}', file=sys.stderr, flush=True)
