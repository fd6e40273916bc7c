"""A lifecycle node refuses transitions that its state does not have, and goes on."""

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.lifecycle import LifecycleNode

from oxygen_ros.nodes.lifecycle_requests import refuse_impossible_transitions


class Managed(LifecycleNode):
    def __init__(self, **options):
        super().__init__('managed', **options)
        refuse_impossible_transitions(self)


def test_impossible_transitions_are_refused_and_the_node_goes_on(ros_graph):
    ros_graph.add(Managed)
    change = ros_graph.node.create_client(ChangeState, 'managed/change_state')
    state = ros_graph.node.create_client(GetState, 'managed/get_state')

    def call(client, request):
        assert ros_graph.spin_until(client.service_is_ready)
        answer = client.call_async(request)
        assert ros_graph.spin_until(answer.done)
        return answer.result()

    def request(number, label=''):
        return call(change, ChangeState.Request(transition=Transition(id=number, label=label))).success

    assert not request(Transition.TRANSITION_ACTIVATE)  # before it is configured
    assert not request(0, 'activate')
    assert not request(77)
    assert request(Transition.TRANSITION_CONFIGURE)
    assert not request(Transition.TRANSITION_CONFIGURE)
    assert request(Transition.TRANSITION_ACTIVATE)
    assert not request(Transition.TRANSITION_ACTIVATE)
    assert not request(Transition.TRANSITION_CLEANUP)
    assert call(state, GetState.Request()).current_state.label == 'active'
