"""An engine that fails: the node makes the robot safe, answers who waits, and can be configured again."""

import subprocess
import sys

import pytest
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState

from oxygen_ros.msg import TextChunk
from oxygen_ros.srv import Ask, Stop

FAILING = '''
import sys
from oxygen_ros.cli import main
from oxygen_ros.engine.engine import Engine

def fail(engine):
    raise RuntimeError('a fault of the test')

Engine.cancel_action = fail  # the service stop calls it
sys.exit(main(sys.argv[1:]))
'''


class Caller:
    """Calls services of an inference node whose engine fails when the robot is stopped."""

    def __init__(self, graph, folder):
        self.graph = graph
        graph._processes.append(subprocess.Popen(
            [sys.executable, '-c', FAILING, 'inference', '-p', f'memory.path:={folder}/memory.db'], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        self.clients = {kind: graph.node.create_client(kind, name) for kind, name in (
            (ChangeState, 'inference/change_state'), (GetState, 'inference/get_state'), (Ask, 'ask'), (Stop, 'stop'))}
        assert graph.spin_until(lambda: all(client.service_is_ready() for client in self.clients.values()))
        graph.spin_for(0.5)  # until the node knows our ends as well

    def begin(self, kind, **fields):
        return self.clients[kind].call_async(kind.Request(**fields))

    def result(self, future):
        assert self.graph.spin_until(future.done, 20)
        return future.result()

    def change(self, number):
        return self.begin(ChangeState, transition=Transition(id=number))

    def start(self):
        for number in (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE):
            assert self.result(self.change(number)).success

    def state(self):
        return self.result(self.begin(GetState)).current_state.id


@pytest.fixture
def caller(ros_graph, tmp_path):
    return Caller(ros_graph, tmp_path)


def test_a_call_that_waits_for_its_answer_hears_that_the_engine_failed(caller):
    caller.start()
    asked = caller.begin(Ask, question='what do you see?', wait=True, timeout=600.0)
    caller.graph.spin_for(0.5)
    assert not asked.done()
    caller.result(caller.begin(Stop))
    answer = caller.result(asked)
    assert (answer.finish_reason, answer.message) == (TextChunk.ERROR, 'the engine has failed')
    assert caller.state() == State.PRIMARY_STATE_UNCONFIGURED
    caller.start()


def test_engine_that_fails_while_it_is_deactivated_leaves_a_node_that_starts_again(caller):
    for _ in range(4):
        caller.start()
        stopped, deactivated = caller.begin(Stop), caller.change(Transition.TRANSITION_DEACTIVATE)
        caller.result(stopped)
        caller.result(deactivated)
        assert caller.graph.spin_until(lambda: caller.state() == State.PRIMARY_STATE_UNCONFIGURED)
