import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * A service with plain clients, whose topic is sick: it has many timers that are far from due, with handled timers
 * between them. Then the service sends far and near timers until its input ends.
 *
 * <p>Arguments: service URL, topic, subscription, number of far timers, number of far timers between two timers that
 * are handled at once, timers a second from then on. Each message contains a number and a due time; a far timer's
 * message begins with "f". The service prints a line of JSON when the topic is sick, and a line at the end.
 */
public class PlainService {
    private static final long DAY_MS = 86_400_000L;
    private static final long FAR_MS = 3 * DAY_MS;
    private static final long FARTHEST_MS = 25 * DAY_MS;
    private static final long NEAR_MS = 20_000;
    private static final long TICK_MS = 1_050;
    private static final int WAIT_S = 120;

    private final Producer<byte[]> producer;
    private final ConcurrentHashMap<String, Integer> handled = new ConcurrentHashMap<>();
    private final AtomicInteger early = new AtomicInteger();
    private final AtomicInteger refused = new AtomicInteger();
    private final AtomicInteger latestMs = new AtomicInteger();
    private int far;
    private int near;

    private PlainService(Producer<byte[]> producer) {
        this.producer = producer;
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int pending = Integer.parseInt(arguments[3]);
        int between = Integer.parseInt(arguments[4]);
        int rate = Integer.parseInt(arguments[5]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                Producer<byte[]> producer = client.newProducer()
                        .topic(topic)
                        .enableBatching(false)
                        .maxPendingMessages(2_000)
                        .blockIfQueueFull(true)
                        .sendTimeout(2, TimeUnit.MINUTES)
                        .create()) {
            PlainService service = new PlainService(producer);
            try (Consumer<byte[]> consumer = client.newConsumer()
                    .topic(topic)
                    .subscriptionName(arguments[2])
                    .subscriptionType(SubscriptionType.Shared)
                    .messageListener(service::handle)
                    .subscribe()) {
                service.fill(pending, between);
                service.tell("sick");
                service.goOn(rate);
                service.tell("ended");
            }
        }
    }

    private void fill(int pending, int between) throws Exception {
        for (int number = 1; number <= pending; number++) {
            sendFar();
            if (number % between == 0) {
                send("n" + near++, 0);
            }
        }
        producer.flush();
        awaitNear();
    }

    private void goOn(int rate) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        long beganMs = System.currentTimeMillis();
        long sent = 0;
        while (!input.ready()) {
            for (; sent < (System.currentTimeMillis() - beganMs) * rate / 1000; sent++) {
                if (sent % 2 == 0) {
                    sendFar();
                } else {
                    send("n" + near++, System.currentTimeMillis() + random(0, NEAR_MS));
                }
            }
            Thread.sleep(10);
        }
        producer.flush();
        awaitNear();
    }

    private void sendFar() {
        send("f" + far++, System.currentTimeMillis() + random(FAR_MS, FARTHEST_MS));
    }

    private void send(String name, long dueMs) {
        var message = producer.newMessage().value((name + " " + dueMs).getBytes(StandardCharsets.UTF_8));
        if (dueMs > 0) {
            message.deliverAt(dueMs);
        }
        message.sendAsync().exceptionally(error -> {
            refused.incrementAndGet();
            return null;
        });
    }

    private void handle(Consumer<byte[]> consumer, Message<byte[]> message) {
        String[] words = new String(message.getValue(), StandardCharsets.UTF_8).split(" ");
        long lateMs = System.currentTimeMillis() - Long.parseLong(words[1]);
        if (lateMs < -TICK_MS) {
            early.incrementAndGet();
        }
        if (!words[1].equals("0")) {
            latestMs.accumulateAndGet((int) lateMs, Math::max);
        }
        handled.merge(words[0], 1, Integer::sum);
        consumer.acknowledgeAsync(message);
    }

    /** Waits until all timers that were due at once, or are near, have been handled. */
    private void awaitNear() throws Exception {
        long untilMs = System.currentTimeMillis() + NEAR_MS + WAIT_S * 1000;
        while (handled.size() < near && System.currentTimeMillis() < untilMs) {
            Thread.sleep(20);
        }
    }

    private void tell(String what) {
        long again = handled.values().stream().mapToLong(times -> times - 1).sum();
        System.out.printf(
                "{\"did\": \"%s\", \"far\": %d, \"near\": %d, \"handled\": %d, \"again\": %d, \"early\": %d,"
                        + " \"refused\": %d, \"latest_ms\": %d}%n",
                what, far, near, handled.size(), again, early.get(), refused.get(), latestMs.get());
        System.out.flush();
    }

    private static long random(long fromMs, long toMs) {
        return ThreadLocalRandom.current().nextLong(fromMs, toMs);
    }
}
