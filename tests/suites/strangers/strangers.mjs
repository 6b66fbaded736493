// MQTT.js as a client that follows lines: `HOST PORT VERSION ID CLEAN [WILL]`; see suite.py.

import { createInterface } from "node:readline";
import mqtt from "mqtt";

const [host, port, version, clientId, clean, will] = process.argv.slice(2);
const v5 = version === "5.0";
const say = (...words) => process.stdout.write(`${words.join(" ")}\n`);

const fields = ({ properties = {} }) => {
  const has = [];
  const one = (word, value) => value !== undefined && has.push(`${word}=${value}`);
  const format = properties.payloadFormatIndicator;
  one("format", format === undefined ? format : Number(format));
  one("expiry", properties.messageExpiryInterval);
  one("type", properties.contentType);
  one("response", properties.responseTopic);
  one("correlation", properties.correlationData?.toString("hex"));
  for (const [key, values] of Object.entries(properties.userProperties ?? {}))
    for (const value of [values].flat()) one("user", `${key}:${value}`);
  return has.join() || "-";
};

const set = {
  payloadFormatIndicator: true,
  messageExpiryInterval: 3600,
  contentType: "text/plain",
  responseTopic: "answer",
  correlationData: Buffer.from([0, 255]),
  userProperties: { a: ["1", "2"] },
};

const client = mqtt.connect({
  host,
  port,
  clientId,
  clean: clean === "1",
  protocolVersion: v5 ? 5 : 4,
  reconnectPeriod: 0,
  ...(v5 && { properties: { sessionExpiryInterval: clean === "1" ? 0 : 60 } }),
  ...(will && { will: { topic: will, payload: "gone", qos: 1 } }),
});
client.on("error", (error) => {
  console.error(error.message);
  process.exit(1);
});
client.on("message", (_topic, payload, packet) =>
  say("message", packet.qos, Number(packet.retain), payload.toString("hex"), fields(packet)),
);
client.on("connect", (connack) => say("connected", Number(connack.sessionPresent)));

for await (const line of createInterface({ input: process.stdin })) {
  const [verb, topic, qos, retain, payload, properties] = line.split(" ");
  if (verb === "sub") {
    const [granted] = await client.subscribeAsync(topic, { qos: Number(qos) });
    say("subscribed", granted.qos);
  } else if (verb === "pub") {
    const options = { qos: Number(qos), retain: retain === "1" };
    if (properties === "1") options.properties = set;
    await client.publishAsync(topic, Buffer.from(payload, "hex"), options);
    say("published");
  } else {
    await client.endAsync();
    process.exit(0);
  }
}
