"""The numbers of PulsarApi.proto: commands, errors and versions."""

from __future__ import annotations

from enum import IntEnum

SPOKEN_VERSION = 21
"""Protocol version sent to brokers, that of Pulsar 4.0. A broker answers with the same or a lower version."""
LOWEST_VERSION = 19
"""Version of Pulsar 2.10, the oldest broker that was tested. Version 17 introduced answers to acknowledgements."""


class CommandType(IntEnum):
    """Commands that are sent or received here. A command's body is the field with the command's number."""

    CONNECT = 2
    CONNECTED = 3
    SUBSCRIBE = 4
    MESSAGE = 9
    ACK = 10
    FLOW = 11
    SUCCESS = 13
    ERROR = 14
    CLOSE_CONSUMER = 16
    PING = 18
    PONG = 19
    LOOKUP = 23
    LOOKUP_RESPONSE = 24
    GET_LAST_MESSAGE_ID = 29
    GET_LAST_MESSAGE_ID_RESPONSE = 30
    AUTH_CHALLENGE = 36
    AUTH_RESPONSE = 37
    ACK_RESPONSE = 38
    TOPIC_MIGRATED = 68


class SubscriptionType(IntEnum):
    """Types of a subscription: how it distributes its messages to consumers."""

    EXCLUSIVE = 0
    SHARED = 1
    KEY_SHARED = 3


class ServerError(IntEnum):
    """Errors, by their names in the protocol."""

    UnknownError = 0
    MetadataError = 1
    PersistenceError = 2
    AuthenticationError = 3
    AuthorizationError = 4
    ConsumerBusy = 5
    ServiceNotReady = 6
    ProducerBlockedQuotaExceededError = 7
    ProducerBlockedQuotaExceededException = 8
    ChecksumError = 9
    UnsupportedVersionError = 10
    TopicNotFound = 11
    SubscriptionNotFound = 12
    ConsumerNotFound = 13
    TooManyRequests = 14
    TopicTerminatedError = 15
    ProducerBusy = 16
    InvalidTopicName = 17
    IncompatibleSchema = 18
    ConsumerAssignError = 19
    TransactionCoordinatorNotFound = 20
    InvalidTxnStatus = 21
    NotAllowedError = 22
    TransactionConflict = 23
    TransactionNotFound = 24
    ProducerFenced = 25


PASSING_ERRORS = frozenset(
    {
        ServerError.MetadataError,
        ServerError.PersistenceError,
        ServerError.ServiceNotReady,
        ServerError.TooManyRequests,
        ServerError.ConsumerNotFound,
    }
)
"""Errors of a topic that moves or of a broker under load: after a new lookup the same request may be answered."""
