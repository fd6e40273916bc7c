"""The card of a checkpoint: what it is, how it was made, and how good it is, in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oxygen_ros.training.config import TrainingConfig


def model_card(config: TrainingConfig, step: int, parameters: int, log: Sequence[Mapping],
               parts: Sequence[Mapping], start: TrainingConfig | None = None) -> str:
    """
    Return the card as Markdown.

    :param step: of the weights. :param log: lines of the run's log.
    :param parts: of what `oxygen_ros evaluate --json` wrote. :param start: recipe of the run that it began with.
    """
    last = config.last_step
    state = 'The training is complete.' if step >= last else (
        f'**These are the weights of step {step:,} of {last:,}: the training is not complete.**')
    looks = [line for line in log if line.get('held_out') and line['step'] <= step]
    lines = [
        f'# {config.model}', '',
        f"A vision-language-action policy of π0.5's family with {parameters / 1e6:.2f} million parameters for the "
        'simulated OpenArm of this package: two arms at a table with one to four coloured objects. It points at what '
        'it is told, answers questions about the scene, says what it does, and notes what lies where. Trained '
        'from scratch by `oxygen_ros train` on frames of the simulator. It has never seen a real robot, and must not '
        'move one.',
        '',
        state, '', '## How it was made', '',
        *(_run(start, start.last_step, '`training_start.yaml`') if start else []),
        *(['* Then, beginning with these weights and a new optimiser:'] if start else []),
        *_run(config, step, '`training.yaml`'),
        '* Curves: `curves.png`.',
        '* The weights are an average over the last steps (EMA).',
        "* It knows the words of the simulator's language (`tokenizer.json`). Others mean nothing to it.", '']
    if looks:
        lines += [f'## Held-out frames, without a simulator (step {looks[-1]["step"]:,})', '',
                  'Texts that are right word by word, of those with one right answer.', '',
                  '| | head camera alone | all cameras | of |', '| --- | --- | --- | --- |']
        figures = looks[-1]['held_out']
        for key in sorted(key.removeprefix('all/text/') for key in figures if key.startswith('all/text/')):
            alone, together = _percent(figures.get(f'first/text/{key}')), _percent(figures[f'all/text/{key}'])
            lines.append(f'| {key} | {alone} | {together} | {figures.get(f"all/count/{key}", "")} |')
        lines.append('')
    for part in parts:
        lines += _evaluation(part)
    return '\n'.join(lines)


def _run(config: TrainingConfig, step: int, recipe: str) -> list[str]:
    """Return what happened in a run up to a step."""
    batch = config.batch
    alone = (f'{config.vision_steps:,} steps of the vision tower alone ({config.vision_frames} frames each), then '
             if config.vision_steps else '')
    return [
        f'* {config.frames_at(step):,} frames of `oxygen_ros dataset`. Recipe and seeds: {recipe}.',
        f'* {alone}{config.steps:,} steps of everything ({batch.frames} frames, each with {batch.rows} instructions, '
        f'{batch.samples} noise samples of the chunk for each, and as many questions as fit).', *_late(config)]


def _late(config: TrainingConfig) -> list[str]:
    """Return what is different towards the end of the training."""
    first = config.vision_steps + config.late_from
    loss, batch = config.loss_at(first), config.batch_at(first)
    if (loss, batch) == (config.loss, config.batch):
        return []
    return [f'* From step {first:,} on, {batch.all_cameras:.0%} of the batches show '
            f'all cameras (before: {config.batch.all_cameras:.0%}), and the loss of the actions counts {loss.action:g} '
            f'(before: {config.loss.action:g}).']


def _evaluation(part: Mapping) -> list[str]:
    """Return the tables of one part of an evaluation."""
    modes = part['modes']
    names = list(dict.fromkeys(name for figures in modes.values() for name in figures))
    lines = [f'## {part["title"]}', '', '| | ' + ' | '.join(modes) + ' |', '| --- |' + ' --- |' * len(modes)]
    lines += [f'| {name} | ' + ' | '.join(figures.get(name, {}).get('text', '') for figures in modes.values()) + ' |'
              for name in names]
    lines += ['', *(f'* {name}: {figure["text"]}' for name, figure in part.get('agreement', {}).items())]
    return [*lines, ''] if part.get('agreement') else lines


def _percent(share: float | None) -> str:
    return '' if share is None else f'{100 * share:.1f} %'
