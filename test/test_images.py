"""Pictures of every encoding and dialect, whole and damaged, become RGB or are refused with a reason."""

import io
import json
import random
import tracemalloc
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as PilImage
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image

from oxygen_ros.nodes.conversion import picture_decoder
from oxygen_ros.perception import compressed
from oxygen_ros.perception.compressed import decode_compressed
from oxygen_ros.perception.images import MAX_PIXELS, ImageError, ImageFault, decode_raw

CASES = Path(__file__).parent / 'data' / 'cases'
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def message(case, name):
    kind = {'sensor_msgs/msg/Image': Image, 'sensor_msgs/msg/CompressedImage': CompressedImage}
    types = expected(case, 'msg_types')
    return deserialize_message((CASES / case / f'{name}.cdr').read_bytes(), kind[types[f'{name}.cdr']])


def expected(case, key='expected'):
    return json.loads((CASES / case / 'case.json').read_text())[key]


def decode(case, name):
    return picture_decoder(message(case, name))()


def fault(case, name):
    with pytest.raises(ImageError) as error:
        decode(case, name)
    return error.value


def encoded(picture, kind, **options):
    buffer = io.BytesIO()
    PilImage.fromarray(picture).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize('name', ['padded', 'last_row_unpadded'])
def test_row_padding_is_no_part_of_the_picture(name):
    assert decode('01-rgb8-step-padding', name).tolist() == expected('01-rgb8-step-padding')['rgb']


def test_16_bit_values_are_read_in_their_byte_order_and_scaled():
    values = np.array(expected('02-16uc1-big-endian')['values'])
    for name in ('depth_be', 'depth_le', 'mono16_be'):
        picture = decode('02-16uc1-big-endian', name)
        assert (picture == np.rint(values / 257)[..., None]).all()


@pytest.mark.parametrize('name', ['rgba8', 'bgra8'])
def test_alpha_is_dropped_not_blended(name):
    assert decode('03-bgra8-rgba8-alpha', name).tolist() == expected('03-bgra8-rgba8-alpha')['rgb']


@pytest.mark.parametrize('name', ['yuv422', 'uyvy', 'yuv422_yuy2', 'yuyv'])
def test_both_byte_orders_of_yuv422(name):
    wanted = np.array(expected('05-yuv422-byte-orders')['rgb_bt601_limited'])
    assert abs(decode('05-yuv422-byte-orders', name).astype(int) - wanted).max() <= 8


def test_too_few_bytes_are_refused_with_both_sizes():
    error = fault('07-image-data-too-short', 'short')
    assert error.fault is ImageFault.TOO_SHORT
    assert '921600' in str(error) and '30' in str(error)
    assert decode('07-image-data-too-short', 'good_10')[0, 0, 0] == 10


@pytest.mark.parametrize('name', ['bad_step', 'bad_step_rgb'])
def test_step_smaller_than_a_row_is_refused(name):
    assert fault('08-step-smaller-than-row', name).fault is ImageFault.BAD_SIZE


def test_unset_step_is_taken_from_the_width():
    assert decode('09-step-zero-and-empty-picture', 'step0').tolist() == expected(
        '09-step-zero-and-empty-picture')['rgb_if_accepted']
    assert fault('09-step-zero-and-empty-picture', 'w0h0').fault is ImageFault.EMPTY


def test_unset_step_with_another_size_is_refused():
    with pytest.raises(ImageError, match='step 0'):
        decode_raw('rgb8', 2, 2, 0, False, bytes(13))


@pytest.mark.parametrize('name', ['rgb8', 'bgr8'])
def test_rgb_and_bgr_give_the_same_picture(name):
    picture = decode('10-rgb8-bgr8-same-scene', name)
    assert picture[:2].reshape(-1, 3).tolist() == [[220, 30, 10]] * (picture[:2].size // 3)
    assert picture[2:].reshape(-1, 3).tolist() == [[15, 40, 230]] * (picture[2:].size // 3)


def test_unknown_encodings_are_refused_by_name():
    for name, word in (('foo8', 'foo8'), ('empty', "''")):
        error = fault('13-unknown-encoding-names', name)
        assert error.fault is ImageFault.UNKNOWN_ENCODING and word in str(error)
    assert decode('13-unknown-encoding-names', 'upper')[0, 0].tolist() == [200, 100, 50]


def test_encoding_without_channel_order_is_refused_unless_told():
    assert fault('13-unknown-encoding-names', '8uc3').fault is ImageFault.CHANNEL_ORDER
    image = message('13-unknown-encoding-names', '8uc3')
    assert picture_decoder(image, 'rgb')()[0, 0].tolist() == [200, 100, 50]
    assert picture_decoder(image, 'bgr')()[0, 0].tolist() == [50, 100, 200]
    assert decode_raw('8UC4', 1, 1, 4, False, bytes((1, 2, 3, 0)), channel_order='bgr').tolist() == [[[3, 2, 1]]]


@pytest.mark.parametrize('name', ['4g', '60k'])
def test_huge_declared_size_is_refused_before_allocation(name):
    tracemalloc.start()
    assert fault('14-huge-declared-size', name).fault is ImageFault.TOO_LARGE
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


@pytest.mark.parametrize('pattern', ['rggb', 'bggr', 'gbrg', 'grbg'])
@pytest.mark.parametrize('wide', [False, True])
def test_bayer_patterns_name_the_first_two_rows(pattern, wide):
    colours = {'r': 200, 'g': 100, 'b': 50}
    tile = np.array([colours[letter] for letter in pattern], np.uint16).reshape(2, 2)
    mosaic = np.tile(tile, (4, 4)) * (257 if wide else 1)
    mosaic = mosaic if wide else mosaic.astype(np.uint8)
    picture = decode_raw(f'bayer_{pattern}{16 if wide else 8}', 8, 8, mosaic.strides[0], False, mosaic.tobytes())
    assert (picture[2:-2, 2:-2] == (200, 100, 50)).all()


@pytest.mark.parametrize('encoding', ['nv12', 'nv21'])
def test_planar_yuv_with_padded_rows(encoding):
    colours = np.array([[RED, BLUE], [GREEN, (255, 255, 255)]], np.uint8).repeat(2, 0).repeat(2, 1)
    yuv = cv2.cvtColor(colours, cv2.COLOR_RGB2YUV_I420)
    u, v = yuv[4].reshape(2, 2), yuv[5].reshape(2, 2)
    plane = np.stack((u, v) if encoding == 'nv12' else (v, u), axis=-1).reshape(2, 4)
    rows = np.full((6, 7), 238, np.uint8)
    rows[:4, :4], rows[4:, :4] = yuv[:4], plane
    picture = decode_raw(encoding, 4, 4, 7, False, rows.tobytes())
    assert abs(picture.astype(int) - colours).max() <= 8


def test_other_raw_encodings():
    assert decode_raw('mono8', 1, 2, 2, False, bytes((7, 9))).tolist() == [[[7] * 3, [9] * 3]]
    assert decode_raw('8UC1', 1, 1, 1, False, b'\x07').tolist() == [[[7] * 3]]
    wide = np.array([[[65535, 257, 0]]], '>u2').tobytes()
    assert decode_raw('rgb16', 1, 1, 6, True, wide).tolist() == [[[255, 1, 0]]]
    assert decode_raw('bgr16', 1, 1, 6, True, wide).tolist() == [[[0, 1, 255]]]


@pytest.mark.parametrize('encoding, height, width', [('yuv422', 2, 3), ('nv12', 3, 4), ('nv12', 4, 3),
                                                     ('bayer_rggb8', 2, 8)])
def test_sizes_that_an_encoding_cannot_have_are_refused(encoding, height, width):
    with pytest.raises(ImageError) as error:
        decode_raw(encoding, height, width, 16, False, bytes(1000))
    assert error.value.fault is ImageFault.BAD_SIZE


def test_truncated_jpeg_is_refused_not_filled_with_grey():
    case = '15-jpeg-truncated'
    assert fault(case, 'half').fault is ImageFault.TRUNCATED
    for name in ('good', 'good2'):
        picture = decode(case, name)
        assert list(picture.shape) == expected(case)['shape']
        assert abs(picture.mean((0, 1)) - expected(case)['mean_rgb']).max() <= 2


def test_truncated_jpeg_with_a_thumbnail_that_has_an_end_is_refused():
    thumbnail = encoded(np.zeros((16, 16, 3), np.uint8), 'JPEG')
    picture = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    data = encoded(picture, 'JPEG', exif=b'Exif\0\0' + thumbnail)
    assert decode_compressed('jpeg', data).shape == (64, 64, 3)
    with pytest.raises(ImageError) as error:
        decode_compressed('jpeg', data[:-len(data) // 3])
    assert error.value.fault is ImageFault.TRUNCATED


def test_jpeg_is_not_turned_by_its_orientation_tag():
    exif = PilImage.Exif()
    exif[0x0112] = 6
    assert decode_compressed('jpeg', encoded(np.zeros((16, 32, 3), np.uint8), 'JPEG', exif=exif)).shape == (16, 32, 3)


def test_jpeg_in_print_colours_is_decoded():
    buffer = io.BytesIO()
    PilImage.new('CMYK', (8, 8), (0, 255, 255, 0)).save(buffer, 'JPEG')
    assert abs(decode_compressed('jpeg', buffer.getvalue()).astype(int) - (255, 0, 0)).max() <= 3


@pytest.mark.parametrize('options', [{}, {'progressive': True}, {'subsampling': 0}, {'subsampling': 1}, {'quality': 20},
                                     {'optimize': True}, {'keep_rgb': True}, {'comment': b'\xff\xd9'},
                                     {'restart_marker_blocks': 2}])
@pytest.mark.parametrize('shape', [(33, 47, 3), (33, 47), (16, 16, 3), (1, 1, 3)])
def test_jpeg_has_the_pixels_of_pillow_and_does_not_need_it(monkeypatch, options, shape):
    picture = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    data = encoded(cv2.blur(picture, (3, 3)), 'JPEG', **options)
    expected = np.asarray(PilImage.open(io.BytesIO(data)).convert('RGB'))
    monkeypatch.setattr(compressed.PilImage, 'open', None)
    assert (decode_compressed('jpeg', data) == expected).all()


def test_jpeg_of_endless_scans_is_refused_before_it_takes_minutes():
    data = encoded(np.zeros((16, 16, 3), np.uint8), 'JPEG', progressive=True)
    last = data.rfind(b'\xff\xda')
    with pytest.raises(ImageError, match='scans') as error:
        decode_compressed('jpeg', data[:last] + data[last:-2] * 1000 + data[-2:])
    assert error.value.fault is ImageFault.TOO_LARGE


def test_jpeg_with_a_gap_between_its_segments_is_left_to_pillow():
    data = encoded(np.full((16, 16, 3), 90, np.uint8), 'JPEG')
    for between in (b'\xff' * 3, b'\x00'):
        try:
            picture = decode_compressed('jpeg', data[:2] + between + data[2:])
        except ImageError as error:
            assert error.fault in (ImageFault.TRUNCATED, ImageFault.CORRUPT, ImageFault.UNKNOWN_FORMAT)
        else:
            assert (picture == 90).all()


@pytest.mark.parametrize('name', ['no_eoi', 'damaged_middle'])
def test_slightly_damaged_jpeg_is_decoded_or_refused(name):
    try:
        assert list(decode('15-jpeg-truncated', name).shape) == expected('15-jpeg-truncated')['shape']
    except ImageError as error:
        assert error.fault in (ImageFault.TRUNCATED, ImageFault.CORRUPT)


@pytest.mark.parametrize('name', ['jpeg', 'jpg', 'JPEG', 'rgb8_jpeg', 'bgr8_jpeg', 'png', 'bgr8_png',
                                  'yuy2_jpeg_mono', 'mono8_png'])
def test_every_dialect_of_the_format_text_gives_rgb(name):
    picture = decode('17-format-string-variants', name).astype(int)
    assert picture.shape == (16, 16, 3)
    wanted, tolerance = ((90, 90, 90), 3) if 'mono' in name else ((200, 30, 60), 0 if 'png' in name else 5)
    assert abs(picture - wanted).max() <= tolerance


@pytest.mark.parametrize('text', ['16UC1; compressedDepth png', '32FC1; compressedDepth rvl', 'compressedDepth'])
def test_compressed_depth_is_refused_by_name_whatever_its_bytes(text):
    png = io.BytesIO()
    PilImage.new('I;16', (4, 4), 1000).save(png, 'PNG')
    for data in (bytes(12) + png.getvalue(), png.getvalue(), b''):
        with pytest.raises(ImageError, match='compressedDepth.*colour topic') as error:
            decode_compressed(text, data)
        assert error.value.fault is ImageFault.DEPTH


def test_every_refusal_names_the_encoding_or_format():
    bad = [('rgb8', 0, 2, 6, b''), ('nv12', 2**16, 2**16, 2**16, b''), ('BGR8', 2, 2, 6, b'123'),
           ('foo9', 1, 1, 1, b'1')]
    for encoding, height, width, step, data in bad:
        with pytest.raises(ImageError, match=encoding):
            decode_raw(encoding, height, width, step, False, data)
    png = io.BytesIO()
    PilImage.new('RGB', (30, 20)).save(png, 'PNG')
    for data in (b'', b'nothing', png.getvalue()[:20], png.getvalue()[:-30], png.getvalue()):
        with pytest.raises(ImageError, match='my png'):
            decode_compressed('my png', data, max_pixels=100)


def test_distances_as_floating_point_numbers_are_refused_by_name():
    with pytest.raises(ImageError, match="'32FC1'.*colour topic") as error:
        decode_raw('32FC1', 1, 2, 8, False, bytes(8))
    assert error.value.fault is ImageFault.DEPTH


@pytest.mark.parametrize('name', ['empty', 'empty_fmt'])
def test_compressed_picture_without_bytes_is_refused(name):
    assert fault('19-empty-compressed-data', name).fault is ImageFault.EMPTY


def test_bytes_decide_where_the_format_text_is_wrong():
    case = '20-format-does-not-match-bytes'
    for name in ('png_is_jpeg', 'jpeg_is_png'):
        assert abs(decode(case, name).astype(int) - (200, 30, 60)).max() <= 5
    assert fault(case, 'jpeg_is_bmp').fault is ImageFault.UNKNOWN_FORMAT


def test_decompression_bomb_is_refused_by_its_header():
    assert fault('21-png-decompression-bomb', 'bomb').fault is ImageFault.TOO_LARGE


@pytest.mark.parametrize('lossless, alpha', [(True, False), (False, False), (False, True)])
def test_webp_is_decoded_and_its_size_read_before(lossless, alpha):
    picture = np.full((20, 30, 4 if alpha else 3), (200, 30, 60, 128)[:4 if alpha else 3], np.uint8)
    data = encoded(picture, 'WEBP', lossless=lossless)
    assert abs(decode_compressed('webp', data).astype(int) - (200, 30, 60)).max() <= 6
    with pytest.raises(ImageError, match='30x20') as error:
        decode_compressed('webp', data, max_pixels=599)
    assert error.value.fault is ImageFault.TOO_LARGE


def test_pixel_limit_is_the_same_for_every_format():
    picture = np.zeros((20, 30, 3), np.uint8)
    for kind in ('JPEG', 'PNG', 'WEBP'):
        assert decode_compressed('', encoded(picture, kind), max_pixels=600).shape == (20, 30, 3)
        with pytest.raises(ImageError, match='30x20'):
            decode_compressed('', encoded(picture, kind), max_pixels=599)
    assert MAX_PIXELS >= 7680 * 4320


def test_png_with_16_bits_is_scaled():
    data = encoded(np.array([[0, 257, 65535]], np.uint16), 'PNG')
    assert decode_compressed('16UC1; png compressed', data)[0, :, 0].tolist() == [0, 1, 255]


@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'WEBP'])
def test_damage_anywhere_never_raises_anything_but_image_error(kind):
    generator = random.Random(0)
    good = encoded(np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3), kind)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(generator.randrange(1, 5)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        if generator.random() < 0.3:
            del data[generator.randrange(1, len(data)):]
        try:
            picture = decode_compressed('', bytes(data))
        except ImageError:
            continue
        assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3


def test_any_fields_give_a_picture_of_the_declared_size_or_image_error():
    generator = random.Random(1)
    encodings = ['rgb8', 'bgra8', 'mono16', 'yuv422', 'yuyv', 'nv12', 'bayer_gbrg16', '8UC3', 'x', '']
    decoded = 0
    for _ in range(2000):
        height, width = generator.randrange(9), generator.randrange(9)
        try:
            picture = decode_raw(generator.choice(encodings), height, width, generator.randrange(40),
                                 generator.random() < 0.5, bytes(generator.randrange(400)))
        except ImageError:
            continue
        decoded += 1
        assert picture.shape == (height, width, 3) and picture.dtype == np.uint8
    assert decoded > 50
