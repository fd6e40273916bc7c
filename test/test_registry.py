"""Model files, and what is wrong with them, in one line."""

import pytest
import yaml
from small_policy import small_config

from oxygen_ros.errors import ConfigError
from oxygen_ros.files import config_names
from oxygen_ros.models.registry import LoadOptions, load_model, read_model_file
from oxygen_ros.models.tiny import TinyModel


def written(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_unknown_model_names_the_choices():
    with pytest.raises(ConfigError, match="unknown model 'giant'.*tiny"):
        read_model_file('giant')


@pytest.mark.parametrize(('text', 'message'), [
    ('family: tiny', 'lacks layout'), ('layout: x', 'lacks family'), ('[1, 2]', 'lacks family and layout'),
    ('', 'lacks family and layout'), ('a: [', 'not valid YAML'), (b'\xff\xfe\x00', 'not valid YAML'),
    ('{family: tiny, layout: x, ensemble: 1}', 'ensemble 1 must be'),
    ('{family: tiny, layout: x, ensemble: much}', 'ensemble .much. must be'),
    ('{family: giant, layout: x}', "unknown family 'giant'"), ('{family: [tiny], layout: x}', 'unknown family')])
def test_broken_model_file_is_one_clear_line(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as error:
        read_model_file(written(tmp_path / 'model.yaml', text))
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('change', [
    {'words': None}, {'words': ['a', 'b']}, {'words': 'cup cup'}, {'vision': {'image': 30}}, {'vision': 7},
    {'decoder': {'width': 8, 'depth': 1, 'mlp': 8, 'heads': 3, 'kv_heads': 2, 'head_dim': 4}}, {'horizon': 'many'}])
def test_wrong_value_in_a_model_file_is_one_clear_line(tmp_path, change):
    path = written(tmp_path / 'mine.yaml', yaml.safe_dump({**small_config(), **change}))
    with pytest.raises(ConfigError, match='model file mine') as error:
        load_model(read_model_file(path), LoadOptions())
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('key', ['words', 'cameras', 'vision', 'decoder', 'expert', 'horizon', 'prompt_tokens'])
def test_missing_key_in_a_model_file_is_named(tmp_path, key):
    config = small_config()
    del config[key]
    path = written(tmp_path / 'mine.yaml', yaml.safe_dump(config))
    with pytest.raises(ConfigError, match=f"lacks the key '{key}'"):
        load_model(read_model_file(path), LoadOptions())


def test_missing_checkpoint_and_device_are_named(tmp_path):
    file = read_model_file('tiny')
    with pytest.raises(ConfigError, match='is not a directory'):
        load_model(file, LoadOptions(checkpoint=tmp_path / 'nowhere'))
    for device in ('cuda:99', 'gpu'):
        with pytest.raises(ConfigError, match=f"device '{device}' is not available"):
            load_model(file, LoadOptions(device=device))


def test_model_file_may_be_given_by_path(tmp_path):
    path = tmp_path / 'copy.yaml'
    path.write_text(yaml.safe_dump(small_config()))
    file = read_model_file(str(path))
    assert file.name == 'copy' and isinstance(load_model(file, LoadOptions()), TinyModel)


def test_every_shipped_model_file_can_be_read():
    names = config_names('models')
    assert 'tiny' in names
    for name in names:
        assert read_model_file(name).name == name
