"""Nothing is downloaded: no model, tokenizer or recording makes this program ask the network for anything."""

import json
import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).parent / 'data'
# Python tells its audit hooks of every connection and look-up, also those of libraries.
SCRIPT = '''
import json, sys
asked = []

def watch(event, arguments):
    if event in ('socket.getaddrinfo', 'socket.gethostbyname', 'urllib.Request') or (
            event in ('socket.connect', 'socket.sendto') and not isinstance(arguments[1], (str, bytes))):  # not AF_UNIX
        asked.append((event, *map(str, arguments)))

sys.addaudithook(watch)
from oxygen_ros.cli import main
code = max(main(words) for words in json.loads(sys.argv[1]))
assert 'torch' in sys.modules
sys.exit(f'asked for {asked}' if asked else code)
'''


COMMANDS = (
    ('verify', DATA / 'golden' / 'starvla' / 'qwenoft_b', '--mode', 'shared_kv', '--branches', '1'),
    ('verify', DATA / 'golden' / 'xiaomi' / 'xr0_b', '--mode', 'shared_kv', '--branches', '1'),
    ('offline', DATA / 'bags' / 'g1_two_cameras', '--duration', '0.5', '--no-picture', '-o', 'out'))


def test_commands_ask_the_network_for_nothing(tmp_path):
    words = json.dumps([list(map(str, command)) for command in COMMANDS])
    run = subprocess.run([sys.executable, '-c', SCRIPT, words], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_watch_sees_what_a_library_asks_for():
    script = SCRIPT.replace('code = max(main(words) for words in json.loads(sys.argv[1]))', '''import socket, torch
try:
    socket.create_connection(("127.0.0.1", 9), 0.1)
except OSError:
    code = 0''')
    run = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True)
    assert run.returncode and 'socket.connect' in run.stderr
