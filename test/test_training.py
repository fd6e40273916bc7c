"""Training: it learns, goes on exactly where it was ended, and writes checkpoints that load."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from training_data import BATCH, CAMERAS, JOINTS, make_dataset, write_files

from oxygen_ros.cli import main
from oxygen_ros.errors import ConfigError
from oxygen_ros.evaluation.figures import Share
from oxygen_ros.files import config_names
from oxygen_ros.models.checkpoint_statistics import read_statistics
from oxygen_ros.models.registry import LoadOptions, load_model, read_model_file
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.simulation.dataset import write_shard
from oxygen_ros.training.batches import choose_frames, generator, pack
from oxygen_ros.training.config import parse_config, read_config
from oxygen_ros.training.export import export
from oxygen_ros.training.losses import LossWeights
from oxygen_ros.training.model_card import model_card
from oxygen_ros.training.packed import NO_TARGET, PackedForward
from oxygen_ros.training.run_folder import RunFolder
from oxygen_ros.training.state import TrainingState
from oxygen_ros.training.trainer import Trainer, learning_rate


@pytest.fixture(scope='module')
def dataset(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp('data'))


def trainer(dataset, folder, held_out=None, **changes):
    folder.mkdir(exist_ok=True)
    config = write_files(folder.parent, **changes)
    run = RunFolder(folder)
    run.begin(config)
    return Trainer(config, dataset, run, held_out)


def weights(trainer):
    return {**trainer.state.parameters, **{f'average {key}': value for key, value in trainer.state.average.items()}}


def test_steps_on_one_batch_reduce_its_loss(dataset, tmp_path):
    learner = trainer(dataset, tmp_path / 'run', vision_steps=0, steps=40, learning_rate=3e-3)
    batch = learner.batch(0)
    first = learner.step(batch)
    for _ in range(25):
        last = learner.step(batch)
    assert last['text'] < 0.5 * first['text'] and last['action'] < 0.8 * first['action']
    assert last['patch'] < first['patch']


def test_run_that_was_ended_goes_on_exactly(dataset, tmp_path):
    whole = trainer(dataset, tmp_path / 'whole')
    assert whole.run()
    part = trainer(dataset, tmp_path / 'part')
    assert not part.run(until=lambda: part.state.step == 3)
    rest = trainer(dataset, tmp_path / 'part')
    assert rest.state.step == 3 and rest.run()
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(rest)[name]), name
    assert not torch.equal(whole.state.average['vision.projector.weight'], whole.network.vision.projector.weight)


def test_run_folder_is_for_one_recipe(dataset, tmp_path):
    trainer(dataset, tmp_path / 'run')
    with pytest.raises(ConfigError, match='begun with another seed and steps'):
        trainer(dataset, tmp_path / 'run', seed=2, steps=9)


def test_frames_of_a_step_depend_on_seed_and_step_alone():
    steps = [choose_frames(10, BATCH, 5, step) for step in range(200)]
    assert all(len(set(frames)) == BATCH.frames for frames in steps)
    counts = np.bincount(np.concatenate(steps))
    assert len(counts) == 10 and counts.min() > 50  # of 80 on average
    assert np.array_equal(steps[7], choose_frames(10, BATCH, 5, 7))
    assert any(not np.array_equal(steps[i], choose_frames(10, BATCH, 6, i)) for i in range(3))


def test_run_waits_for_frames_that_are_still_being_made(dataset, tmp_path, monkeypatch):
    growing = make_dataset(tmp_path / 'data')
    learner = trainer(growing, tmp_path / 'run', data_frames=20, first_frames=8, frames_per_step=2.0)
    assert [learner.config.frames_at(step) for step in (0, 2, 9)] == [8, 12, 20]
    learner.batch(2)

    def work_goes_on(seconds):
        write_shard(tmp_path / 'data', 1, list(growing.shards[0])[:8])

    monkeypatch.setattr('oxygen_ros.training.trainer.time.sleep', work_goes_on)
    learner.batch(9)
    assert len(growing) == 20


def test_run_does_not_begin_with_too_few_frames(dataset, tmp_path):
    with pytest.raises(ConfigError, match='begins with 13 frames'):
        trainer(dataset, tmp_path / 'run', data_frames=30, first_frames=13)


def test_batches_are_the_same_whenever_they_are_made_and_all_of_one_shape(dataset, tmp_path):
    learner = trainer(dataset, tmp_path / 'run', steps=30)
    shapes = set()
    for step in range(2, 12):
        one, other = learner.batch(step).packed, learner.batch(step).packed
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.noise, other.noise)
        shapes.add(tuple(tuple(value.shape) for value in vars(one).values()))
        assert one.present[:, 0].all()
    assert len(shapes) == 2  # the head camera alone, and all


def test_rows_hold_whole_texts_and_ask_for_what_is_said_alone(dataset, tmp_path):
    learner = trainer(dataset, tmp_path / 'run')
    model, random = learner.encoder, generator(3, 3)
    examples = [model.example(dataset, i, random) for i in range(4)]
    batch = pack(examples, BATCH, random, all_cameras=True)
    tasks = set()
    for b, rows in enumerate(batch.rows):
        for k, row in enumerate(rows):
            for number, text in enumerate(row.branches, 1):
                mine = batch.packed.segments[b, k] == number
                ids = batch.packed.tokens[b, k][mine].tolist()
                assert ids == [*text.prompt, *text.reply[:-1]]
                targets = batch.packed.targets[b, k][mine].tolist()
                assert targets == [NO_TARGET] * (len(text.prompt) - 1) + list(text.reply)
                tasks.add(text.task)
        assert sum(text.task == 'memory' for row in rows for text in row.branches) == 1
    assert tasks == {'answer', 'speech', 'memory'}


def test_held_out_figures_tell_kinds_apart(dataset, tmp_path):
    learner = trainer(dataset, tmp_path / 'run', held_out=dataset)
    before = {name: value.clone() for name, value in learner.network.named_parameters()}
    figures = learner.evaluate()
    assert figures['all/count/where'] > 0 and 0 <= figures['all/text/where'] <= 1
    assert figures['first/count/memory'] == 4 and figures['all/action/reach'] > 0
    assert all(torch.equal(value, before[name]) for name, value in learner.network.named_parameters())


def test_learning_rate_rises_and_falls_twice(dataset, tmp_path):
    config = write_files(tmp_path, vision_steps=100, steps=200, warm_up=10, vision_rate=1.0, learning_rate=2.0)
    rates = [learning_rate(config, step) for step in range(300)]
    assert np.argmax(rates[:100]) == 9 and 0.9 < max(rates[:100]) <= 1
    assert np.argmax(rates) == 109 and rates[99] < 0.02 and rates[299] < 0.04


def test_late_steps_have_batches_and_losses_of_their_own(dataset, tmp_path):
    config = write_files(tmp_path, vision_steps=2, steps=8, late_from=3)
    late = replace(config, late_batch=replace(config.batch, all_cameras=1.0), late_loss=LossWeights(action=7.0))
    assert parse_config(late.to_mapping(), 'recipe') == late
    folder = RunFolder(tmp_path)
    folder.begin(late)
    learner = Trainer(late, dataset, folder)
    seen = [learner.batch(step).packed.present.shape[1] for step in range(5, 10)]
    assert seen == [len(CAMERAS)] * 5 and late.batch_at(4) == config.batch
    assert [late.loss_at(step).action for step in (4, 5)] == [config.loss.action, 7.0]
    assert config.loss_at(9) == config.loss and config.batch_at(9) == config.batch
    assert 'From step 5 on, 100% of the batches show all cameras' in model_card(late, 10, 1, [], [])
    with pytest.raises(ConfigError, match='late_batch has prefix_tokens'):
        parse_config({**late.to_mapping(), 'late_batch': {'prefix_tokens': 3}}, 'recipe')


def test_run_with_a_longer_cosine_changes_nothing_before_its_cool_down(tmp_path):
    long = write_files(tmp_path, vision_steps=100, steps=1000, warm_up=10)
    short = replace(long, steps=400, cosine_steps=1000, cool_down=100)
    rates = [[learning_rate(config, step) for step in range(500)] for config in (long, short)]
    assert rates[0][:401] == rates[1][:401]
    assert all(a > b for a, b in zip(rates[0][401:], rates[1][401:]))
    assert np.all(np.diff(rates[1][401:]) < 0) and rates[1][499] < 0.03 * rates[1][400]


def test_exported_checkpoint_loads_and_gives_the_logits_of_training(dataset, tmp_path):
    learner = trainer(dataset, tmp_path / 'run', held_out=dataset)
    learner.run()
    target = tmp_path / 'checkpoint'
    found = Share(19, 20).to_dict()
    (tmp_path / 'results.json').write_text(json.dumps({'parts': [
        {'title': 'some episodes', 'modes': {'isolated': {'success': found}, 'shared_kv': {}}}]}))
    export(learner.folder, target, [tmp_path / 'results.json'])
    model = load_model(read_model_file(str(tmp_path / 'model.yaml')), LoadOptions(target))
    assert not model.spec.random_weights and str(target) in model.spec.weights
    robot = load_robot(str(tmp_path / 'robot.yaml'))
    assert len(read_statistics(target).of_state(3)) == len(robot.joint_names) == len(JOINTS)
    learner._set(learner.state.average)
    batch = learner.batch(4).packed
    with torch.inference_mode():
        trained = PackedForward(learner.network)(batch)
        loaded = dict(model.network.named_parameters())
        for name, value in learner.network.named_parameters():
            assert torch.equal(value, loaded[name])
        assert torch.isfinite(trained.velocity).all()
    card = (target / 'README.md').read_text()
    assert 'The training is complete' in card and '| memory |' in card
    assert '## some episodes' in card and '| success | 95.0 % (76.4 to 99.1, n 20) |  |' in card
    assert json.loads((target / 'tokenizer.json').read_text())['words'] == read_model_file(
        str(tmp_path / 'model.yaml')).content['words'].split()


def test_card_of_unfinished_training_says_so(dataset, tmp_path):
    learner = trainer(dataset, tmp_path / 'run')
    learner.run(until=lambda: learner.state.step == 3)
    export(learner.folder, tmp_path / 'checkpoint', [])
    assert 'weights of step 3 of 6: the training is not complete' in (tmp_path / 'checkpoint/README.md').read_text()


def test_run_begins_with_the_weights_and_statistics_of_another(dataset, tmp_path):
    first = trainer(dataset, tmp_path / 'first', held_out=dataset)
    first.run()
    config = write_files(tmp_path, seed=7, start_from='first', vision_steps=0, steps=2)
    folder = RunFolder(tmp_path / 'second')
    folder.start_from(RunFolder(tmp_path / 'first'))
    folder.begin(config)
    (tmp_path / 'first/norm_stats.json').unlink()  # everything was copied
    second = Trainer(config, dataset, folder)
    assert second.state.step == 0 and second.statistics == first.statistics and not second.state.optimiser.state
    for key, value in first.state.average.items():
        assert torch.equal(second.state.average[key], value), key
        assert torch.equal(second.state.parameters[f'network.{key}'], value), key
    for key, value in first.head.named_parameters():
        assert torch.equal(second.state.parameters[f'head.{key}'], value), key
    assert second.run() and Trainer(config, dataset, folder).state.step == 2
    export(folder, tmp_path / 'checkpoint', [])
    card = (tmp_path / 'checkpoint/README.md').read_text()
    places = [card.index(words) for words in ('training_start.yaml', 'beginning with these weights', 'training.yaml')]
    assert places == sorted(places)
    recipes = [yaml.safe_load((tmp_path / 'checkpoint' / name).read_text()) for name in ('training_start.yaml',
                                                                                          'training.yaml')]
    assert list(map(parse_config, recipes, ('', ''))) == [first.config, config]


def test_run_does_not_begin_with_an_unfinished_one_nor_with_another_network(dataset, tmp_path):
    first = trainer(dataset, tmp_path / 'first')
    first.run(until=lambda: first.state.step == 3)
    with pytest.raises(ConfigError, match='at step 3 of 6: let it end first'):
        RunFolder(tmp_path / 'second').start_from(first.folder)
    with pytest.raises(ConfigError, match='holds no run'):
        RunFolder(tmp_path / 'second').start_from(RunFolder(tmp_path / 'nothing'))
    state = TrainingState({'network': torch.nn.Linear(2, 3)}, 'network', first.config)
    with pytest.raises(ConfigError, match=r'differs in average\.weight'):
        state.start_with(first.folder.newest())


def test_recipe_that_begins_with_another_run_asks_for_it(dataset, tmp_path, capsys):
    write_files(tmp_path)
    arguments = ['train', '--run', str(tmp_path / 'run'), '--data', str(dataset.directory), '--config',
                 str(tmp_path / 'recipe.yaml')]
    (tmp_path / 'recipe.yaml').write_text('start_from: openarm')
    assert main(arguments) == 2 and 'the weights of recipe openarm: give the folder' in capsys.readouterr().err
    (tmp_path / 'recipe.yaml').write_text('seed: 1')
    assert main([*arguments, '--start-from', str(tmp_path)]) == 2
    assert 'begins with random weights' in capsys.readouterr().err


@pytest.mark.parametrize('name', config_names('training'))
def test_shipped_recipes_are_read(name):
    config = read_config(name)
    assert not config.start_from or read_config(config.start_from).model == config.model


def test_export_without_a_run_is_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match='holds no saved state'):
        export(RunFolder(tmp_path), tmp_path / 'checkpoint', [])


def test_dataset_of_other_cameras_is_refused(dataset, tmp_path):
    other = make_dataset(tmp_path / 'data')
    other.info = replace(other.info, cameras=CAMERAS[:2])
    with pytest.raises(ConfigError, match='they must be the same'):
        trainer(other, tmp_path / 'run')
