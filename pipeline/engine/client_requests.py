"""Kafka requests that aiokafka does not implement: topics with their ids, groups with their operations."""

from __future__ import annotations

from io import BytesIO

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.admin import DescribeGroupsRequest_v3, DescribeGroupsResponse_v3
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)


class _Uuid(AbstractType[bytes]):  # type: ignore[misc] # aiokafka has no types here
    """Sixteen bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(16)


_NOT_GIVEN = bytes(16)
_TAGS = ("tags", TaggedFields)


class _MetadataResponse(Response):  # type: ignore[misc] # as above
    """Version 10, the first with topic ids; authorized operations are older (KIP-430)."""

    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32), ("host", CompactString()), ("port", Int32), ("rack", CompactString()), _TAGS
            ),
        ),
        ("cluster_id", CompactString()),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString()),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        _TAGS,
                    ),
                ),
                ("operations", Int32),
                _TAGS,
            ),
        ),
        ("cluster_operations", Int32),
        _TAGS,
    )


class _MetadataRequest(RequestStruct):  # type: ignore[misc] # as above
    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", CompactString()), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class TopicsRequest(Request[MetadataRequest_v5 | _MetadataRequest]):  # type: ignore[misc] # as above
    """Topics with the client's authorized operations, if the broker reports them."""

    API_KEY = 3

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics

    def build(self, version: type[RequestStruct]) -> RequestStruct:
        if version.API_VERSION < _MetadataRequest.API_VERSION:
            return version(self._topics, *(False,))
        return version([(_NOT_GIVEN, name, {}) for name in self._topics], *(False, False, True), {})


class _GroupRequestStruct(DescribeGroupsRequest_v3):  # type: ignore[misc] # as above
    RESPONSE_TYPE = DescribeGroupsResponse_v3  # the client's own type reads the answer as version 2


class GroupRequest(Request[_GroupRequestStruct]):  # type: ignore[misc] # as above
    API_KEY = 15

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, version: type[RequestStruct]) -> RequestStruct:
        return version([self._group], *(True,))
