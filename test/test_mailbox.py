"""Work from other threads: in order, each once, also when an item empties the mailbox itself."""

from types import SimpleNamespace

from oxygen_ros.nodes.mailbox import Mailbox


def mailbox():
    node = SimpleNamespace(create_guard_condition=lambda callback: SimpleNamespace(trigger=lambda: None), executor=None)
    return Mailbox(node)


def test_items_run_in_order_and_once():
    box, done = mailbox(), []
    for number in range(3):
        box.put(lambda number=number: done.append(number))
    box.drain()
    box.drain()
    assert done == [0, 1, 2]


def test_item_may_empty_the_mailbox_itself():
    box, done = mailbox(), []
    box.put(lambda: (done.append('first'), box.drain(), done.append('first ends')))
    box.put(lambda: done.append('second'))
    box.drain()
    assert done == ['first', 'second', 'first ends']


def test_item_put_meanwhile_waits_for_the_next_time():
    box, done = mailbox(), []
    box.put(lambda: box.put(lambda: done.append('later')))
    box.drain()
    assert done == []
    box.drain()
    assert done == ['later']
