"""Recovery, bytes of events to bytes of items, against a reducer that reads the same events with ``json.loads``.

Run as a script: ``python tests/benchmarks/bench_recover.py [--json]``. Both sides run in turns in one process, on the
same lines, made like those of the Claude CLI 2.1 (every line with a uuid, about 420 bytes). The reducer works like the
simplest client: it reads each line, adds deltas to the text of their block, and writes an item for each of them; it
recovers nothing, checks nothing and keeps no ids. ``reading`` is the same without writing, the minimum. The output is
the best of several rounds.
"""

import argparse
import json
import sys
import time
import uuid

import msgspec

from reknit.pipeline.streams.session import Recovery

DELTAS = 400
MESSAGES = 5
ROUNDS = 15


def cli_lines():
    """Five answers of 400 deltas each, as the CLI writes them."""
    numbers = iter(range(10**9))

    def line(**members):
        common = {
            "session_id": "91978025-de62-4167-8a29-e625311ac862",
            "parent_tool_use_id": None,
            "uuid": str(uuid.UUID(int=next(numbers))),
        }
        return json.dumps(members | common, separators=(",", ":"), ensure_ascii=False).encode()

    def event(message_id, **members):
        return line(type="stream_event", event=members, api_message_id=message_id)

    def message(message_id):
        parts = [f"Sentence number {n} of a long answer that goes on. " for n in range(DELTAS)]
        start = {"id": message_id, "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}
        yield event(message_id, type="message_start", message=start)
        yield event(message_id, type="content_block_start", index=0, content_block={"type": "text", "text": ""})
        for part in parts:
            yield event(message_id, type="content_block_delta", index=0, delta={"type": "text_delta", "text": part})
        whole = start | {"content": [{"type": "text", "text": "".join(parts)}], "stop_reason": None}
        yield line(type="assistant", message=whole)
        yield event(message_id, type="content_block_stop", index=0)
        yield event(message_id, type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9})
        yield event(message_id, type="message_stop")

    return [found for n in range(MESSAGES) for found in message(f"msg_{n:04}")]


def naive(lines, batch):
    """The plainest reducer there is. Returns the bytes written."""
    texts = {}
    size = 0
    for first in range(0, len(lines), batch):
        out = []
        for line in b"\n".join(lines[first : first + batch]).split(b"\n"):
            read = json.loads(line)
            if read["type"] == "stream_event":
                event = read["event"]
                kind = event["type"]
                if kind == "content_block_delta":
                    text = event["delta"].get("text", "")
                    texts[event["index"]].append(text)
                    out.append({"type": "item/delta", "item_id": f"block-{event['index']}", "content": text})
                elif kind == "content_block_start":
                    texts[event["index"]] = []
                    out.append({"type": "item/started", "item_id": f"block-{event['index']}"})
                elif kind == "content_block_stop":
                    out.append({"type": "item/completed", "item_id": f"block-{event['index']}"})
                elif kind == "message_stop":
                    out.append({"type": "turn/stop"})
            else:
                out.append({"type": "turn/delta", "model": read["message"]["model"]})
        size += sum(len(json.dumps(item).encode()) for item in out)
    return size


def reading(lines, batch):
    """Only read, and keep the texts. Returns their number."""
    texts = {}
    for first in range(0, len(lines), batch):
        for line in b"\n".join(lines[first : first + batch]).split(b"\n"):
            read = json.loads(line)
            if read["type"] == "stream_event":
                event = read["event"]
                if event["type"] == "content_block_delta":
                    texts[event["index"]].append(event["delta"].get("text", ""))
                elif event["type"] == "content_block_start":
                    texts[event["index"]] = []
    return len(texts)


def ours(lines, batch):
    recovery = Recovery("claude-cli", records=False)
    encode = msgspec.json.Encoder().encode
    size = 0
    for first in range(0, len(lines), batch):
        for item in recovery.feed(b"\n".join(lines[first : first + batch])):
            size += len(encode(item))
    return size + sum(len(encode(item)) for item in recovery.end_run())


def best(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure():
    """Events a second of each for several batch sizes, and how many times the others recovery is."""
    lines = cli_lines()
    rows = []
    for batch in (1, 10, 100, len(lines)):
        seconds = {work.__name__: float("inf") for work in (naive, reading, ours)}
        for _ in range(ROUNDS):
            for work in (naive, reading, ours):
                took = best(lambda work=work, batch=batch: work(lines, batch))
                seconds[work.__name__] = min(seconds[work.__name__], took)
        rates = {name: round(len(lines) / took) for name, took in seconds.items()}
        ratios = {f"to_{name}": round(seconds[name] / seconds["ours"], 2) for name in ("naive", "reading")}
        rows.append({"batch": batch} | rates | ratios)
    return rows


def main():
    """Print the table, or with ``--json`` its rows."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", action="store_true")
    as_json = options.parse_args().json
    for row in measure():
        text = json.dumps(row) if as_json else "".join(f"{name} {value:>10,}  " for name, value in row.items())
        sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
