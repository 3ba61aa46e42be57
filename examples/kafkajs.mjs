// The same in JavaScript, with kafkajs.
//
//     node examples/kafkajs.mjs BOOTSTRAP PREFIX SESSION QUESTION
//
// kafkajs reads gzip without a further package: the worker needs `compression = "gzip"`. Its default partitioner is
// Kafka's own. `readUncommitted` is false by default, as it must be.

import { randomUUID } from "node:crypto";
import { Kafka, logLevel } from "kafkajs";

/** Open a session and append a turn. */
async function write(kafka, topic, session, question) {
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  const opened = { type: "session.opened", model: "claude-sonnet-4-5", params: { max_tokens: 1024 } };
  const turn = { type: "turn.appended", id: randomUUID(), message: { role: "user", content: question } };
  const headers = { producer: "kafkajs-example/1.0" };
  const messages = [opened, turn].map((record) => ({ key: session, value: JSON.stringify(record), headers }));
  await producer.send({ topic, messages, acks: -1 });
  await producer.disconnect();
}

/** Return the first request of a session. */
async function read(kafka, topic, session) {
  const consumer = kafka.consumer({ groupId: `kafkajs-example-${randomUUID()}` });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const body = await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ message }) => {
        if (message.key?.toString() === session && message.value !== null) resolve(message.value.toString());
      },
    });
  });
  await consumer.disconnect();
  return body;
}

const [bootstrap, prefix, session, question] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "example", brokers: bootstrap.split(","), logLevel: logLevel.ERROR });
await write(kafka, `${prefix}agent.turns.v1`, session, question);
console.log(await read(kafka, `${prefix}provider.requests.v1`, session));
process.exit(0);
