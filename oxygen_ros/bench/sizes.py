"""Sizes of the models that predictions are made for: from model files, or as published."""

from __future__ import annotations

from collections.abc import Mapping

from oxygen_ros.bench.work import ActionSizes, DecoderSizes, ModelSizes, VisionSizes
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.registry import ModelFile, read_model_file

PROMPT = 24  # tokens, where nothing else is said

# Qwen3-VL-4B-Instruct, from the config.json that it is published with. A picture of 256 x 256 pixels is 256 patches,
# which a merger joins four by four. Besides the main merger there are three for deeper layers.
_QWEN_MERGER = 4096 * 4096 + 4096 * 2560
_QWEN_VISION = VisionSizes(layers=24, width=1024, mlp=4096, patches=256, pixels=2 * 3 * 16 * 16, outer=4 * _QWEN_MERGER,
                           outer_share=0.25)
_QWEN = DecoderSizes(layers=36, width=2560, mlp=9728, heads=32, kv_heads=8, head_dim=128, vocabulary=151936)


def _xiaomi() -> ModelSizes:
    width, layers, heads = 1024, 16, 8 * 128
    step = layers * (3 * width * heads + heads * width + 3 * width * 4096)
    action = ActionSizes(step, tokens=32, attention=layers * heads, kv_numbers=2 * layers * heads, steps=5)
    return ModelSizes('xiaomi_robotics_0', _QWEN_VISION, _QWEN, action, cameras=2, image_tokens=64, prompt=40,
                      source='published config.json: Qwen3-VL-4B, action head of 16 layers and width 1024')


def _starvla() -> ModelSizes:
    """QwenPI_v3: 36 blocks that attend to the projected hidden states of the decoder; K and V once per frame."""
    width, layers = 1024, 36
    step = layers * (2 * width**2 + 8 * width**2)
    frame = layers * (_QWEN.width * width + 2 * width**2)
    action = ActionSizes(step, tokens=17, attention=layers * width, kv_numbers=2 * layers * width, steps=4,
                         frame_weights=frame, fixed_weights=layers * 2 * width**2)
    return ModelSizes('starvla_pi_v3', _QWEN_VISION, _QWEN, action, cameras=1, image_tokens=64, prompt=40,
                      source='published sizes of QwenPI_v3 on Qwen3-VL-4B: 36 blocks of width 1024')


PUBLISHED = {'xiaomi_robotics_0': _xiaomi, 'starvla_pi_v3': _starvla}


def sizes_of(name: str) -> ModelSizes:
    """
    Return the sizes of a model: of a model file that gives sizes, or of one of `PUBLISHED`.

    :raises ConfigError: the model file does not exist, or gives no sizes.
    """
    if name in PUBLISHED:
        return PUBLISHED[name]()
    file = read_model_file(name)
    if not {'vision', 'decoder', 'expert'} <= set(file.content):
        raise ConfigError(f'model file {file.name} gives no sizes (they are in its checkpoint): choose another, or one '
                          f'of {list(PUBLISHED)}')
    return _pi0(file)


def _pi0(file: ModelFile) -> ModelSizes:
    from oxygen_ros.models.pi05_config import VARIANTS  # torch comes with it

    config = file.content

    def gemma(part: str | Mapping) -> DecoderSizes:
        if isinstance(part, str):
            c = VARIANTS[part]
            part = {'width': c.width, 'depth': c.depth, 'mlp': c.mlp, 'heads': c.heads, 'kv_heads': c.kv_heads,
                    'head_dim': c.head_dim}
        vocabulary = config.get('vocabulary') or 256 + len(config.get('words', '').split())
        return DecoderSizes(part['depth'], part['width'], part['mlp'], part['heads'], part['kv_heads'],
                            part['head_dim'], vocabulary)

    vision, decoder, expert = config['vision'], gemma(config['decoder']), gemma(config['expert'])
    patches = (vision['image'] // vision['patch'])**2
    tower = VisionSizes(vision['layers'], vision['width'], vision['mlp'], patches, 3 * vision['patch']**2,
                        vision['width'] * decoder.width)
    step = expert.layers * expert.layer_weights + 2 * config['action_dim'] * expert.width
    action = ActionSizes(step, config['horizon'], expert.layers * expert.heads * expert.head_dim, decoder.kv_numbers,
                         config['denoise_steps'],
                         # Adaptive norms and the time condition: their outputs for a schedule are computed once.
                         fixed_weights=(2 * expert.layers + 1) * 3 * expert.width**2 + 2 * expert.width**2)
    return ModelSizes(file.name, tower, decoder, action, len(config['cameras']), patches, PROMPT,
                      f'model file {file.name}')
