"""Scaling with Pillow: the result for an image, what is refused before it is decoded, what is stored and reused."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import sys

import msgspec
import pytest
from build import image, png, user
from PIL import Image
from stage_runs import records, turn

from reknit import media
from reknit.pipeline import normalize, scaling
from reknit.pipeline.cli.config import session_defaults
from reknit.pipeline.config import load_config
from reknit.pipeline.objects import is_made, made_key, open_objects
from reknit.pipeline.scaling import Scaler, ScalingError, check_worker, large_images, scale, scaler_for
from reknit.pipeline.session.arguments import policy_from
from reknit.pipeline.session.scaled import BYTES, digest_of
from reknit.pipeline.targets.media import inspect

SHRINK = {"media": "shrink"}


def encoded(picture, form="PNG", **given):
    found = io.BytesIO()
    picture.save(found, form, **given)
    return base64.b64encode(found.getvalue()).decode()


def drawn(width, height, mode="RGB"):
    return Image.new(mode, (width, height), 0 if mode in {"L", "P", "1"} else "red")


WIDE = encoded(drawn(8100, 60))


def facts(data):
    source = scale(data)
    return None if source is None else inspect(source)


@pytest.mark.parametrize(
    ("picture", "form", "sides", "media_type"),
    [
        (drawn(8100, 60), "PNG", (2000, 15), "image/png"),
        (drawn(60, 8100), "PNG", (15, 2000), "image/png"),
        (drawn(4000, 3000), "JPEG", (2000, 1500), "image/jpeg"),
        (drawn(4000, 3000), "WEBP", (2000, 1500), "image/png"),
        (drawn(2500, 10, "P"), "GIF", (2000, 8), "image/png"),
        (drawn(2500, 10, "1"), "PNG", (2000, 8), "image/png"),
        (drawn(2500, 10, "RGBA"), "PNG", (2000, 8), "image/png"),
        (drawn(2500, 10, "CMYK"), "JPEG", (2000, 8), "image/jpeg"),
        (drawn(9000, 1), "PNG", (2000, 1), "image/png"),
    ],
)
def test_the_longest_side_becomes_2000_pixels(picture, form, sides, media_type):
    found = facts(encoded(picture, form))
    assert (found.width, found.height) == sides
    assert found.sniffed == found.declared == media_type
    assert found.encoded_bytes <= BYTES


def test_a_photo_is_turned_upright():
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: a quarter turn
    found = facts(encoded(drawn(4000, 1000), "JPEG", exif=exif.tobytes()))
    assert (found.width, found.height) == (500, 2000)


def test_an_image_of_noise_becomes_small_enough():
    noise = Image.frombytes("RGB", (2400, 2400), random.Random(1).randbytes(3 * 2400 * 2400))  # noqa: S311  a picture
    found = facts(encoded(noise))
    assert found.sniffed == "image/jpeg"
    assert found.encoded_bytes <= BYTES


def test_an_image_of_too_many_pixels_is_not_decoded(monkeypatch):
    header = png(10_000, 8_001)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    assert scale(header) is None


@pytest.mark.parametrize(
    "data",
    ["", "!!!!", base64.b64encode(b"not an image").decode(), WIDE[:200], png(8100, 60)],
    ids=["empty", "no base64", "another file", "cut off", "no pixels"],
)
def test_what_cannot_be_read_is_left_alone(data):
    assert scale(data) is None


def test_the_library_scales():
    messages = [user(image(WIDE))]
    done = normalize({"model": "claude-sonnet-4-5", "messages": messages}, policy=SHRINK, scale=media.scale)
    assert [fix.code for fix in done.fixes] == ["image_scaled"]
    source = json.loads(done.body)["messages"][0]["content"][0]["source"]
    assert source == msgspec.json.decode(scale(WIDE))


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [image(WIDE)]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [image(WIDE)]}]},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{WIDE}"}}],
        },
        {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": WIDE}}]},
        {"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": WIDE}}}]},
    ],
    ids=["anthropic", "result", "openai-chat", "gemini", "bedrock-converse"],
)
def test_images_of_any_shape_are_found(message):
    assert list(large_images(msgspec.json.encode(turn(message)))) == [WIDE]


@pytest.mark.parametrize(
    "value",
    [b"", b"{}", b'{"a": "iVBORw0KGgo', b'"iVBORw0KGgo!"', msgspec.json.encode(image(png(2000, 2000)))],
    ids=["empty", "no image", "no JSON", "no base64", "small"],
)
def test_other_values_have_none(value):
    assert list(large_images(value)) == []


# In a worker.


def worker_config(tmp_path, prefix="p.", **more):
    given = {"prefix": prefix, "objects.url": f"file://{tmp_path}", **more}
    return load_config(env={}, overrides=given)


def always(_key):
    return True


async def test_an_image_is_scaled_once_and_stored_by_its_digest(tmp_path, monkeypatch):
    objects = open_objects(worker_config(tmp_path))
    (given,) = records([turn(user(image(WIDE)))])
    (record,) = await Scaler(objects).with_scaled([given], always)
    assert record.scaled == {digest_of(WIDE): scale(WIDE)}
    assert list(await objects.every()) == [made_key(b"session-1", digest_of(WIDE))]
    monkeypatch.setattr(scaling, "scale", lambda data: pytest.fail("scaled again"))
    (again,) = await Scaler(objects).with_scaled([given], always)
    assert again == record


async def test_what_cannot_be_scaled_is_not_tried_again(tmp_path, monkeypatch):
    objects = open_objects(worker_config(tmp_path))
    given = records([turn(user(image(png(8100, 60))))])
    assert await Scaler(objects).with_scaled(given, always) == given
    monkeypatch.setattr(scaling, "scale", lambda data: pytest.fail("tried again"))
    assert await Scaler(objects).with_scaled(given, always) == given


async def test_a_replay_takes_what_the_pipeline_made(tmp_path, monkeypatch):
    source, own = (open_objects(worker_config(tmp_path, prefix)) for prefix in ("p.", "p.replay.x."))
    given = records([turn(user(image(WIDE)))])
    (made,) = await Scaler(source).with_scaled(given, always)
    monkeypatch.setattr(scaling, "scale", lambda data: pytest.fail("scaled again"))
    (replayed,) = await scaler_for(own, source).with_scaled(given, always)
    assert replayed == made
    assert [key for key in await own.every() if is_made(key)] == [made_key(b"session-1", digest_of(WIDE))]


async def test_a_damaged_object_is_made_again(tmp_path):
    objects = open_objects(worker_config(tmp_path))
    given = records([turn(user(image(WIDE)))])
    (made,) = await Scaler(objects).with_scaled(given, always)
    (stored,) = tmp_path.glob("**/made-*")
    stored.write_bytes(stored.read_bytes()[:-9])
    assert await Scaler(objects).with_scaled(given, always) == [made]


async def test_sessions_that_do_not_ask_are_left_alone(tmp_path):
    objects = open_objects(worker_config(tmp_path))
    given = records([turn(user(image(WIDE)))])
    assert await Scaler(objects).with_scaled(given, lambda key: False) == given
    opened = {"type": "session.opened", "policy": SHRINK}
    found = await Scaler(objects).with_scaled(records([opened, turn(user(image(WIDE)))]), lambda key: False)
    assert [len(record.scaled) for record in found] == [0, 1]


async def test_a_forgotten_session_leaves_no_image(tmp_path):
    objects = open_objects(worker_config(tmp_path))
    await Scaler(objects).with_scaled(records([turn(user(image(WIDE)))]), always)
    assert await objects.forget(b"session-1") == 1
    assert await objects.every() == {}


async def test_the_event_loop_turns_while_an_image_is_scaled(tmp_path, monkeypatch):
    turned = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(data):
        asyncio.run_coroutine_threadsafe(_set(turned), loop).result(10)
        return scale(data)

    monkeypatch.setattr(scaling, "scale", slow)
    (record,) = await Scaler(open_objects(worker_config(tmp_path))).with_scaled(
        records([turn(user(image(WIDE)))]), always
    )
    assert turned.is_set()
    assert list(record.scaled) == [digest_of(WIDE)]


async def _set(event):
    event.set()


def test_a_worker_refuses_the_policy_without_pillow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    asked = {"session.policy.media": "shrink"}
    with pytest.raises(ScalingError, match=r"pip install 'reknit\[media\]'"):
        session_defaults(worker_config(tmp_path, **asked))
    assert not session_defaults(worker_config(tmp_path)).can_scale
    assert scaler_for(open_objects(worker_config(tmp_path)), open_objects(worker_config(tmp_path))) is None


def test_a_worker_refuses_the_policy_without_a_store():
    with pytest.raises(ScalingError, match=r"set objects\.url") as found:
        check_worker(policy_from(SHRINK), "")
    assert found.value.path == "objects.url"
    assert not check_worker(policy_from({}), "")
    assert check_worker(policy_from(SHRINK), "file:///x")
