"""Episodes in the simulator through the engine. The oracle acts: what is tested is everything around it."""

import numpy as np
import pytest
import torch
import yaml
from small_policy import SIZES, small_config

from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.evaluation import closed_loop
from oxygen_ros.evaluation.closed_loop import ClosedLoop, Rates
from oxygen_ros.evaluation.exam import session_settings
from oxygen_ros.offline.virtual_time import CostedModel, StageCosts
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.simulation.episode import Episode, Outcome

pytest.importorskip('mujoco')
pytest.importorskip('openarm_mujoco')
LAYOUT = load_robot('openarm').layout('joints')


class OracleModel(CostedModel):
    """A model that looks at the scene itself, instead of at pictures."""

    simulation = None
    target = 0

    def prefill(self, inputs, instruction, cache, frame):
        self.seen = inputs.observation
        super().prefill(inputs, instruction, cache, frame)

    def denoise(self, cache, frame, noise, steps, *more):
        super().denoise(cache, frame, noise, steps, *more)
        oracle = self.simulation.oracle
        names, positions = self.seen.joint_names, self.seen.joint_positions
        item = self.simulation.scene.objects[self.target]
        chunk = oracle.chunk(positions[:14], oracle.goal(item.arm, item.point_above), SIZES['horizon'])
        return torch.tensor(LAYOUT.encode_actions(chunk, names, positions), dtype=torch.float32)


@pytest.fixture(scope='module')
def simulation():
    from oxygen_ros.simulation.simulation import Simulation
    return Simulation(render=False)


@pytest.fixture
def loop(simulation, tmp_path, monkeypatch):
    """Return a function that makes a closed loop with the oracle."""
    (tmp_path / 'model.yaml').write_text(yaml.safe_dump(small_config(
        cameras=['head', 'left_wrist', 'right_wrist'], action_dim=14, prompt_tokens=40,
        action_period=0.1)))
    monkeypatch.setattr(OracleModel, 'simulation', simulation)
    monkeypatch.setattr(closed_loop, 'CostedModel', OracleModel)
    return lambda mode=Mode.SHARED_KV, costs='zero', rates=None, cameras=None: ClosedLoop(
        session_settings(str(tmp_path / 'model.yaml'), 'openarm'), mode, StageCosts.parse(costs), rates or Rates(),
        simulation, cameras)


def episode(simulation, seed=4, target=0, **changes):
    scene = simulation.reset(seed)
    name = scene.objects[target].name
    return Episode(**{'seed': seed, 'kind': 'reach', 'instruction': f'point at the {name}', 'name': name, **changes})


def test_oracle_reaches_its_object_and_the_episode_ends(loop, simulation, monkeypatch):
    result = loop().run(episode(simulation))
    assert result.outcome is Outcome.SUCCESS and result.distance < 0.03 and 1 < result.seconds < 5
    assert result.chunks == pytest.approx(5 * result.seconds, abs=2)
    assert 0 < np.mean(result.gaps) < 0.05 and 0 < result.jerk < 1e5


def test_wrong_object_is_told_from_a_miss(loop, simulation, monkeypatch):
    seed = next(seed for seed in range(50) if len(simulation.reset(seed).objects) >= 2)
    told = episode(simulation, seed, target=1)
    assert loop().run(told, 4.0).outcome is Outcome.WRONG_OBJECT
    assert loop().run(told, 0.5).outcome is Outcome.MISSED


def test_texts_delay_actions_where_they_run_alone_and_not_between_actions(loop, simulation):
    """48 tokens of 10 ms each: longer than the time between two actions."""
    texts = Rates(speech=2.0, memory=1.0)
    costs = 'prefill=20,denoise=20,extend=10,decode=10'
    rates = {}
    for mode in (Mode.SHARED_KV, Mode.CONTINUOUS_BATCHING):
        result = loop(mode, costs, texts).run(episode(simulation), 3.0)
        rates[mode] = result.chunks / result.seconds
    assert rates[Mode.CONTINUOUS_BATCHING] > 4.5 > rates[Mode.SHARED_KV]


def test_episodes_do_not_depend_on_those_before(loop, simulation):
    one = loop()
    first = one.run(episode(simulation))
    one.run(episode(simulation, 5), 1.0)
    again = one.run(episode(simulation))
    assert (again.outcome, again.seconds) == (first.outcome, first.seconds)
    assert again.distance == pytest.approx(first.distance, abs=1e-6)


def test_policy_sees_the_cameras_that_are_shown_to_it(loop, simulation, monkeypatch):
    picture = np.zeros((112, 112, 3), np.uint8)
    monkeypatch.setattr(simulation, 'images', lambda: dict.fromkeys(('head', 'left_wrist', 'right_wrist'), picture))
    for cameras, seen in ((None, {'head', 'left_wrist', 'right_wrist'}), ({'head'}, {'head'})):
        one = loop(cameras=cameras)
        one.run(episode(simulation), 0.3)
        assert set(one.session.engine.model.seen.images) == seen
