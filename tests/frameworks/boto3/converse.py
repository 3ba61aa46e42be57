"""Converse and ConverseStream by an unmodified boto3, which finds the gateway by AWS_ENDPOINT_URL_BEDROCK_RUNTIME."""

import sys

import boto3
import botocore.exceptions

MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"
client = boto3.client("bedrock-runtime", region_name="us-east-1")


def history(words):
    """Return a history with a call that has no result, which the service refuses."""
    call = {"toolUse": {"toolUseId": "t1", "name": "ls", "input": {"path": "/srv"}}}
    return [
        {"role": "user", "content": [{"text": "hi"}]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"text": words}]},
    ]


def streamed(words):
    """Return the text of a streamed answer, and the arguments of its calls."""
    answer = client.converse_stream(modelId=MODEL, messages=history(words))
    deltas = [event["contentBlockDelta"]["delta"] for event in answer["stream"] if "contentBlockDelta" in event]
    text = "".join(each.get("text", "") for each in deltas)
    return text, "".join(each.get("toolUse", {}).get("input", "") for each in deltas)


answer = client.converse(modelId=MODEL, messages=history("and?"))
assert answer["output"]["message"]["content"] == [{"text": "Hello."}]
assert "result_synthesised=1" in answer["ResponseMetadata"]["HTTPHeaders"]["x-reknit-fixes"]

answer = client.converse(modelId=MODEL, messages=history("and?"), inferenceConfig={"temperature": 0.5})
assert answer["ResponseMetadata"]["HTTPHeaders"]["x-reknit-healed"] == "deprecated"

assert streamed("say a text") == ("Hello", "")
assert streamed("make a call") == ("", '{"path": "/srv"}')


def error_of(call, *arguments, **options):
    """Return the error that a call raises."""
    try:
        found = call(*arguments, **options)
    except botocore.exceptions.ClientError as error:
        return error
    raise AssertionError(f"no error, but {found}")


for cut in ("cut the text", "cut the call"):
    broken = error_of(streamed, cut)
    assert isinstance(broken, botocore.exceptions.EventStreamError)
    assert "modelStreamErrorException" in str(broken)

refused = error_of(client.converse, modelId=MODEL, messages=history("be throttled"))
assert isinstance(refused, client.exceptions.ThrottlingException)
sys.stdout.write("checked\n")
