import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Timers by Java's own client, which knows nothing of timewheel.
 *
 * <p>It does what its arguments say, one after another, and prints a line of JSON for each message:
 *
 * <pre>
 * java -cp 'jars/*' Timers.java pulsar://localhost:6650 \
 *     plain TOPIC TIMERS intake TOPIC TIMERS receive TOPIC SUBSCRIPTION COUNT
 * </pre>
 *
 * <p>TIMERS are keys and delays in milliseconds, as in {@code customer-7=1000;customer-8=2500}.
 */
public class Timers {
    private static final int RECEIVE_TIMEOUT_S = 120;
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (int at = 1; at < arguments.length; ) {
                String what = arguments[at];
                String topic = arguments[at + 1];
                switch (what) {
                    case "plain" -> sendPlain(client, topic, timers(arguments[at + 2]));
                    case "intake" -> sendToIntake(client, topic, timers(arguments[at + 2]));
                    case "receive" -> receive(client, topic, arguments[at + 2], Integer.parseInt(arguments[at + 3]));
                    default -> throw new IllegalArgumentException(what);
                }
                at += what.equals("receive") ? 4 : 3;
            }
        }
    }

    /** Under the broker's delay: every other one says after how long, the others say when. */
    private static void sendPlain(PulsarClient client, String dueTopic, Map<String, Long> timers)
            throws PulsarClientException {
        try (Producer<byte[]> producer = client.newProducer().topic(dueTopic).create()) {
            boolean saysWhen = false;
            for (Map.Entry<String, Long> timer : timers.entrySet()) {
                String key = timer.getKey();
                long dueMs = System.currentTimeMillis() + timer.getValue();
                MessageId sent = saysWhen
                        ? sendAt(producer, key, dueMs)
                        : sendAfter(producer, key, timer.getValue());
                tell(Map.of("did", "sent", "key", key, "due_ms", dueMs, "message_id", sent.toString()));
                saysWhen = !saysWhen;
            }
        }
    }

    private static MessageId sendAfter(Producer<byte[]> producer, String key, long delayMs)
            throws PulsarClientException {
        return producer.newMessage()
                .key(key)
                .property("sender", "java")
                .value("renew".getBytes(StandardCharsets.UTF_8))
                .deliverAfter(delayMs, TimeUnit.MILLISECONDS)
                .send();
    }

    private static MessageId sendAt(Producer<byte[]> producer, String key, long dueMs) throws PulsarClientException {
        return producer.newMessage()
                .key(key)
                .property("sender", "java")
                .value("renew".getBytes(StandardCharsets.UTF_8))
                .deliverAt(dueMs)
                .send();
    }

    /** All at once, as the client makes batches of them. */
    private static void sendToIntake(PulsarClient client, String dueTopic, Map<String, Long> timers)
            throws PulsarClientException {
        try (Producer<byte[]> producer = client.newProducer().topic(dueTopic + ".tw.intake").create()) {
            List<CompletableFuture<MessageId>> sends = new ArrayList<>();
            for (Map.Entry<String, Long> timer : timers.entrySet()) {
                String key = timer.getKey();
                long dueMs = System.currentTimeMillis() + timer.getValue();
                sends.add(sendDue(producer, key, dueMs).whenComplete((sent, error) -> {
                    if (error == null) {
                        tell(Map.of("did", "sent", "key", key, "due_ms", dueMs, "message_id", sent.toString()));
                    }
                }));
            }
            producer.flush();
            sends.forEach(CompletableFuture::join);
        }
    }

    private static CompletableFuture<MessageId> sendDue(Producer<byte[]> producer, String key, long dueMs) {
        return producer.newMessage()
                .key(key)
                .property("sender", "java")
                .property("tw-due", Long.toString(dueMs))
                .value("renew".getBytes(StandardCharsets.UTF_8))
                .sendAsync();
    }

    private static void receive(PulsarClient client, String topic, String subscription, int count)
            throws PulsarClientException {
        try (Consumer<byte[]> consumer = client.newConsumer()
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionType(SubscriptionType.Shared)
                .subscribe()) {
            for (int received = 0; received < count; received++) {
                Message<byte[]> message = consumer.receive(RECEIVE_TIMEOUT_S, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException(received + " of " + count + " came");
                }
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("did", "received");
                line.put("at_ms", System.currentTimeMillis());
                line.put("key", message.getKey());
                line.put("payload", new String(message.getValue(), StandardCharsets.UTF_8));
                line.put("topic", message.getTopicName());
                line.put("properties", message.getProperties());
                consumer.acknowledge(message);
                tell(line);
            }
        }
    }

    private static Map<String, Long> timers(String argument) {
        Map<String, Long> timers = new LinkedHashMap<>();
        for (String timer : argument.split(";")) {
            int at = timer.indexOf('=');
            timers.put(timer.substring(0, at), Long.parseLong(timer.substring(at + 1)));
        }
        return timers;
    }

    private static void tell(Map<String, ?> line) {
        OUT.println(json(line));
    }

    private static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            List<String> fields = new ArrayList<>();
            map.forEach((name, field) -> fields.add(json(name) + ": " + json(field)));
            return "{" + String.join(", ", fields) + "}";
        }
        if (value instanceof Number) {
            return value.toString();
        }
        String text = String.valueOf(value);
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }
}
