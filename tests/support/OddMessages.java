import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.schema.SchemaDefinition;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * Sends every odd message that Java's client can make, each between two good messages, into some topics.
 *
 * <p>Arguments: service URL; due time of all messages, UTC milliseconds; then four for each topic: its name, the time
 * for delivery by the broker (0: not delayed), "timer" if a message needs an envelope, and a pattern of names that are
 * not sent. It prints a line of JSON for each message.
 *
 * <p>A message is identified by its property "odd", or by its payload, which is "odd" and its name unless the payload
 * itself is odd.
 */
public class OddMessages {
    private static final byte[] NO_TEXT = {(byte) 0xff, (byte) 0xfe, (byte) 0x80};
    private static final byte[] UUID = ByteBuffer.allocate(16).putLong(0x8081828384858687L).putLong(-1).array();
    private static final long FAR_MS = 253_402_300_799_999L;
    private static final String SURROGATE = "\ud800";
    private static final int LARGE_BYTES = 6_000_000;
    private static final int TIMEOUT_S = 20;

    /** Makes a message odd. */
    private interface Send {
        void to(Place place, String name) throws Exception;
    }

    public record Old(String name) {}

    public record New(String name, Integer age) {}

    private final PulsarClient client;
    private final String url;
    private final long dueMs;
    private final Map<String, Send> odd = new LinkedHashMap<>();

    private OddMessages(PulsarClient client, String url, long dueMs) {
        this.client = client;
        this.url = url;
        this.dueMs = dueMs;
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder()
                .serviceUrl(arguments[0])
                .operationTimeout(TIMEOUT_S, TimeUnit.SECONDS)
                .build()) {
            OddMessages all = new OddMessages(client, arguments[0], Long.parseLong(arguments[1]));
            all.keys();
            all.properties();
            all.times();
            all.payloads();
            all.schemas();
            all.producers();
            for (int at = 2; at < arguments.length; at += 4) {
                all.sendAll(new Place(
                        arguments[at],
                        Long.parseLong(arguments[at + 1]),
                        arguments[at + 2].equals("timer"),
                        arguments[at + 3]));
            }
        }
    }

    private void sendAll(Place place) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(place.topic).create()) {
            int number = 0;
            sendGood(producer, place, number++);
            for (Map.Entry<String, Send> one : odd.entrySet()) {
                String error = "";
                if (one.getKey().matches(place.without)) {
                    continue;
                }
                try {
                    one.getValue().to(place, one.getKey());
                } catch (Exception | StackOverflowError refused) {
                    error = refused.getClass().getSimpleName() + ": " + refused.getMessage();
                }
                tell(place, one.getKey(), error);
                sendGood(producer, place, number++);
            }
        }
    }

    private void sendGood(Producer<byte[]> producer, Place place, int number) throws Exception {
        String id = "good-" + number;
        prepared(producer, place, id).property("good", id).value(bytes(id)).send();
        tell(place, id, "");
    }

    /** Sets the delay and the properties that the place needs. */
    private <T> TypedMessageBuilder<T> prepared(Producer<T> producer, Place place, String id) {
        return asked(producer.newMessage(), place, id);
    }

    private <T> TypedMessageBuilder<T> asked(TypedMessageBuilder<T> message, Place place, String id) {
        if (place.isTimer) {
            long nowMs = System.currentTimeMillis();
            message.property("tw-id", id).property("tw-timer", "1 " + dueMs + " 0 0 " + nowMs + " 1");
        }
        return place.deliverAtMs == 0 ? message : message.deliverAt(place.deliverAtMs);
    }

    private <T> TypedMessageBuilder<T> started(Producer<T> producer, Place place, String name) {
        return prepared(producer, place, name).property("odd", name);
    }

    private ProducerBuilder<byte[]> plain(Place place) {
        return client.newProducer()
                .topic(place.topic)
                .enableBatching(false)
                .sendTimeout(TIMEOUT_S, TimeUnit.SECONDS);
    }

    /** A message that is odd in itself. */
    private void message(String name, Consumer<TypedMessageBuilder<byte[]>> makeOdd) {
        odd.put(name, (place, id) -> {
            try (Producer<byte[]> producer = plain(place).create()) {
                TypedMessageBuilder<byte[]> message = started(producer, place, id).value(bytes("odd " + id));
                makeOdd.accept(message);
                check(message.send());
            }
        });
    }

    private void produced(String name, Consumer<ProducerBuilder<byte[]>> build, byte[] more) {
        odd.put(name, (place, id) -> {
            ProducerBuilder<byte[]> builder = plain(place);
            build.accept(builder);
            try (Producer<byte[]> producer = builder.create()) {
                check(started(producer, place, id).value(joined(bytes("odd " + id + "\n"), more)).send());
            }
        });
    }

    private <T> void typed(String name, Schema<T> schema, T value) {
        odd.put(name, (place, id) -> {
            try (Producer<T> producer = client.newProducer(schema).topic(place.topic).enableBatching(false).create()) {
                check(started(producer, place, id).value(value).send());
            }
        });
    }

    private void batched(String name, Consumer<ProducerBuilder<byte[]>> build) {
        odd.put(name, (place, id) -> {
            ProducerBuilder<byte[]> builder = plain(place).enableBatching(true).batchingMaxPublishDelay(1, TimeUnit.SECONDS);
            build.accept(builder);
            try (Producer<byte[]> producer = builder.create()) {
                List<CompletableFuture<MessageId>> sends = new ArrayList<>();
                for (int number = 0; number < 4; number++) {
                    sends.add(started(producer, place, id + " #" + number)
                            .keyBytes(number % 2 == 0 ? NO_TEXT : UUID)
                            .value(number == 3 ? new byte[0] : bytes("odd " + id + " #" + number))
                            .sendAsync());
                }
                producer.flush();
                for (CompletableFuture<MessageId> send : sends) {
                    send.get(TIMEOUT_S, TimeUnit.SECONDS);
                }
            }
        });
    }

    private void keys() {
        byte[] random = new byte[100_000];
        new Random(7).nextBytes(random);
        message("a key of random bytes", one -> one.keyBytes(NO_TEXT));
        message("a key of a UUID's bytes", one -> one.keyBytes(UUID));
        message("a key of no bytes", one -> one.keyBytes(new byte[0]));
        message("a key of 100 kB of bytes", one -> one.keyBytes(random));
        message("an empty key", one -> one.key(""));
        message("a null key", one -> one.key(null));
        message("a key of null bytes", one -> one.keyBytes(null));
        message("a lone surrogate as key", one -> one.key(SURROGATE));
        message("NUL in a key", one -> one.key("a\0b"));
        message("an ordering key of random bytes", one -> one.orderingKey(NO_TEXT));
        message("an ordering key of a UUID's bytes", one -> one.orderingKey(UUID));
        message("an ordering key of no bytes", one -> one.orderingKey(new byte[0]));
        message("a key and an ordering key of bytes", one -> one.keyBytes(UUID).orderingKey(NO_TEXT));
    }

    private void properties() {
        message("a property without a name", one -> one.property("", "red"));
        message("a property without a value", one -> one.property("colour", ""));
        message("a property that is null", one -> one.property("colour", null));
        message("NUL in a property", one -> one.property("co\0lour", "r\0ed"));
        message("a lone surrogate in a property", one -> one.property("colour", SURROGATE));
        message("a lone surrogate as the name of a property", one -> one.property(SURROGATE, "red"));
        message("emoji and right-to-left", one -> one.property("\ud83d\ude00", "\u202egnp.\u2066"));
        message("1,000 properties", one -> {
            for (int number = 0; number < 1_000; number++) {
                one.property("p" + number, "x");
            }
        });
        message("a property of 200 kB", one -> one.property("colour", "x".repeat(200_000)));
        message("properties of a client's dead letter", one -> one.property("RECONSUMETIMES", "99")
                .property("REAL_TOPIC", "persistent://a/b/c")
                .property("ORIGIN_MESSAGE_ID", "1:2:3")
                .property("DELAY_TIME", "999999999999"));
    }

    private void times() {
        message("event time 0", one -> one.eventTime(0));
        message("event time max", one -> one.eventTime(Long.MAX_VALUE));
        message("event time negative", one -> one.eventTime(-1));
        message("delivery in the past", one -> one.deliverAt(1));
        message("delivery in the year 9999", one -> one.deliverAt(FAR_MS));
        message("delivery at the end of time", one -> one.deliverAt(Long.MAX_VALUE));
        message("delivery negative", one -> one.deliverAt(-1));
        message("delivery after 100,000 days", one -> one.deliverAfter(100_000, TimeUnit.DAYS));
        message("sequence id 0", one -> one.sequenceId(0));
        message("sequence id max", one -> one.sequenceId(Long.MAX_VALUE));
        message("sequence id negative", one -> one.sequenceId(-5));
        odd.put("sequence ids that go back", (place, id) -> {
            try (Producer<byte[]> producer = plain(place).create()) {
                started(producer, place, id + " #0").sequenceId(100).value(bytes("odd " + id + " #0")).send();
                started(producer, place, id + " #1").sequenceId(99).value(bytes("odd " + id + " #1")).send();
            }
        });
        message("replicated to a cluster that is not", one -> one.replicationClusters(List.of("elsewhere")));
        message("replicated nowhere", one -> one.disableReplication());
    }

    private void payloads() {
        message("an empty payload", one -> one.value(new byte[0]));
        message("a null value", one -> one.value(null));
        message("a payload that is no text", one -> one.value(NO_TEXT));
        byte[] much = bytes("odd ".repeat(2_500));
        for (CompressionType kind : CompressionType.values()) {
            produced("compressed: " + kind, one -> one.compressionType(kind), much);
            produced("compressed, and empty: " + kind, one -> one.compressionType(kind), new byte[0]);
        }
        byte[] random = new byte[LARGE_BYTES];
        new Random(7).nextBytes(random);
        produced("chunks of 1,000 bytes", one -> one.enableChunking(true).chunkMaxMessageSize(1_000), much);
        produced("chunks of 6 MB that compress", one -> one.enableChunking(true).compressionType(CompressionType.ZSTD)
                .chunkMaxMessageSize(100), new byte[LARGE_BYTES]);
        produced("chunks of 6 MB that do not", one -> one.enableChunking(true), random);
        produced("6 MB, and no chunks", one -> {}, random);
        produced("4.9 MB", one -> {}, java.util.Arrays.copyOf(random, 4_900_000));
        CryptoKeyReader keys = keyReader();
        produced("encrypted", one -> encrypted(one, keys), much);
        produced("encrypted and compressed", one -> encrypted(one, keys).compressionType(CompressionType.LZ4), much);
        produced("encrypted in chunks", one -> encrypted(one, keys).enableChunking(true).chunkMaxMessageSize(2_000), much);
        batched("a batch", one -> {});
        batched("a batch by keys", one -> one.batcherBuilder(BatcherBuilder.KEY_BASED));
        batched("a batch by keys, compressed", one -> one.batcherBuilder(BatcherBuilder.KEY_BASED)
                .compressionType(CompressionType.SNAPPY));
        batched("a batch that is encrypted", one -> encrypted(one, keys));
    }

    private static ProducerBuilder<byte[]> encrypted(ProducerBuilder<byte[]> builder, CryptoKeyReader keys) {
        return builder.cryptoKeyReader(keys).addEncryptionKey("nobody-has-it");
    }

    private void schemas() {
        typed("schema STRING", Schema.STRING, "odd schema STRING");
        typed("schema INT64", Schema.INT64, 7L);
        typed("schema BOOL", Schema.BOOL, true);
        typed("schema BYTEBUFFER", Schema.BYTEBUFFER, ByteBuffer.wrap(UUID));
        typed("schema JSON", Schema.JSON(Old.class), new Old("Zoe"));
        typed("schema JSON, evolved", Schema.JSON(New.class), new New("Zoe", 7));
        typed("schema AVRO", Schema.AVRO(Avro.class), new Avro());
        typed("schema AVRO, evolved", Schema.AVRO(avro("{\"name\":\"age\",\"type\":\"int\",\"default\":0}")), new Avro());
        typed("schema AVRO, incompatible", Schema.AVRO(avro("{\"name\":\"age\",\"type\":\"string\"}")), new Avro());
        typed("schema AVRO, no value", Schema.AVRO(Avro.class), null);
        for (KeyValueEncodingType kind : KeyValueEncodingType.values()) {
            Schema<KeyValue<Avro, String>> schema = Schema.KeyValue(Schema.AVRO(Avro.class), Schema.STRING, kind);
            typed("schema KEY_VALUE " + kind, schema, new KeyValue<>(new Avro(), "value"));
            typed("schema KEY_VALUE " + kind + ", no value", schema, new KeyValue<>(new Avro(), null));
            typed("schema KEY_VALUE " + kind + ", no key", schema, new KeyValue<>(null, "value"));
        }
        typed("schema PROTOBUF", Schema.PROTOBUF(com.google.protobuf.Timestamp.class), now());
        typed("schema PROTOBUF_NATIVE", Schema.PROTOBUF_NATIVE(com.google.protobuf.Timestamp.class), now());
        typed("schema AUTO_PRODUCE", Schema.AUTO_PRODUCE_BYTES(), now().toByteArray());
    }

    /** Plain fields, as Avro's reflection needs them. */
    public static class Avro {
        public String name = "Zoe";
        public int age = 7;
    }

    private static SchemaDefinition<Avro> avro(String field) {
        return SchemaDefinition.<Avro>builder()
                .withJsonDef("{\"type\":\"record\",\"name\":\"Avro\",\"fields\":["
                        + "{\"name\":\"name\",\"type\":[\"null\",\"string\"],\"default\":null}," + field + "]}")
                .build();
    }

    private static com.google.protobuf.Timestamp now() {
        return com.google.protobuf.Timestamp.newBuilder().setSeconds(7).build();
    }

    private void producers() {
        produced("a producer whose name is odd", one -> one.producerName("Z\u00fcrich \0 " + dueMs + " " + System.nanoTime()), UUID);
        produced("a producer with properties", one -> one.property("", "\0"), UUID);
        odd.put("in a transaction", (place, id) -> {
            // A separate client: if the broker has transactions disabled, this client cannot even be built.
            try (PulsarClient other = PulsarClient.builder().serviceUrl(url).enableTransaction(true).build();
                    Producer<byte[]> producer =
                            other.newProducer().topic(place.topic).sendTimeout(0, TimeUnit.SECONDS).create()) {
                Transaction transaction = other.newTransaction()
                        .withTransactionTimeout(TIMEOUT_S, TimeUnit.SECONDS).build().get(TIMEOUT_S, TimeUnit.SECONDS);
                asked(producer.newMessage(transaction), place, id)
                        .property("odd", id).value(bytes("odd " + id)).send();
                transaction.commit().get(TIMEOUT_S, TimeUnit.SECONDS);
            }
        });
    }

    private static CryptoKeyReader keyReader() {
        try {
            KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
            generator.initialize(2048);
            byte[] key = generator.generateKeyPair().getPublic().getEncoded();
            byte[] pem = bytes("-----BEGIN PUBLIC KEY-----\n" + Base64.getMimeEncoder().encodeToString(key)
                    + "\n-----END PUBLIC KEY-----\n");
            return new CryptoKeyReader() {
                @Override
                public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
                    return new EncryptionKeyInfo(pem, metadata);
                }

                @Override
                public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
                    return null;
                }
            };
        } catch (java.security.GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void check(MessageId id) {
        if (id.toString().startsWith("-1:-1") || id.toString().contains("(-1,-1")) {
            throw new IllegalStateException("taken for a copy: " + id);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] joined(byte[] one, byte[] other) {
        return ByteBuffer.allocate(one.length + other.length).put(one).put(other).array();
    }

    private static void tell(Place place, String name, String error) {
        String shown = error.replaceAll("[^ -~]", "?").replace('"', '\'').replace('\\', '/');
        System.out.printf(
                "{\"topic\": \"%s\", \"name\": \"%s\", \"error\": \"%s\", \"at_ms\": %d}%n",
                place.topic, name, shown.substring(0, Math.min(200, shown.length())), System.currentTimeMillis());
    }

    private record Place(String topic, long deliverAtMs, boolean isTimer, String without) {}
}
