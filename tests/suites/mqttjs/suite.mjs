// MQTT.js against a broker: every QoS, retained messages, wills, kept sessions, MQTT 5.0's properties.
//
// Arguments: CA file, then URLs such as ws://127.0.0.1:8083/mqtt. Environment: BROKER_USER,
// BROKER_PASSWORD. Prints one line a test; exit status 1 if any fails.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import mqtt from "mqtt";

const PATIENCE = 10_000;
const VERSIONS = { "3.1": 3, "3.1.1": 4, "5.0": 5 };

const within = (promise, what) => {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no ${what} in time`)), PATIENCE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
};
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

class Device {
  static async connect(url, ca, version, clientId, options = {}) {
    const client = mqtt.connect(url, {
      clientId,
      protocolVersion: version,
      protocolId: version === 3 ? "MQIsdp" : "MQTT",
      ca,
      reconnectPeriod: 0,
      username: process.env.BROKER_USER,
      password: process.env.BROKER_PASSWORD,
      ...options,
    });
    const device = new Device();
    device.client = client;
    device.messages = [];
    device.waiting = [];
    client.on("message", (topic, payload, packet) => {
      const message = { topic, payload, packet };
      const waiting = device.waiting.shift();
      if (waiting) waiting(message);
      else device.messages.push(message);
    });
    device.closed = new Promise((done) => client.on("close", done));
    device.connack = await within(
      new Promise((done, fail) => {
        client.on("connect", done);
        client.on("error", fail);
      }),
      "CONNACK",
    );
    return device;
  }

  next() {
    const message = this.messages.shift();
    if (message) return message;
    return within(new Promise((done) => this.waiting.push(done)), "message");
  }

  async silent() {
    await pause(200);
    assert.deepEqual(this.messages, []);
  }

  subscribe(topic, qos) {
    return within(this.client.subscribeAsync(topic, { qos }), "SUBACK");
  }

  publish(topic, payload, options) {
    return within(this.client.publishAsync(topic, payload, options), "acknowledgement");
  }

  leave() {
    return within(this.client.endAsync(), "end");
  }
}

const tests = {
  async everyQos(device, name) {
    const one = await device("one");
    for (const qos of [0, 1, 2]) {
      const [granted] = await one.subscribe(`${name}/${qos}`, qos);
      assert.equal(granted.qos, qos);
      for (const sent of [0, 1, 2]) {
        await one.publish(`${name}/${qos}`, `${sent}`, { qos: sent });
        const { payload, packet } = await one.next();
        assert.equal(payload.toString(), `${sent}`);
        assert.equal(packet.qos, Math.min(sent, qos));
      }
    }
    await one.leave();
  },
  async largePayload(device, name) {
    const one = await device("one");
    await one.subscribe(name, 1);
    const sent = Buffer.alloc(500_000, "0123456789abcdef");
    await one.publish(name, sent, { qos: 1 });
    assert.ok((await one.next()).payload.equals(sent));
    await one.leave();
  },
  async retained(device, name) {
    const one = await device("one");
    await one.publish(name, "kept", { qos: 1, retain: true });
    const two = await device("two");
    await two.subscribe(name, 1);
    const { payload, packet } = await two.next();
    assert.equal(payload.toString(), "kept");
    assert.ok(packet.retain);
    await one.publish(name, "", { qos: 1, retain: true });
    await two.next();
    const three = await device("three");
    await three.subscribe(name, 1);
    await three.silent();
    for (const each of [one, two, three]) await each.leave();
  },
  async will(device, name) {
    const watcher = await device("watcher");
    await watcher.subscribe(name, 2);
    const polite = await device("polite", { will: { topic: name, payload: "polite", qos: 1 } });
    await polite.leave();
    await watcher.silent();
    const rude = await device("rude", { will: { topic: name, payload: "rude", qos: 1 } });
    rude.client.stream.destroy();
    assert.equal((await watcher.next()).payload.toString(), "rude");
    await watcher.leave();
  },
  async keptSession(device, name, version) {
    const kept = { clean: false };
    if (version === 5) kept.properties = { sessionExpiryInterval: 60 };
    const first = await device("kept", kept);
    assert.equal(first.connack.sessionPresent, false);
    await first.subscribe(name, 2);
    await first.leave();
    const writer = await device("writer");
    for (let number = 0; number < 20; number += 1) {
      await writer.publish(name, `${number}`, { qos: 2 });
    }
    const again = await device("kept", kept);
    for (let number = 0; number < 20; number += 1) {
      assert.equal((await again.next()).payload.toString(), `${number}`);
    }
    await again.silent();
    await again.leave();
    await writer.leave();
    await (await device("kept")).leave();
  },
  async takeOver(device) {
    const first = await device("same");
    const second = await device("same");
    await within(first.closed, "end of the first");
    assert.ok(second.client.connected);
    await second.leave();
  },
  async properties(device, name, version) {
    if (version !== 5) return;
    const one = await device("one", { properties: { topicAliasMaximum: 10 } });
    await one.subscribe(name, 1);
    const properties = {
      contentType: "text/plain",
      responseTopic: "answer",
      correlationData: Buffer.from("c"),
      userProperties: { a: ["1", "2"] },
      payloadFormatIndicator: true,
    };
    await one.publish(name, "x", { qos: 1, properties });
    const got = (await one.next()).packet.properties;
    for (const key of ["contentType", "responseTopic", "payloadFormatIndicator"]) {
      assert.equal(got[key], properties[key], key);
    }
    assert.deepEqual({ ...got.userProperties }, properties.userProperties);
    const added = Object.keys(got).filter((key) => !(key in properties) && key !== "topicAlias");
    assert.deepEqual(added, []);
    await one.leave();
  },
};

const [ca, ...urls] = process.argv.slice(2);
let failed = 0;
for (const url of urls) {
  const scheme = new URL(url).protocol.replace(":", "");
  for (const [number, version] of Object.entries(VERSIONS)) {
    for (const [test, body] of Object.entries(tests)) {
      const name = `mqttjs/${scheme}/${number}/${test}`;
      const device = (id, options) =>
        Device.connect(url, readFileSync(ca), version, `${scheme}-${id}`, options);
      try {
        await body(device, name, version);
        console.log(`ok ${name}`);
      } catch (error) {
        failed += 1;
        console.log(`FAILED ${name}\n${error.stack}`);
      }
    }
  }
}
console.log(`${failed} failed`);
process.exit(failed ? 1 : 0);
