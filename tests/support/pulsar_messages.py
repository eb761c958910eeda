"""Pulsar's messages by the library `protobuf`: an independent check of timewheel's own encoding.

Numbers and types are those of PulsarApi.proto in brokers of 4.0.7, for the messages that tests need.
"""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "uint64": _FIELD.TYPE_UINT64,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
    "int32": _FIELD.TYPE_INT32,
    "bool": _FIELD.TYPE_BOOL,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}
_SHAPES = {
    "KeyValue": "1 key string, 2 value string",
    "EncryptionKeys": "1 key string, 2 value bytes",
    "MessageIdData": "1 ledgerId uint64, 2 entryId uint64, 3 partition int32, 4 batch_index int32",
    "MessageMetadata": (
        "1 producer_name string, 2 sequence_id uint64, 3 publish_time uint64, 4 properties *KeyValue, "
        "5 replicated_from string, 6 partition_key string, 7 replicate_to *string, 8 compression int32, "
        "9 uncompressed_size uint32, 11 num_messages_in_batch int32, 12 event_time uint64, "
        "13 encryption_keys *EncryptionKeys, 14 encryption_algo string, 15 encryption_param bytes, "
        "16 schema_version bytes, 17 partition_key_b64_encoded bool, 18 ordering_key bytes, 19 deliver_at_time int64, "
        "20 marker_type int32, 22 txnid_least_bits uint64, 23 txnid_max_bits uint64, 24 highest_sequence_id uint64, "
        "25 null_value bool, 26 uuid string, 27 num_chunks_from_msg int32, 28 total_chunk_msg_size int32, "
        "29 chunk_id int32, 30 null_partition_key bool"
    ),
    "SingleMessageMetadata": (
        "1 properties *KeyValue, 2 partition_key string, 3 payload_size int32, 4 compacted_out bool, "
        "5 event_time uint64, 6 partition_key_b64_encoded bool, 7 ordering_key bytes, 8 sequence_id uint64, "
        "9 null_value bool, 10 null_partition_key bool"
    ),
    "FeatureFlags": "1 supports_auth_refresh bool, 2 supports_broker_entry_metadata bool",
    "KeySharedMeta": "1 keySharedMode int32",
    "AuthData": "1 auth_method_name string, 2 auth_data bytes",
    "CONNECT": (
        "1 client_version string, 3 auth_data bytes, 4 protocol_version int32, 5 auth_method_name string, "
        "6 proxy_to_broker_url string, 10 feature_flags FeatureFlags"
    ),
    "CONNECTED": "1 server_version string, 2 protocol_version int32, 3 max_message_size int32",
    "SUBSCRIBE": (
        "1 topic string, 2 subscription string, 3 subType int32, 4 consumer_id uint64, 5 request_id uint64, "
        "6 consumer_name string, 8 durable bool, 9 start_message_id MessageIdData, 13 initialPosition int32, "
        "15 force_topic_creation bool, 17 keySharedMeta KeySharedMeta"
    ),
    "MESSAGE": "1 consumer_id uint64, 2 message_id MessageIdData, 3 redelivery_count uint32, 4 ack_set *int64",
    "ACK": "1 consumer_id uint64, 2 ack_type int32, 3 message_id *MessageIdData, 8 request_id uint64",
    "FLOW": "1 consumer_id uint64, 2 messagePermits uint32",
    "SUCCESS": "1 request_id uint64",
    "ERROR": "1 request_id uint64, 2 error int32, 3 message string",
    "CLOSE_CONSUMER": "1 consumer_id uint64, 2 request_id uint64",
    "PING": "",
    "PONG": "",
    "LOOKUP": "1 topic string, 2 request_id uint64, 3 authoritative bool",
    "LOOKUP_RESPONSE": (
        "1 brokerServiceUrl string, 2 brokerServiceUrlTls string, 3 response int32, 4 request_id uint64, "
        "5 authoritative bool, 6 error int32, 7 message string, 8 proxy_through_service_url bool"
    ),
    "REACHED_END_OF_TOPIC": "1 consumer_id uint64",
    "GET_LAST_MESSAGE_ID": "1 consumer_id uint64, 2 request_id uint64",
    "GET_LAST_MESSAGE_ID_RESPONSE": "1 last_message_id MessageIdData, 2 request_id uint64",
    "AUTH_CHALLENGE": "1 server_version string, 2 challenge AuthData, 3 protocol_version int32",
    "AUTH_RESPONSE": "1 client_version string, 2 response AuthData, 3 protocol_version int32",
    "ACK_RESPONSE": "1 consumer_id uint64, 4 error int32, 5 message string, 6 request_id uint64",
    "TOPIC_MIGRATED": (
        "1 resource_id uint64, 2 resource_type int32, 3 brokerServiceUrl string, 4 brokerServiceUrlTls string"
    ),
    "ACTIVE_CONSUMER_CHANGE": "1 consumer_id uint64, 2 is_active bool",
    "CommandType": (
        "2 CONNECT CONNECT, 3 CONNECTED CONNECTED, 4 SUBSCRIBE SUBSCRIBE, 9 MESSAGE MESSAGE, 10 ACK ACK, 11 FLOW FLOW, "
        "13 SUCCESS SUCCESS, 14 ERROR ERROR, 16 CLOSE_CONSUMER CLOSE_CONSUMER, 18 PING PING, 19 PONG PONG, "
        "23 LOOKUP LOOKUP, 24 LOOKUP_RESPONSE LOOKUP_RESPONSE, 27 REACHED_END_OF_TOPIC REACHED_END_OF_TOPIC, "
        "29 GET_LAST_MESSAGE_ID GET_LAST_MESSAGE_ID, 30 GET_LAST_MESSAGE_ID_RESPONSE GET_LAST_MESSAGE_ID_RESPONSE, "
        "31 ACTIVE_CONSUMER_CHANGE ACTIVE_CONSUMER_CHANGE, 36 AUTH_CHALLENGE AUTH_CHALLENGE, "
        "37 AUTH_RESPONSE AUTH_RESPONSE, 38 ACK_RESPONSE ACK_RESPONSE, 68 TOPIC_MIGRATED TOPIC_MIGRATED"
    ),
}


def _pool() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="pulsar.proto", package="pulsar", syntax="proto2")
    for name, shape in _SHAPES.items():
        kind = file.message_type.add(name=name)
        if name == "CommandType":
            kind.field.add(name="type", number=1, type=_FIELD.TYPE_INT32, label=_FIELD.LABEL_OPTIONAL)
        for text in filter(None, shape.split(", ")):
            number, field_name, type_name = text.split(" ")
            label = _FIELD.LABEL_REPEATED if type_name.startswith("*") else _FIELD.LABEL_OPTIONAL
            plain = type_name.removeprefix("*")
            field = kind.field.add(name=field_name, number=int(number), label=label)
            field.type = _TYPES.get(plain, _FIELD.TYPE_MESSAGE)
            if plain not in _TYPES:
                field.type_name = f".pulsar.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _pool()
_NUMBERS = {field.name: field.number for field in _POOL.FindMessageTypeByName("pulsar.CommandType").fields}


def message(kind: str, /, **fields: Any) -> Any:
    """Make a protobuf message."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"pulsar.{kind}"))(**fields)


def command_frame(kind: str, /, rest: bytes = b"", **fields: Any) -> bytes:
    """Encode a frame with a command, as a broker sends it, and the bytes behind the command."""
    command = message("CommandType", type=_NUMBERS[kind])
    getattr(command, kind).SetInParent()
    getattr(command, kind).CopyFrom(message(kind, **fields))
    data: bytes = command.SerializeToString()
    return struct.pack(">II", 4 + len(data) + len(rest), len(data)) + data + rest


def connected(*, version: int = 21, **fields: Any) -> bytes:
    """Encode a broker's answer to CONNECT."""
    return command_frame("CONNECTED", server_version="played", protocol_version=version, **fields)


def entry_frame(
    position: tuple[int, int],
    *,
    consumer_id: int = 1,
    payload: bytes = b"x",
    checksum: int | None = None,
    has_checksum: bool = True,
    before: bytes = b"",
    redelivery_count: int = 0,
    **metadata: Any,
) -> bytes:
    """Encode a frame that delivers an entry.

    Args:
        checksum: A wrong checksum; None: the right checksum.
        before: Bytes before the checksum: a broker's own metadata.
    """
    given = {"producer_name": "p", "sequence_id": 7, "publish_time": 1_000, **metadata}
    inner: bytes = message("MessageMetadata", **given).SerializeToString()
    body = struct.pack(">I", len(inner)) + inner + payload
    told = google_crc32c.value(body) if checksum is None else checksum
    head = b"\x0e\x01" + struct.pack(">I", told) if has_checksum else b""
    where = message("MessageIdData", ledgerId=position[0], entryId=position[1])
    return command_frame(
        "MESSAGE", before + head + body, consumer_id=consumer_id, message_id=where, redelivery_count=redelivery_count
    )


def read_request(data: bytes) -> list[tuple[str, Any]]:
    """Decode the commands in a client's frames: name and message."""
    found = []
    while data:
        size, command_size = struct.unpack(">II", data[:8])
        assert size == command_size + 4, "clients of ours send nothing behind a command"
        command = message("CommandType")
        command.MergeFromString(data[8 : 8 + command_size])
        (name,) = (field.name for field, _ in command.ListFields() if field.name != "type")
        assert _NUMBERS[name] == command.type, "a command's body is the field of its type"
        found.append((name, getattr(command, name)))
        data = data[4 + size :]
    return found
