/*
 * Timers from Node 22 or newer, without any package: by the broker's WebSocket API, which knows nothing of timewheel.
 *
 * It does what its arguments say, one after another, and prints a line of JSON for each message:
 *
 *     node timers.mjs ws://localhost:8080 \
 *         plain TOPIC TIMERS intake TOPIC TIMERS receive TOPIC SUBSCRIPTION COUNT
 *
 * TIMERS are keys and delays in milliseconds, as in customer-7=1000;customer-8=2500.
 */

const RECEIVE_TIMEOUT_MS = 120_000;

async function main([brokerUrl, ...rest]) {
  while (rest.length > 0) {
    const [what, topic, third] = rest.splice(0, 3);
    if (what === "plain") await send(brokerUrl, topic, timers(third), delayed);
    else if (what === "intake") await send(brokerUrl, `${topic}.tw.intake`, timers(third), due);
    else if (what === "receive") await receive(brokerUrl, topic, third, Number(rest.shift()));
    else throw new Error(what);
  }
}

/** Under the broker's delay: every other one says after how long, the others say when. */
function delayed(key, dueMs, number) {
  const when = number % 2 === 0 ? { deliverAfterMs: dueMs - Date.now() } : { deliverAt: dueMs };
  return { key, payload: encoded("renew"), properties: { sender: "node" }, ...when };
}

function due(key, dueMs) {
  return { key, payload: encoded("renew"), properties: { sender: "node", "tw-due": String(dueMs) } };
}

const encoded = (text) => Buffer.from(text).toString("base64");

async function send(brokerUrl, topic, timers, message) {
  const producer = await connected(`${brokerUrl}/ws/v2/producer/${pathOf(topic)}`);
  for (const [number, [key, delayMs]] of timers.entries()) {
    const dueMs = Date.now() + delayMs;
    producer.socket.send(JSON.stringify(message(key, dueMs, number)));
    const answer = await producer.next();
    if (answer.result !== "ok") throw new Error(`not sent: ${JSON.stringify(answer)}`);
    tell({ did: "sent", key, due_ms: dueMs, message_id: answer.messageId });
  }
  producer.socket.close();
}

async function receive(brokerUrl, topic, subscription, count) {
  const path = `${pathOf(topic)}/${encodeURIComponent(subscription)}?subscriptionType=Shared`;
  const consumer = await connected(`${brokerUrl}/ws/v2/consumer/${path}`);
  for (let received = 0; received < count; received++) {
    const message = await consumer.next();
    consumer.socket.send(JSON.stringify({ messageId: message.messageId }));
    const payload = Buffer.from(message.payload, "base64").toString();
    tell({ did: "received", at_ms: Date.now(), key: message.key, payload, topic, properties: message.properties });
  }
  consumer.socket.close();
}

/** A socket that is open, and what comes by it, in order. */
async function connected(url) {
  const socket = new WebSocket(url);
  const came = [];
  const waiting = [];
  socket.addEventListener("message", ({ data }) => {
    const message = JSON.parse(data);
    if (waiting.length > 0) waiting.shift()(message);
    else came.push(message);
  });
  await new Promise((resolve, reject) => {
    socket.addEventListener("open", resolve);
    socket.addEventListener("error", () => reject(new Error(`no connection: ${url}`)));
  });
  const next = () =>
    new Promise((resolve, reject) => {
      if (came.length > 0) return resolve(came.shift());
      const timer = setTimeout(() => reject(new Error(`nothing came: ${url}`)), RECEIVE_TIMEOUT_MS);
      const failed = () => reject(new Error(`the connection has ended: ${url}`));
      socket.addEventListener("close", failed, { once: true });
      waiting.push((message) => {
        clearTimeout(timer);
        socket.removeEventListener("close", failed);
        resolve(message);
      });
    });
  return { socket, next };
}

/** As the API writes a topic: persistent/tenant/namespace/topic. */
const pathOf = (topic) => topic.replace("://", "/");

const timers = (argument) =>
  argument.split(";").map((timer) => {
    const at = timer.indexOf("=");
    return [timer.slice(0, at), Number(timer.slice(at + 1))];
  });

const tell = (line) => console.log(JSON.stringify(line));

await main(process.argv.slice(2));
