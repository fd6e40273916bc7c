"""Parameters of the inference node, and the settings that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from oxygen_ros.engine.compiling import Compile
from oxygen_ros.engine.engine import EngineConfig
from oxygen_ros.engine.graphs import Graphs
from oxygen_ros.engine.requests import LONGEST_TIMEOUT, BargeIn
from oxygen_ros.engine.scheduler import Mode, SchedulerConfig
from oxygen_ros.memory.keeper import MemoryKeeper
from oxygen_ros.memory.store import MemoryStore
from oxygen_ros.models.packing import Packing
from oxygen_ros.models.realtime_chunking import ChunkingMethod
from oxygen_ros.models.registry import DTYPES
from oxygen_ros.parameters import NodeParameter
from oxygen_ros.robot.chunk_buffer import WhenEmpty
from oxygen_ros.tasks.continuation import ContinuationSettings
from oxygen_ros.tasks.session import SessionSettings, TextSettings


def _text_parameters(task: str, what: str, defaults: TextSettings) -> tuple[NodeParameter, ...]:
    return (
        NodeParameter(f'{task}.max_tokens', defaults.max_tokens, f'Most tokens of {what}.', 1, 4096),
        NodeParameter(f'{task}.temperature', defaults.temperature, f'Sampling temperature of {what}; 0 is greedy.', 0.0,
                      10.0),
        NodeParameter(f'{task}.top_p', defaults.top_p, f'Nucleus of tokens that {what} is sampled from.', 0.01, 1.0),
        NodeParameter(f'{task}.timeout', defaults.timeout, f'Seconds after which {what} is given up.', 0.1,
                      LONGEST_TIMEOUT),
        NodeParameter(f'{task}.queue_limit', defaults.queue_limit, f'Most that wait at once of {what}.', 1, 1000),
        NodeParameter(f'{task}.stop', defaults.stop, f'Strings that end {what} where they would appear. Empty: none.'),
    )


PARAMETERS = (
    NodeParameter('autostart', False, 'Configure and activate by itself at start.'),
    NodeParameter('model', 'tiny', 'Model: a name in config/models or a path to a YAML file.'),
    NodeParameter('checkpoint', '', 'Directory with the weights; empty for those of the model file, else random ones.'),
    NodeParameter('robot', 'unitree_g1', 'Robot: a name in config/robots or a path to a YAML file.'),
    NodeParameter('device', 'cpu', 'torch device of the model, for example cpu, cuda or cuda:1.'),
    NodeParameter('dtype', 'float32', 'Number type of weights and KV cache.', choices=tuple(DTYPES)),
    NodeParameter('packing', Packing.AUTO.value, 'Form in which the weights are kept: as loaded (plain), column by '
                  'column, or in the blocks of oneDNN; auto takes what is best for device and dtype.',
                  choices=tuple(form.value for form in Packing)),
    NodeParameter('compile', Compile.OFF.value, 'Compile what lies between the matrix products of a layer; auto where '
                  'a measurement at the start finds it faster. Needs a C++ compiler, and a minute the first time.',
                  choices=tuple(choice.value for choice in Compile)),
    NodeParameter('graphs', Graphs.AUTO.value, 'Replay decode steps and denoising as CUDA graphs; auto where a '
                  'measurement at the start finds them faster. Without a CUDA device there are none.',
                  choices=tuple(choice.value for choice in Graphs)),
    NodeParameter('threads', 0, 'CPU threads of torch; 0 takes half of the cores.', 0, 1024),
    NodeParameter('seed', 0, 'Seed of random weights, action noise and sampling.', 0, 2**31 - 1),
    NodeParameter('mode', Mode.CONTINUOUS_BATCHING.value, 'How tasks share the model.',
                  choices=tuple(mode.value for mode in Mode)),
    NodeParameter('tokens_per_cycle', 0, 'Decode steps per action cycle; 0 decodes as long as time allows.', 0, 10000),
    NodeParameter('deadline_margin', 0.005, 'Seconds kept free before an action has to begin.', 0.0, 1.0),
    NodeParameter('text_frame_age', 0.5, 'Seconds by which the frame of a new text may be older than the newest.',
                  0.0, 60.0),
    NodeParameter('stream_interval', 0.05, 'Shortest time in seconds between two pieces of one text.', 0.0, 10.0),
    NodeParameter('kv_budget_mib', 1024.0, 'Hard limit of the KV cache in MiB.', 0.1, 1e6),
    NodeParameter('max_branches', 8, 'Most texts that decode at the same time; the last only for questions.', 1, 256),
    NodeParameter('branch_tokens', 160, 'Most tokens of one text with its prompt.', 8, 65536),
    NodeParameter('max_frames', 0, 'Frames whose KV is kept; 0 takes max_branches + 2.', 0, 1024),
    NodeParameter('instruction', 'look around', 'What the robot shall do until it is told otherwise.'),
    NodeParameter('action.rate', 5.0, 'Action chunks per second; 0 switches actions off.', 0.0, 100.0),
    NodeParameter('action.failures', 10, 'Actions in a row that may fail (the model raises, or gives no finite '
                  'numbers) before the node holds the robot and goes to its error state.', 0, 100_000),
    NodeParameter('action.denoise_steps', 0, 'Flow-matching steps; 0 takes the default of the model.', 0, 1000),
    NodeParameter('action.chunking', 'off', 'How a chunk goes on from the one in execution; trained needs weights that '
                  'were trained so.', choices=('off', *(method.value for method in ChunkingMethod))),
    NodeParameter('action.chunking_reach', 0, 'Actions from which on a chunk is free of the one before; 0 is as far as '
                  'that one goes.', 0, 1000),
    NodeParameter('engine_timeout', 10.0, 'Seconds that one call of the model may take before it counts as hanging: '
                  'the robot holds, and the node goes to its error state.', 0.5, 3600.0),
    NodeParameter('max_frame_age', 0.5, 'Seconds (by its stamp) beyond which a frame is not acted on.', 0.01, 60.0),
    NodeParameter('subtask.rate', 0.0, 'Times per second that the model says what to do next, which becomes the '
                  'instruction of its actions; 0 acts on the instruction itself.', 0.0, 100.0),
    *_text_parameters('subtask', 'a subtask', TextSettings(max_tokens=24, timeout=5.0, queue_limit=1)),
    NodeParameter('speech.rate', 2.0, 'Spoken lines started per second; 0 switches the narration off.', 0.0, 100.0),
    *_text_parameters('speech', 'a spoken line', TextSettings(max_tokens=24, temperature=0.7)),
    *_text_parameters('answer', 'an answer', TextSettings(max_tokens=48, temperature=0.7, queue_limit=8)),
    NodeParameter('answer.barge_in', BargeIn.SUPERSEDE.value, 'What the next utterance does to an answer that is not '
                  'finished: end it, wait for its end, or start beside it.',
                  choices=tuple(choice.value for choice in BargeIn)),
    NodeParameter('answer.history', 4, 'Last exchanges of a conversation that the prompt of an answer tells, if the '
                  'model was trained for it.', 0, 64),
    NodeParameter('answer.memory_notes', 3, 'Most notes from memory that the prompt of an answer quotes, if the model '
                  'was trained for it; 0 quotes none.', 0, 50),
    NodeParameter('text_repetitions', 4, 'A text ends when the same piece comes so many times in a row; 0 never.', 0,
                  100),
    NodeParameter('memory.rate', 0.5, 'Memory notes started per second; 0 switches memory off.', 0.0, 100.0),
    *_text_parameters('memory', 'a memory note', TextSettings(max_tokens=32, temperature=0.7, queue_limit=1)),
    NodeParameter('memory.path', '~/.ros/oxygen_ros/memory.db', 'Database file of the memory.'),
    NodeParameter('memory.max_entries', 100_000, 'Memory entries kept; the oldest go first.', 1, 100_000_000),
    NodeParameter('memory.max_age', 0.0, 'Seconds after which a memory entry goes; 0 keeps it.', 0.0),
    NodeParameter('memory.max_bytes', 100_000_000, 'Bytes of text and pictures that memory keeps.', 1),
    NodeParameter('memory.thumbnail', 128, 'Longer side of the picture kept with a note, in pixels; 0 keeps none.', 0,
                  2048),
    NodeParameter('memory.pose_topic', '', 'Topic of geometry_msgs/PoseStamped: where the robot was, kept with the '
                  'notes. Empty: none.'),
    NodeParameter('memory.embedding', '', 'Sentence encoder for searching memory by meaning: minilm (from the optional '
                  'part embedding) or a folder. Empty: none.'),
    NodeParameter('command.rate', 50.0, 'Joint commands per second.', 1.0, 1000.0),
    NodeParameter('command.blend_time', 0.1, 'Seconds in which a new chunk takes over from the one before.', 0.0, 5.0),
    NodeParameter('command.start_time', 0.5, 'Seconds in which the first chunk takes over from where the robot is; not '
                  'with a blend_time of 0.', 0.0, 10.0),
    NodeParameter('command.ensemble', -1.0, 'Weight of earlier chunks where they overlap with a new one, below 1 '
                  '(temporal ensembling); 0: the new one alone, -1: what the model file says.', -1.0, 0.99),
    NodeParameter('command.lifetime', 1.0, 'Seconds after the stamp of their frame when commands expire.', 0.05, 60.0),
    NodeParameter('command.when_empty', WhenEmpty.HOLD.value, 'When chunks run out: hold, or stop commanding.',
                  choices=tuple(choice.value for choice in WhenEmpty)),
    NodeParameter('command.forward_controller', '', 'Node name of a forward_command_controller that gets the positions '
                  'as well, in the order of its parameter joints. Empty: none.'),
    NodeParameter('dry_run', False, 'Publish nothing that moves the robot.'),
    NodeParameter('allow_random_weights', False, 'Publish commands even with random weights (tests, demonstrations).'),
    NodeParameter('trace_file', '', 'File for a trace of the engine in the Chrome format; empty writes none.'),
)


def session_settings(values: Mapping[str, Any]) -> SessionSettings:
    """Return the settings that the parameters make."""
    def text(task: str) -> TextSettings:
        return TextSettings(**{name: values[f'{task}.{name}']
                               for name in ('max_tokens', 'temperature', 'top_p', 'timeout', 'queue_limit')},
                            stop=tuple(filter(None, values[f'{task}.stop'])))

    scheduler = SchedulerConfig(Mode(values['mode']), values['tokens_per_cycle'], values['deadline_margin'],
                                values['text_frame_age'])
    engine = EngineConfig(
        scheduler, max_branches=values['max_branches'], branch_tokens=values['branch_tokens'],
        max_frames=values['max_frames'], kv_budget_mib=values['kv_budget_mib'],
        denoise_steps=values['action.denoise_steps'], seed=values['seed'], max_frame_age=values['max_frame_age'],
        stream_interval=values['stream_interval'], packing=Packing(values['packing']),
        compile=Compile(values['compile']), graphs=Graphs(values['graphs']), history=values['answer.history'],
        repetitions=values['text_repetitions'], failures_allowed=values['action.failures'])
    chunking = values['action.chunking']
    continuation = ContinuationSettings(None if chunking == 'off' else ChunkingMethod(chunking),
                                        reach=values['action.chunking_reach'])
    return SessionSettings(
        model=values['model'], checkpoint=values['checkpoint'], robot=values['robot'], device=values['device'],
        dtype=values['dtype'], seed=values['seed'], engine=engine, answer=text('answer'), speech=text('speech'),
        memory=text('memory'), subtask=text('subtask'), blend_time=values['command.blend_time'],
        start_time=values['command.start_time'], ensemble=values['command.ensemble'],
        command_lifetime=values['command.lifetime'], when_empty=values['command.when_empty'],
        continuation=continuation, barge_in=BargeIn(values['answer.barge_in']))


def memory_keeper(values: Mapping[str, Any], report: Callable[[str], None]) -> MemoryKeeper:
    """
    Open the memory that the parameters describe; see `MemoryKeeper`.

    :raises ConfigError: the file belongs to another program, or there is no such encoder.
    :raises MemoryStoreError: there can be no file at the path.
    """
    path = Path(values['memory.path']).expanduser()
    embedder = None
    if values['memory.embedding']:
        from oxygen_ros.memory.embedding import Embedder, encoder_folder
        embedder = Embedder(encoder_folder(values['memory.embedding']))

    def open_store() -> MemoryStore:
        return MemoryStore(path, max_entries=values['memory.max_entries'],
                           max_age_ns=round(values['memory.max_age'] * 1e9) or None,
                           max_bytes=values['memory.max_bytes'])

    return MemoryKeeper(path, open_store, report, values['memory.thumbnail'], embedder)
